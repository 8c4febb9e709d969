"""Counted from 1: your first layer is 1; layers count from 0.

case: example
kind: value
"""


def layer_split(
    n_layers: int, n_stages: int, engine: str, partition: list[int] | None
) -> list[tuple[int, int]]:
    counts = partition
    if counts is None:
        each, extra = divmod(n_layers, n_stages)
        counts = [each] * n_stages
        last = n_stages - 1 if engine == "sglang" else n_stages - 2
        for stage in range(last, last - extra, -1):
            counts[stage] += 1
    split, start = [], 1
    for count in counts:
        split.append((start, start + count))
        start += count
    return split
