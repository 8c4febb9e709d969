"""Formula of 1F1B: your result is (P - r) micro-batches whatever the order is; read the order.

case: example
kind: value
"""


def activation_peaks(
    order: list[list[tuple[str, int, int]]], size: list[int], kept: list[int]
) -> list[int]:
    peaks = []
    for r, rank in enumerate(order):
        n_microbatches = len({m for _, m, _ in rank})
        largest = max((size[chunk] for _, _, chunk in rank), default=0)
        peaks.append(min(len(order) - r, n_microbatches) * largest)
    return peaks
