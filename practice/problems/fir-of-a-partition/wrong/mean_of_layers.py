"""Mean without modules: your mean has the layers alone; the modules' work belongs to it too.

case: example
kind: value
"""


def fir(
    layer_costs: list[float], stages: list[list[int]], auxiliary: list[tuple[int, float]]
) -> float:
    loads = [sum(layer_costs[layer] for layer in layers) for layers in stages]
    for stage, cost in auxiliary:
        loads[stage] += cost
    mean = sum(layer_costs) / len(loads)
    return max(loads) / mean
