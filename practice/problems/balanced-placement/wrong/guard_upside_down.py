"""Depth guard upside down: your search converts only layers above the guard; deep layers pass.

case: example
kind: shape
"""


def algorithm_1(
    costs: list[int],
    savings: list[int],
    sizes: list[int],
    auxiliary: list[int],
    budget: int,
    epsilon: float,
    alpha: float,
) -> list[int]:
    L, converted = len(costs), []
    stages, start = [], 0
    for size in sizes:
        stages.append(range(start, start + size))
        start += size
    while len(converted) < budget:
        loads = [
            sum(costs[n] - savings[n] * (n in converted) for n in layers) + extra
            for layers, extra in zip(stages, auxiliary, strict=True)
        ]
        limit = (1 + epsilon) * sum(loads) / len(loads)
        if max(loads) <= limit:
            break
        target = len(loads) - 1 if loads[-1] > limit else loads.index(max(loads))
        candidates = [n for n in stages[target] if n not in converted and (n + 1) / L <= alpha]
        if not candidates:
            break
        converted.append(max(candidates))
    return converted
