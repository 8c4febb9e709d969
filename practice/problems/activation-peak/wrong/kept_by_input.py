"""Nothing freed by I: your activations stay whole until the weight gradient; I frees size - kept.

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
                "I": 0,
                "W": -size[chunk],
            }[kind]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks
