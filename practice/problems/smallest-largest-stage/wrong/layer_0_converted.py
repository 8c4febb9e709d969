"""Layer 0 converted: your plan lets layer 0 borrow; there is no earlier layer.

case: layer-0
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
        left.append(sorted(savings[i] for i in own if savings[i] > 0))
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
