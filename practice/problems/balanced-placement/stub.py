"""Algorithm 1: convert layers one at a time until the stages are balanced, as published."""


def algorithm_1(
    costs: list[int],
    savings: list[int],
    sizes: list[int],
    auxiliary: list[int],
    budget: int,
    epsilon: float,
    alpha: float,
) -> list[int]:
    """Layers, stages, budget, tolerance, depth guard -> converted layers in order."""
    raise NotImplementedError("write algorithm_1 here")
