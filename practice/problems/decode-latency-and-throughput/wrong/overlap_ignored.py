"""Overlap ignored: your result hides the transfers although overlap is False.

case: no-overlap
kind: value
"""


def decode_rates(stage_us: list[int], transfer_us: int, n_batches: int, overlap: bool) -> dict:
    hop = transfer_us if len(stage_us) > 1 else 0
    lap = sum(stage_us) + len(stage_us) * hop
    slowest = max(stage_us)
    tpot_us = max(lap, n_batches * slowest)
    return {
        "tpot_us": tpot_us,
        "steps_per_s": 1e6 * n_batches / tpot_us,
        "batches_to_fill": -(-lap // slowest),
    }
