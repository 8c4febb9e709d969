"""One loop: loads, stop, target, candidates, convert.

The flaws are in the second and third step. The last stage stays the target while it is above the
tolerance, even where another one is larger, and conversions there lower the mean and leave the
maximum: FIR rises. Whatever the mean does, the last state is returned, not the best one. An
exhausted target ends everything. And where stages are equal, which is the normal case, a tie
decides that the first stage loses a layer. A planner that relieves the largest stage, skips layers
without a source and keeps its best state costs no more lines.
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
    """Layers, stages, budget, tolerance, depth guard -> converted layers in order."""
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
        candidates = [n for n in stages[target] if n not in converted and (n + 1) / L >= alpha]
        if not candidates:
            break
        converted.append(max(candidates))
    return converted
