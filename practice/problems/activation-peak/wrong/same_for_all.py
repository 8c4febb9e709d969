"""One peak for all: your result has the largest peak on every rank; each rank has its own.

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
                "W": -kept[chunk],
            }[kind]
            peak = max(peak, held)
        peaks.append(peak)
    return [max(peaks)] * len(peaks)
