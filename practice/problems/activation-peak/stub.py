"""Activation peak: the most bytes of activations that each rank of a schedule holds at once."""


def activation_peaks(
    order: list[list[tuple[str, int, int]]], size: list[int], kept: list[int]
) -> list[int]:
    """Operations (kind, microbatch, chunk) per rank -> the peak of each rank in bytes."""
    raise NotImplementedError("write activation_peaks here")
