"""Median: your result divides by the middle load; divide by the mean.

case: example
kind: value
"""


def fir(
    layer_costs: list[float], stages: list[list[int]], auxiliary: list[tuple[int, float]]
) -> float:
    loads = [sum(layer_costs[layer] for layer in layers) for layers in stages]
    for stage, cost in auxiliary:
        loads[stage] += cost
    mean = sorted(loads)[len(loads) // 2]
    return max(loads) / mean
