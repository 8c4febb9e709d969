"""One step of the ring: who computes with which block, and which block is on its way to whom."""


def ring_step(ring: list[int], step: int) -> tuple[list[int], list[int], list[int | None]]:
    """Circle (P), step -> block of each rank, holder of each block, block arriving at each rank."""
    raise NotImplementedError("write ring_step here")
