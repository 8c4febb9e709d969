"""Budget always spent: your count has conversions that do not lower the largest stage.

case: example
kind: value
"""


def smallest_largest_stage(
    layers: list[int],
    savings: list[int],
    sizes: list[int],
    extras: list[int],
    budget: int,
) -> tuple[int, int]:
    loads, left, start = [], [], 0
    for size, extra in zip(sizes, extras, strict=True):
        own = range(start, start + size)
        loads.append(sum(layers[i] for i in own) + extra)
        left.append(sorted(savings[i] for i in own if i > 0 and savings[i] > 0))
        start += size
    best = max(loads)
    for _ in range(budget):
        stage = loads.index(max(loads))
        if not left[stage]:
            break
        loads[stage] -= left[stage].pop()
        if max(loads) < best:
            best = max(loads)
    return best, min(budget, sum(map(bool, savings[1:])))
