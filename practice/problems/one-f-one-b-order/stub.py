"""1F1B order for a rank: warm-up, one forward and one backward in turn, cool-down."""


def one_f_one_b(rank: int, n_ranks: int, n_microbatches: int) -> list[tuple[str, int]]:
    """The operations of one rank in order: ("F", m) and ("B", m)."""
    raise NotImplementedError("write one_f_one_b here")
