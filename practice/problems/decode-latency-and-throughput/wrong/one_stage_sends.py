"""One stage sends: your result has a transfer although there is no other stage to send to.

case: one-stage
kind: value
"""


def decode_rates(stage_us: list[int], transfer_us: int, n_batches: int, overlap: bool) -> dict:
    hop = transfer_us
    lap = sum(stage_us) + len(stage_us) * hop
    slowest = max(stage_us) + (0 if overlap else hop)
    tpot_us = max(lap, n_batches * slowest)
    return {
        "tpot_us": tpot_us,
        "steps_per_s": 1e6 * n_batches / tpot_us,
        "batches_to_fill": -(-lap // slowest),
    }
