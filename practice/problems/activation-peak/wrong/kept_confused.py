"""What stays and what goes: your I frees the kept bytes and holds the rest; it is the reverse.

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
                "I": -kept[chunk],
                "W": kept[chunk] - size[chunk],
            }[kind]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks
