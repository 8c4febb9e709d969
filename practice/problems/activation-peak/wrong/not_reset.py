"""Ranks not told apart: your result carries the peak of one rank over to the next.

case: gpipe
kind: value
"""


def activation_peaks(
    order: list[list[tuple[str, int, int]]], size: list[int], kept: list[int]
) -> list[int]:
    peaks, peak = [], 0
    for rank in order:
        held = 0
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
