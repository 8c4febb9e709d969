"""Always last: your auxiliary modules all go to the last stage; each names its own.

case: first-stage
kind: value
"""


def fir(
    layer_costs: list[float], stages: list[list[int]], auxiliary: list[tuple[int, float]]
) -> float:
    loads = [sum(layer_costs[layer] for layer in layers) for layers in stages]
    for _, cost in auxiliary:
        loads[-1] += cost
    mean = sum(loads) / len(loads)
    return max(loads) / mean
