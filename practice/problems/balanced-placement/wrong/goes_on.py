"""Goes on elsewhere: your search skips a stage without candidates; the algorithm stops there.

case: exhausted
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
        order = [len(loads) - 1] if loads[-1] > limit else []
        order += sorted(range(len(loads)), key=lambda i: -loads[i])
        deep = [n for n in range(L) if (n + 1) / L >= alpha]
        free = [[n for n in deep if n in stages[i] and n not in converted] for i in order]
        candidates = next((layers for layers in free if layers), None)
        if not candidates:
            break
        converted.append(max(candidates))
    return converted
