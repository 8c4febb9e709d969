"""Claims of papers and articles that belong to chapter 2, computed. `book/ledger.yml` points here.

What needs processes is tested where the processes are: test_pipeline_*.py.
"""

import math
import socket
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from kvpipe.attention import attention
from kvpipe.cache import KVCache
from kvpipe.config import Config
from kvpipe.pipeline import (
    Comm,
    Cost,
    gpipe,
    interleaved_1f1b,
    one_f_one_b,
    round_robin,
    seq1f1b,
    simulate,
    zb_h1,
    zbv,
)
from kvpipe.pipeline.stages import predicted_bytes, split_layers
from kvpipe.transformer import Stage, Transformer, rotary

QWEN3_06B = Config(
    vocab_size=151_936, width=1024, n_layers=28, n_heads=16, n_kv_heads=8, head_size=128,
    ffn_width=3072, tied_embeddings=True, qk_norm=True,
)  # fmt: skip
SMOLLM2 = Config(
    vocab_size=49_152, width=576, n_layers=30, n_heads=9, n_kv_heads=3, head_size=64,
    ffn_width=1536, tied_embeddings=True,
)  # fmt: skip


# Decoding.


def busy_share(n_batches: int, transfer: float = 0.0, n_steps: int = 200) -> float:
    """The part of the time that four ranks of 5 ms compute, far from the start and the end."""
    schedule = round_robin(4, n_batches, n_steps)
    timeline = simulate(schedule, Cost.of(schedule, forward=5.0), Comm(latency=transfer))
    starts = [start for op, start, _ in timeline.spans[0] if op.microbatch == 0]
    lap = (starts[-1] - starts[50]) / (len(starts) - 51)
    return n_batches * 5.0 / lap


def test_of_four_equal_ranks_one_batch_uses_a_quarter_and_four_all():
    assert busy_share(1) == pytest.approx(1 / 4)
    assert busy_share(2) == pytest.approx(2 / 4)
    assert busy_share(4) == pytest.approx(1.0)
    assert busy_share(4, transfer=0.2) == pytest.approx(20 / 20.8)
    assert busy_share(5, transfer=0.2) == pytest.approx(1.0)


def test_five_batches_make_200_steps_a_second_if_transfers_overlap_and_192_if_not():
    schedule = round_robin(4, 5, 400)
    cost = Cost.of(schedule, forward=5.0)
    for overlaps, expected in ((True, 200.0), (False, 192.3)):
        timeline = simulate(schedule, cost, Comm(latency=0.2, overlaps=overlaps))
        assert 1000 * 5 * 400 / timeline.makespan == pytest.approx(expected, rel=5e-3)
    alone = 1000 / 20.8
    assert 200 / alone == pytest.approx(4.16)
    assert 1000 / 5.2 / alone == pytest.approx(4.00)


@pytest.mark.parametrize("n_batches", [1, 3, 4, 7])
def test_no_batch_is_on_two_ranks_at_once(n_batches):
    timeline = simulate(round_robin(4, n_batches, 6))
    for batch in range(n_batches):
        spans = sorted(
            (start, end)
            for rank in timeline.spans
            for op, start, end in rank
            if op.microbatch == batch
        )
        assert all(end <= later for (_, end), (later, _) in pairwise(spans))


def test_decoding_fills_and_drains_once_per_run_and_training_once_per_step():
    P, n, steps = 4, 4, 10
    decoding = simulate(round_robin(P, n, steps))
    assert decoding.bubble("bubble/makespan") == pytest.approx((P - 1) / (n * steps + P - 1))
    training = simulate(gpipe(P, n))
    assert training.bubble("bubble/makespan") == pytest.approx((P - 1) / (n + P - 1))


# What is held and what is sent.


def test_with_a_tied_matrix_each_of_two_stages_holds_more_than_half():
    for config, share in ((SMOLLM2, 0.6052), (QWEN3_06B, 0.6305)):
        n_layers = config.n_layers
        parts = [predicted_bytes(config, layers) for layers in split_layers(n_layers, 2)]
        whole = predicted_bytes(config, range(n_layers))
        assert max(parts) / whole == pytest.approx(share, abs=5e-4)
        matrix = 4 * config.vocab_size * config.width
        assert sum(parts) == whole + matrix


def test_each_stage_caches_its_own_layers_only():
    config = Config(
        vocab_size=19, width=12, n_layers=5, n_heads=2, n_kv_heads=1, head_size=6, ffn_width=20
    )
    for layers in split_layers(5, 2):
        stage, cache = Stage(config, layers).eval(), KVCache()
        tokens = torch.tensor([[1, 2, 3]])
        with torch.inference_mode():
            stage(tokens if stage.is_first else torch.randn(1, 3, 12), None, cache)
        assert cache.nbytes == len(layers) * 3 * 2 * 1 * 6 * 4


def test_28_layers_are_cut_after_layer_13():
    assert split_layers(28, 2) == (range(14), range(14, 28))


def test_15_prompt_tokens_and_20_new_ones_send_68_kib_in_16_bits():
    assert (15 + 20 - 1) * QWEN3_06B.width * 2 == 68 * 1024


def test_a_405b_model_in_16_bits_needs_51_gb_on_each_of_16_devices():
    gigabytes = 405 * 2 / 16
    assert round(gigabytes, 1) == 50.6


# Ways to split a model, counted.


def test_tensor_parallel_needs_two_sums_per_layer_where_a_pipeline_sends_once():
    """One layer split over two ranks by heads and by FFN columns: its output after two sums."""
    torch.manual_seed(2)
    config = Config(
        vocab_size=19, width=24, n_layers=1, n_heads=4, n_kv_heads=2, head_size=6, ffn_width=14
    )
    model = Transformer(config).double().eval()
    block = model.blocks["0"]
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    positions = torch.arange(5).expand(2, 5)
    turn, sums, heads = rotary(positions, config), [], []
    turn = tuple(part.double() for part in turn)
    block.attention.output.register_forward_pre_hook(lambda _, args: heads.append(args[0]))

    def all_reduce(parts):
        sums.append(parts[0].numel())
        return sum(parts)

    def attend(rank):
        """What two of the four heads contribute."""
        mine = slice(12 * rank, 12 * (rank + 1))
        return heads[0][..., mine] @ block.attention.output.weight[:, mine].T

    def feed(rank, x):
        """What half of the inner columns contribute."""
        mine = slice(7 * rank, 7 * (rank + 1))
        inner = F.silu(x @ block.ffn.gate.weight[mine].T) * (x @ block.ffn.up.weight[mine].T)
        return inner @ block.ffn.down.weight[:, mine].T

    with torch.no_grad():
        expected = block(x, positions, turn, {}, None, attention)
        h = x + all_reduce([attend(rank) for rank in (0, 1)])
        found = h + all_reduce([feed(rank, block.ffn_norm(h)) for rank in (0, 1)])
    torch.testing.assert_close(found, expected)
    assert sums == [x.numel()] * 2  # each as large as what a pipeline sends once
    assert 28 * len(sums) == 56


def test_expert_parallel_needs_two_exchanges_per_layer():
    """Two ranks with one expert each: tokens go to their expert, and results come back."""
    torch.manual_seed(3)
    experts = torch.randn(2, 6, 6)
    tokens = [torch.randn(5, 6), torch.randn(4, 6)]  # per rank
    chosen = [torch.tensor([0, 1, 1, 0, 1]), torch.tensor([1, 1, 0, 1])]
    exchanges = 0

    def all_to_all(boxes):
        nonlocal exchanges
        exchanges += 1
        return [[boxes[source][target] for source in (0, 1)] for target in (0, 1)]

    sent = all_to_all([[tokens[r][chosen[r] == e] for e in (0, 1)] for r in (0, 1)])
    back = all_to_all([[box @ experts[e] for box in sent[e]] for e in (0, 1)])
    for rank in (0, 1):
        found = torch.empty(len(tokens[rank]), 6)
        for expert in (0, 1):
            found[chosen[rank] == expert] = back[rank][expert]
        expected = torch.stack(
            [x @ experts[e] for x, e in zip(tokens[rank], chosen[rank], strict=True)]
        )
        torch.testing.assert_close(found, expected)
    assert exchanges == 2


# Training schedules.


def test_with_one_micro_batch_one_of_p_ranks_works():
    for P in (2, 4, 7):
        timeline = simulate(one_f_one_b(P, 1))
        assert sum(timeline.busy) == pytest.approx(timeline.makespan)
        assert timeline.bubble("bubble/makespan") == pytest.approx((P - 1) / P)


def test_gpipe_and_1f1b_have_the_same_bubble_on_equal_stages_only():
    for P, M in ((2, 2), (4, 8), (5, 13), (8, 8)):
        assert simulate(gpipe(P, M)).makespan == simulate(one_f_one_b(P, M)).makespan
    for weights, spans in (([2, 1, 1, 1], (57, 51)), ([1, 1, 1, 2], (57, 57))):
        for schedule, expected in zip((gpipe(4, 8), one_f_one_b(4, 8)), spans, strict=True):
            assert simulate(schedule, Cost.of(schedule, weights=weights)).makespan == expected


def test_1f1b_holds_p_minus_r_micro_batches_and_gpipe_all():
    assert simulate(gpipe(4, 8)).peak_activations == (8, 8, 8, 8)
    assert simulate(one_f_one_b(4, 8)).peak_activations == (4, 3, 2, 1)


def test_no_schedule_is_faster_than_its_slowest_rank():
    for made in (gpipe(3, 6), one_f_one_b(3, 6), interleaved_1f1b(3, 6), zb_h1(3, 6), zbv(3, 6)):
        weights = [3.0 if rank == 1 else 1.0 for rank in made.placement]
        timeline = simulate(made, Cost.of(made, weights=weights))
        assert timeline.makespan >= max(timeline.busy) == pytest.approx(3 * 6 * 3)
        assert timeline.idle[0] > timeline.makespan / 2


def test_the_head_of_the_default_model_weighs_eight_layers():
    layer = predicted_bytes(SMOLLM2, range(1, 2)) / 4
    assert SMOLLM2.vocab_size * SMOLLM2.width / layer == pytest.approx(8.0, abs=0.01)


def test_zbv_waits_nowhere_inside_and_still_ends_after_its_work():
    timeline = simulate(zbv(4, 8))
    assert timeline.bubble("per-stage span") == pytest.approx(0.0)
    assert timeline.makespan == 25.5 > max(timeline.busy) == 24
    assert timeline.peak_activations == (8, 8, 8, 8)  # half stages: as much as 1F1B's first rank


def test_seq1f1b_with_two_segments_needs_less_time_and_memory_than_1f1b():
    whole, halves = simulate(one_f_one_b(4, 8)), simulate(seq1f1b(4, 8, 2))
    assert (whole.makespan, halves.makespan) == (33, 28.5)
    assert halves.peak_activations[0] / whole.peak_activations[0] == pytest.approx(2.5 / 4)
    k, P = 2, 4
    share = 1 / k + 1 / P - 1 / (k * P)
    assert share == pytest.approx(2.5 / 4)


# Starting ranks.


def test_a_port_that_was_free_can_be_taken_before_it_is_used():
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port = asked.getsockname()[1]
    with socket.socket() as other, socket.socket() as ours:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(OSError, match="in use"):
            ours.bind(("127.0.0.1", port))
            ours.listen()


def test_math_of_the_bubble_fraction_in_the_exercise():
    timeline = simulate(one_f_one_b(8, 32))
    assert math.isclose(timeline.bubble("bubble/ideal"), 7 / 32)
    assert math.isclose(timeline.bubble("bubble/makespan"), 7 / 39)
