"""First stages: your extra layers go to the front; both engines give them out from the back.

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
        for stage in range(extra):
            counts[stage] += 1
    split, start = [], 0
    for count in counts:
        split.append((start, start + count))
        start += count
    return split
