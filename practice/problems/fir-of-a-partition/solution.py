"""First the load of every stage, then the largest over the mean.

Modules beside the layers are added to the load of the stage that holds them, so they are in the
largest load and in the mean alike. The mean divides by the number of stages, whether or not a stage
has work: an idle stage is a device that was paid for. FIR compares with the mean and not with the
smallest stage, because the mean is what the largest stage could fall to if the same work were
spread evenly.
"""


def fir(
    layer_costs: list[float], stages: list[list[int]], auxiliary: list[tuple[int, float]]
) -> float:
    """Costs of layers, layers of stages, modules on stages -> largest over mean stage load."""
    loads = [sum(layer_costs[layer] for layer in layers) for layers in stages]
    for stage, cost in auxiliary:
        loads[stage] += cost
    mean = sum(loads) / len(loads)
    return max(loads) / mean
