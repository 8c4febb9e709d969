"""FIR: how much larger the largest stage of a pipeline is than the mean stage."""


def fir(
    layer_costs: list[float], stages: list[list[int]], auxiliary: list[tuple[int, float]]
) -> float:
    """Costs of layers, layers of stages, modules on stages -> largest over mean stage load."""
    raise NotImplementedError("write fir here")
