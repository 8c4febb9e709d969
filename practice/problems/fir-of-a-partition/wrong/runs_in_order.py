"""Only sizes read: your stages take layers in order of the model; each stage lists which it has.

case: interleaved
kind: value
"""


def fir(
    layer_costs: list[float], stages: list[list[int]], auxiliary: list[tuple[int, float]]
) -> float:
    costs = iter(layer_costs)
    loads = [sum(next(costs) for _ in layers) for layers in stages]
    for stage, cost in auxiliary:
        loads[stage] += cost
    mean = sum(loads) / len(loads)
    return max(loads) / mean
