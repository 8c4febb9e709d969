"""Parameters and FLOPs of a config: how large a model is, and what one token costs."""


def parameters_and_flops(config: dict, context: int) -> dict:
    """A config.json as a dict -> {"parameters": int, "flops_per_token": int}."""
    raise NotImplementedError("write parameters_and_flops here")
