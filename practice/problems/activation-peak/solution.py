"""A running sum per rank, and the largest value it has had.

Only a forward adds, so the peak is reached during a forward, and looking at the sum after each
operation is enough. The micro-batch does not even matter: whichever goes backward frees as much.
What does matter is the chunk, as a rank may hold several of different size.

GPipe holds all M micro-batches on every rank. 1F1B holds min(P - r, M) on rank r, which is P on the
first. With two chunks per rank, interleaved 1F1B holds 3 P - 1 chunks there, each half as large: a
smaller bubble paid with memory. ZB-H1 delays weight gradients, and what they need stays.
"""


def activation_peaks(
    order: list[list[tuple[str, int, int]]], size: list[int], kept: list[int]
) -> list[int]:
    """Operations (kind, microbatch, chunk) per rank -> the peak of each rank in bytes."""
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
    return peaks
