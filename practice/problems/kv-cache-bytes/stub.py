"""KV-cache bytes of a config: what a model's memory of a text costs."""


def kv_cache_bytes(config: dict, n_sequences: int, n_tokens: int) -> int:
    """A config.json as a dict, and how much text to hold -> bytes."""
    raise NotImplementedError("write kv_cache_bytes here")
