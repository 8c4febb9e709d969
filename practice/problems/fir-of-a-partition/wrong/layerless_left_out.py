"""Stage without layers left out: your mean counts only stages with layers; a head alone is a stage
too.

case: empty-stage
kind: value
"""


def fir(
    layer_costs: list[float], stages: list[list[int]], auxiliary: list[tuple[int, float]]
) -> float:
    loads = [sum(layer_costs[layer] for layer in layers) for layers in stages]
    for stage, cost in auxiliary:
        loads[stage] += cost
    mean = sum(loads) / sum(len(layers) > 0 for layers in stages)
    return max(loads) / mean
