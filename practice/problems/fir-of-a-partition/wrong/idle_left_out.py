"""Idle stage left out: your mean skips stages without work; every stage is a device.

case: empty-stage
kind: value
"""


def fir(
    layer_costs: list[float], stages: list[list[int]], auxiliary: list[tuple[int, float]]
) -> float:
    loads = [sum(layer_costs[layer] for layer in layers) for layers in stages]
    for stage, cost in auxiliary:
        loads[stage] += cost
    mean = sum(loads) / sum(load > 0 for load in loads)
    return max(loads) / mean
