"""GPipe: your result runs every forward before the first backward.

case: example
kind: value
"""


def one_f_one_b(rank: int, n_ranks: int, n_microbatches: int) -> list[tuple[str, int]]:
    microbatches = range(n_microbatches)
    return [("F", m) for m in microbatches] + [("B", m) for m in microbatches]
