"""Two limits, and the harder one holds.

A batch cannot be back before it has gone round: all stages plus all transfers. And the slowest
stage must serve every batch in flight once before it sees the first of them again. So a request
waits the larger of `lap` and `n_batches * slowest` for its next token. In that time each of the
batches makes one step.

With few batches the lap decides: latency stays as it is, throughput grows with each batch. Once the
batches keep the slowest stage busy all the time, throughput stands still and only latency grows.
Where transfers do not overlap, the time of sending belongs to the stage's own work. PP = 4 with
stages of 5 ms and transfers of 0.2 ms therefore reaches 200 steps/s only with overlap and with at
least five batches; otherwise it stays at 192.3.
"""


def decode_rates(stage_us: list[int], transfer_us: int, n_batches: int, overlap: bool) -> dict:
    """Times in µs -> {"tpot_us": int, "steps_per_s": float, "batches_to_fill": int}."""
    hop = transfer_us if len(stage_us) > 1 else 0
    lap = sum(stage_us) + len(stage_us) * hop
    slowest = max(stage_us) + (0 if overlap else hop)
    tpot_us = max(lap, n_batches * slowest)
    return {
        "tpot_us": tpot_us,
        "steps_per_s": 1e6 * n_batches / tpot_us,
        "batches_to_fill": -(-lap // slowest),
    }
