"""Dealt one by one: your answer is right and too slow for long sequences.

case: long
kind: timeout
"""


def cache_layout(
    lengths: list[int], n_ranks: int, interleave: int
) -> tuple[list[list[int]], list[int], list[int]]:
    local = [[0] * n_ranks for _ in lengths]
    for row, length in zip(local, lengths, strict=True):
        for token in range(length):
            row[token // interleave % n_ranks] += 1
    owner = [length // interleave % n_ranks for length in lengths]
    return local, owner, [row[rank] for row, rank in zip(local, owner, strict=True)]
