"""Always relieve the stage that is largest now, by its largest saving that is left.

This greedy is exact. To bring one stage to a load of at most T, the largest savings first need the
fewest conversions, and stages do not influence each other. Relieving the current maximum spends a
conversion only where every plan below the current maximum has to spend one. So it passes every
reachable maximum with the fewest conversions. The best state is kept, since the last conversions
may lower one of several equal stages and gain nothing.
"""


def smallest_largest_stage(
    layers: list[int],
    savings: list[int],
    sizes: list[int],
    extras: list[int],
    budget: int,
) -> tuple[int, int]:
    """Costs of layers and stages, budget -> (smallest largest load, fewest conversions for it)."""
    loads, left, start = [], [], 0
    for size, extra in zip(sizes, extras, strict=True):
        own = range(start, start + size)
        loads.append(sum(layers[i] for i in own) + extra)
        left.append(sorted(savings[i] for i in own if i > 0 and savings[i] > 0))
        start += size
    best, fewest = max(loads), 0
    for n in range(1, budget + 1):
        stage = loads.index(max(loads))
        if not left[stage]:
            break
        loads[stage] -= left[stage].pop()
        if max(loads) < best:
            best, fewest = max(loads), n
    return best, fewest
