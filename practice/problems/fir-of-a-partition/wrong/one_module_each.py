"""One module per stage: your stage keeps only its last auxiliary module; add them all.

case: two-modules
kind: value
"""


def fir(
    layer_costs: list[float], stages: list[list[int]], auxiliary: list[tuple[int, float]]
) -> float:
    loads = [sum(layer_costs[layer] for layer in layers) for layers in stages]
    for stage, cost in dict(auxiliary).items():
        loads[stage] += cost
    mean = sum(loads) / len(loads)
    return max(loads) / mean
