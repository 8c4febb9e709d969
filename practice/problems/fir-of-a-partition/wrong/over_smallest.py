"""Largest over smallest: your result divides by the smallest load; divide by the mean.

case: example
kind: value
"""


def fir(
    layer_costs: list[float], stages: list[list[int]], auxiliary: list[tuple[int, float]]
) -> float:
    loads = [sum(layer_costs[layer] for layer in layers) for layers in stages]
    for stage, cost in auxiliary:
        loads[stage] += cost
    return max(loads) / min(loads)
