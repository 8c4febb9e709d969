"""One too many: your batches_to_fill is one too many where the time once around is an exact
multiple of what the slowest stage needs per batch (with its send, if that does not overlap); round
up instead.

case: no-overlap
kind: value
"""


def decode_rates(stage_us: list[int], transfer_us: int, n_batches: int, overlap: bool) -> dict:
    hop = transfer_us if len(stage_us) > 1 else 0
    lap = sum(stage_us) + len(stage_us) * hop
    slowest = max(stage_us) + (0 if overlap else hop)
    tpot_us = max(lap, n_batches * slowest)
    return {
        "tpot_us": tpot_us,
        "steps_per_s": 1e6 * n_batches / tpot_us,
        "batches_to_fill": lap // slowest + 1,
    }
