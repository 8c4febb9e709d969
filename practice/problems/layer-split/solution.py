"""First how many layers each stage gets, then where each begins: a running sum.

Only the place of the extra layers differs. Counted from the end, SGLang starts with the last stage
and vLLM with the last but one. vLLM never runs past the front, since at most P - 1 layers are left
over. Neither rule looks at what the layers cost: the head of a model with a large vocabulary weighs
several layers, and then only the user's own partition balances the stages.
"""


def layer_split(
    n_layers: int, n_stages: int, engine: str, partition: list[int] | None
) -> list[tuple[int, int]]:
    """Layers and stages -> (first layer, one after the last) of each stage."""
    counts = partition
    if counts is None:
        each, extra = divmod(n_layers, n_stages)
        counts = [each] * n_stages
        last = n_stages - 1 if engine == "sglang" else n_stages - 2
        for stage in range(last, last - extra, -1):
            counts[stage] += 1
    split, start = [], 0
    for count in counts:
        split.append((start, start + count))
        start += count
    return split
