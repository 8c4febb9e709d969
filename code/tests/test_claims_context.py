"""Claims about ring attention and context parallelism, computed. `book/ledger.yml` points here.

What the modules' own tests compute is tested there: test_context_*.py.
"""

import pytest
import torch

from kvpipe.attention import attention
from kvpipe.context import (
    Interleave,
    contiguous,
    critical_path,
    hiding_tokens,
    pairs_per_rank,
    pairs_per_step,
    source,
    ulysses_heads,
    zigzag,
)
from kvpipe.context.attend import simulate
from kvpipe.context.blocks import plain_backward, plain_forward
from kvpipe.context.circle import SimulatedRing
from kvpipe.context.merge import merge


def test_prefill_of_s_tokens_has_s_times_s_plus_1_over_2_pairs():
    for S, P in ((64, 4), (128, 8), (37, 3)):
        assert sum(pairs_per_rank(contiguous(S, P))) == S * (S + 1) // 2


def test_after_one_turn_every_query_has_met_all_keys():
    for P in (1, 2, 3, 7):
        for rank in range(P):
            assert sorted(source(rank, step, P) for step in range(P)) == list(range(P))


def test_four_simulated_devices_match_one_to_float32_rounding():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 6, 64, 16), torch.randn(2, 2, 64, 16), torch.randn(2, 2, 64, 16)
    positions = torch.arange(64).expand(2, -1)
    exact = attention(*(x.double() for x in (q, k, v)), positions, positions)
    for layout in (contiguous(64, 4), zigzag(64, 4)):
        assert (simulate(q, k, v, layout) - exact).abs().max() < 1e-6


def test_the_last_of_four_contiguous_ranks_has_6_6_times_the_work_of_the_first():
    work = pairs_per_rank(contiguous(64, 4))
    assert work == [136, 392, 648, 904] and work[-1] / work[0] == pytest.approx(6.65, abs=5e-3)
    assert sum(work) / (4 * critical_path(contiguous(64, 4))) == pytest.approx(0.575, abs=5e-4)


def test_zigzag_work_is_equal_at_every_step_and_no_step_is_skipped():
    assert pairs_per_rank(zigzag(64, 4)) == [520] * 4
    steps = pairs_per_step(zigzag(64, 4))
    assert all(len(set(step)) == 1 and step[0] > 0 for step in steps)
    full = 16 * 16  # queries times keys of one block
    assert [step[0] for step in steps] == [136, full // 2, full // 2, full // 2]


def test_contiguous_rank_r_computes_step_s_only_if_s_is_at_most_r():
    for step, work in enumerate(pairs_per_step(contiguous(40, 5))):
        assert [bool(pairs) for pairs in work] == [step <= rank for rank in range(5)]


def test_torchs_context_parallel_gathers_by_default():
    try:
        from torch.distributed.tensor.experimental._context_parallel import _attention
    except ImportError:
        pytest.skip("this torch has no context parallel module under that name")
    assert _attention._ContextParallelOptions().rotate_method.name == "ALL_GATHER"


def test_a_transfer_hides_from_1_040_tokens_on_nvlink_and_24_960_on_infiniband():
    assert hiding_tokens(312e12, 300e9) == pytest.approx(1040)
    assert hiding_tokens(312e12, 12.5e9) == pytest.approx(24_960)
    assert hiding_tokens(989e12, 450e9, 32, 8, causal=True) == pytest.approx(1099, abs=0.5)


def test_a_row_sum_of_the_block_alone_is_wrong_by_far():
    torch.manual_seed(1)
    q, k, v, d_out = (torch.randn(1, 1, n, 4, dtype=torch.float64) for n in (3, 8, 8, 3))
    parts = [(k[:, :, a:b], v[:, :, a:b]) for a, b in ((0, 5), (5, 8))]
    whole = merge(*(plain_forward(q, *part) for part in parts))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    torch.nn.functional.scaled_dot_product_attention(*leaves).backward(d_out)
    right = sum(plain_backward(d_out, q, *part, whole)[0] for part in parts)
    torch.testing.assert_close(right, leaves[0].grad)
    wrong = torch.zeros_like(q)
    for key, value in parts:
        weights = torch.exp(q @ key.mT / 2 - whole.lse[..., None])
        d_weights = d_out @ value.mT
        local = (weights * d_weights).sum(dim=-1, keepdim=True)
        wrong += weights * (d_weights - local) @ key / 2
    assert (wrong - leaves[0].grad).abs().max() > 0.1


def test_replacing_nan_by_zero_mends_the_forward_pass_only():
    """A row whose scores are all masked: softmax gives NaN, and its gradient stays NaN."""
    scores = torch.full((1, 3), -torch.inf, requires_grad=True)
    out = scores.softmax(dim=-1).nan_to_num()
    assert (out == 0).all()
    (gradient,) = torch.autograd.grad(out.sum(), scores)
    assert gradient.isnan().all()
    lses = torch.full((2, 3), -torch.inf, requires_grad=True)
    assert torch.autograd.grad(torch.logaddexp(*lses).sum(), lses)[0].isnan().all()


@pytest.mark.parametrize("P", [1, 2, 5])
def test_a_backward_turn_takes_2p_minus_1_transfers_and_a_forward_one_p_minus_1(P):
    class Counting(SimulatedRing):
        n_transfers = 0

        def _promise(self, messages, rank):
            self.n_transfers += rank == 0
            return super()._promise(messages, rank)

    circle, S = Counting(P), 10 * P
    q, k, v = (torch.randn(1, n, S, 4, requires_grad=True) for n in (4, 2, 2))
    out = simulate(q, k, v, zigzag(S, P), circle=circle)
    assert circle.n_transfers == P - 1
    out.sum().backward()
    assert circle.n_transfers == P - 1 + (2 * P - 1 if P > 1 else 0)


def test_a_sharded_cache_is_read_in_1_over_n_of_the_time_only_if_it_is_long():
    """The slowest rank reads the most tokens."""
    rule = Interleave(4, 16)
    assert max(rule.length(rank, 17) for rank in range(4)) / 17 > 0.94
    assert max(rule.length(rank, 100_000) for rank in range(4)) / 100_000 < 0.2503


def test_one_kv_head_is_copied_to_every_rank_when_heads_are_split_and_cut_when_tokens_are():
    """A latent cache, as MLA keeps it, has one head for all queries."""
    by_head = [len(kv) for _, kv in ulysses_heads(128, 1, 8)]
    assert by_head == [1] * 8
    assert [Interleave(8).length(rank, 8000) for rank in range(8)] == [1000] * 8
