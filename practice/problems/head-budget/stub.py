"""How many conversions cancel a head, and whether the last stage has enough layers for it."""


def head_budget(config: dict, n_stages: int, same_stage: bool) -> tuple[float, int | None, float]:
    """Sizes, stages, where sources may lie -> (conversions, budget or None, part cancelled)."""
    raise NotImplementedError("write head_budget here")
