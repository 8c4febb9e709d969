"""Idle rank left out: your result has no entry for a rank without operations; it holds 0.

case: idle-rank
kind: shape
"""


def activation_peaks(
    order: list[list[tuple[str, int, int]]], size: list[int], kept: list[int]
) -> list[int]:
    peaks = []
    for rank in order:
        if not rank:
            continue
        held = peak = 0
        for kind, _, chunk in rank:
            held += {
                "F": size[chunk],
                "B": -size[chunk],
                "I": kept[chunk] - size[chunk],
                "W": -kept[chunk],
            }[kind]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks
