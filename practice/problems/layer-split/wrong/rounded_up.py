"""Rounded up: your stages get ceil(L / P) layers until none are left; sizes may differ by one
only.

case: example
kind: value
"""


def layer_split(
    n_layers: int, n_stages: int, engine: str, partition: list[int] | None
) -> list[tuple[int, int]]:
    counts = partition
    if counts is None:
        size = -(-n_layers // n_stages)
        counts = [min(size, max(0, n_layers - size * s)) for s in range(n_stages)]
    split, start = [], 0
    for count in counts:
        split.append((start, start + count))
        start += count
    return split
