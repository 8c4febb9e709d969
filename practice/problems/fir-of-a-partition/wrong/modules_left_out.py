"""Modules left out: your loads have the layers alone; add every auxiliary module to its stage.

case: example
kind: value
"""


def fir(
    layer_costs: list[float], stages: list[list[int]], auxiliary: list[tuple[int, float]]
) -> float:
    loads = [sum(layer_costs[layer] for layer in layers) for layers in stages]
    mean = sum(loads) / len(loads)
    return max(loads) / mean
