"""All to one stage: your extra layers all go to a single stage; each stage gets at most one.

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
        counts[last] += extra
    split, start = [], 0
    for count in counts:
        split.append((start, start + count))
        start += count
    return split
