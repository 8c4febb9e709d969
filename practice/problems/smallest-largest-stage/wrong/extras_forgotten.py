"""Extras forgotten: your loads are those of the layers alone.

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
    for size in sizes:
        own = range(start, start + size)
        loads.append(sum(layers[i] for i in own))
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
