"""Stages from 1: your auxiliary modules go to the stage before theirs; stages count from 0.

case: example
kind: value
"""


def fir(
    layer_costs: list[float], stages: list[list[int]], auxiliary: list[tuple[int, float]]
) -> float:
    loads = [sum(layer_costs[layer] for layer in layers) for layers in stages]
    for stage, cost in auxiliary:
        loads[stage - 1] += cost
    mean = sum(loads) / len(loads)
    return max(loads) / mean
