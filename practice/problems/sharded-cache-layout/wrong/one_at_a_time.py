"""One at a time: your token t lies on rank t mod P; `interleave` tokens go to a rank at once.

case: example
kind: value
"""


def cache_layout(
    lengths: list[int], n_ranks: int, interleave: int
) -> tuple[list[list[int]], list[int], list[int]]:
    local = [
        [length // n_ranks + (rank < length % n_ranks) for rank in range(n_ranks)]
        for length in lengths
    ]
    owner = [length % n_ranks for length in lengths]
    return local, owner, [length // n_ranks for length in lengths]
