"""Never back: your target stays off the last stage once it was left; the last stage is looked at
in every step.

case: last-stage-first
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
    L, converted, left = len(costs), [], False
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
        left = left or loads[-1] <= limit
        target = loads.index(max(loads)) if left else len(loads) - 1
        candidates = [n for n in stages[target] if n not in converted and (n + 1) / L >= alpha]
        if not candidates:
            break
        converted.append(max(candidates))
    return converted
