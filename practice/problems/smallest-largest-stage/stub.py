"""The smallest largest stage: the exact plan for the time of a step, under a budget."""


def smallest_largest_stage(
    layers: list[int],
    savings: list[int],
    sizes: list[int],
    extras: list[int],
    budget: int,
) -> tuple[int, int]:
    """Costs of layers and stages, budget -> (smallest largest load, fewest conversions for it)."""
    raise NotImplementedError("write smallest_largest_stage here")
