"""One entry per micro-batch: your two chunks of a micro-batch overwrite each other.

case: peak-late
kind: value
"""


def activation_peaks(
    order: list[list[tuple[str, int, int]]], size: list[int], kept: list[int]
) -> list[int]:
    peaks = []
    for rank in order:
        held, peak = {}, 0
        for kind, m, chunk in rank:
            if kind == "F":
                held[m] = size[chunk]
            elif kind == "I":
                held[m] = kept[chunk]
            else:
                held.pop(m, None)
            peak = max(peak, sum(held.values()))
        peaks.append(peak)
    return peaks
