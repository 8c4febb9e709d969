"""Stage loads: FLOPs of every pipeline stage, with the head on the last and some layers shared."""


def stage_loads(config: dict, sizes: list[int], n_tokens: int, shared: list[int]) -> list[int]:
    """Model, layers per stage, tokens, shared layers -> forward FLOPs of each stage."""
    raise NotImplementedError("write stage_loads here")
