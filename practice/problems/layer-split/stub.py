"""Layer split: which layers each pipeline stage gets in vLLM and in SGLang."""


def layer_split(
    n_layers: int, n_stages: int, engine: str, partition: list[int] | None
) -> list[tuple[int, int]]:
    """Layers and stages -> (first layer, one after the last) of each stage."""
    raise NotImplementedError("write layer_split here")
