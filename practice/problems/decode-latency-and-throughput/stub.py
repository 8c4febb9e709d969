"""Decoding latency and throughput: what batches in flight give and cost."""


def decode_rates(stage_us: list[int], transfer_us: int, n_batches: int, overlap: bool) -> dict:
    """Times in µs -> {"tpot_us": int, "steps_per_s": float, "batches_to_fill": int}."""
    raise NotImplementedError("write decode_rates here")
