"""Excess only: your result is FIR - 1; balance is 1, not 0.

case: example
kind: value
"""


def fir(
    layer_costs: list[float], stages: list[list[int]], auxiliary: list[tuple[int, float]]
) -> float:
    loads = [sum(layer_costs[layer] for layer in layers) for layers in stages]
    for stage, cost in auxiliary:
        loads[stage] += cost
    mean = sum(loads) / len(loads)
    return max(loads) / mean - 1
