"""Spread evenly: your stages begin at L * r / P, rounded; the engines keep extra layers together.

case: example
kind: value
"""


def layer_split(
    n_layers: int, n_stages: int, engine: str, partition: list[int] | None
) -> list[tuple[int, int]]:
    counts = partition
    if counts is None:
        bounds = [n_layers * r // n_stages for r in range(n_stages + 1)]
        counts = [bounds[r + 1] - bounds[r] for r in range(n_stages)]
    split, start = [], 0
    for count in counts:
        split.append((start, start + count))
        start += count
    return split
