"""Uniform and bipolar placement: which layers to convert if one looks at the model alone."""


def placements(n_layers: int, budget: int) -> dict:
    """Layers and conversions -> {"uniform": layers, "bipolar": layers}, in ascending order."""
    raise NotImplementedError("write placements here")
