"""One stretch each: your ranks have consecutive parts of the sequence; tokens are dealt in turns.

case: example
kind: value
"""


def cache_layout(
    lengths: list[int], n_ranks: int, interleave: int
) -> tuple[list[list[int]], list[int], list[int]]:
    sizes = [-(-length // n_ranks) for length in lengths]
    local = [
        [min(max(length - rank * size, 0), size) for rank in range(n_ranks)]
        for length, size in zip(lengths, sizes, strict=True)
    ]
    owner = [n_ranks - 1] * len(lengths)
    return local, owner, [row[-1] for row in local]
