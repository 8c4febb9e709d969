"""Micro-batches, not bytes: your result counts forwards held; each holds the size of its chunk.

case: example
kind: value
"""


def activation_peaks(
    order: list[list[tuple[str, int, int]]], size: list[int], kept: list[int]
) -> list[int]:
    peaks = []
    for rank in order:
        held = peak = 0
        for kind, _, _ in rank:
            held += {
                "F": 1,
                "B": -1,
                "I": 0,
                "W": -1,
            }[kind]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks
