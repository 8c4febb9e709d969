"""Freed by the input gradient: your I frees everything; a part stays until the weight gradient.

case: example
kind: value
"""


def activation_peaks(
    order: list[list[tuple[str, int, int]]], size: list[int], kept: list[int]
) -> list[int]:
    peaks = []
    for rank in order:
        held = peak = 0
        for kind, _, chunk in rank:
            held += {
                "F": size[chunk],
                "B": -size[chunk],
                "I": -size[chunk],
                "W": 0,
            }[kind]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks
