"""Size of the rank: your result takes size[rank]; each operation names its chunk.

case: peak-late
kind: value
"""


def activation_peaks(
    order: list[list[tuple[str, int, int]]], size: list[int], kept: list[int]
) -> list[int]:
    peaks = []
    for r, rank in enumerate(order):
        held = peak = 0
        for kind, _, _ in rank:
            held += {
                "F": size[r],
                "B": -size[r],
                "I": kept[r] - size[r],
                "W": -kept[r],
            }[kind]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks
