"""Freed twice: your W frees the whole size again after I has freed a part of it.

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
                "I": kept[chunk] - size[chunk],
                "W": -size[chunk],
            }[kind]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks
