"""Every forward: your result adds up all forwards, as if nothing were freed before the end.

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
                "B": 0,
                "I": 0,
                "W": 0,
            }[kind]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks
