"""Before the operation: your sum is looked at before each operation; a forward counts from its
start.

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
            if kind == "F":
                peak = max(peak, held)
            held += {
                "F": size[chunk],
                "B": -size[chunk],
                "I": kept[chunk] - size[chunk],
                "W": -kept[chunk],
            }[kind]
        peaks.append(peak)
    return peaks
