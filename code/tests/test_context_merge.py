"""Partial softmaxes join exactly, and blocks go backward with what all blocks gave together."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from tiny_models import assert_near

from kvpipe.context.blocks import block_backward, block_forward, plain_backward, plain_forward
from kvpipe.context.experiments import accumulation_errors
from kvpipe.context.merge import Partial, empty, merge, merge_into

B, H, K, T, S, D = 2, 6, 2, 5, 9, 8


@pytest.fixture
def qkv():
    torch.manual_seed(3)
    return [torch.randn(B, n, m, D, dtype=torch.float64) for n, m in ((H, T), (K, S), (K, S))]


@pytest.fixture
def mask():
    """Of row 0 of the batch, query 2 sees nothing and query 4 only keys of the second half."""
    generator = torch.Generator().manual_seed(4)
    seen = torch.rand(B, 1, T, S, generator=generator) < 0.6
    seen[0, 0, 2] = False
    seen[0, 0, 4] = torch.arange(S) >= 5
    return seen


def truth(q, k, v, mask):
    """Softmax attention in float64, written out; blind queries 0 and minus infinity."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = (q @ k.mT / D**0.5).masked_fill(~mask, -torch.inf)
    blind = ~mask.any(-1, keepdim=True)
    weights = scores.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)
    return Partial(weights @ v, scores.logsumexp(-1))


def cut(q, k, v, mask, ends):
    """Partial results over the keys between consecutive ends."""
    return [
        block_forward(q, k[:, :, a:b], v[:, :, a:b], mask[..., a:b])
        for a, b in itertools.pairwise(ends)
    ]


@pytest.mark.parametrize("ends", [(0, 9), (0, 5, 9), (0, 1, 4, 4, 9), tuple(range(10))])
def test_parts_over_disjoint_keys_join_to_one_softmax(qkv, mask, ends):
    expected = truth(*qkv, mask)
    found = merge(*cut(*qkv, mask, ends))
    torch.testing.assert_close(found.out, expected.out)
    torch.testing.assert_close(found.lse, expected.lse)
    assert (found.out[0, :, 2] == 0).all() and (found.lse[0, :, 2] == -torch.inf).all()
    assert found.out.shape == (B, H, T, D) and found.lse.shape == (B, H, T)


def test_order_and_grouping_do_not_matter(qkv, mask):
    parts = cut(*qkv, mask, (0, 2, 5, 9))
    expected = merge(*parts)
    for a, b, c in itertools.permutations(parts):
        for found in (merge(a, b, c), merge(merge(a, b), c), merge(a, merge(b, c))):
            torch.testing.assert_close(found, expected)


def test_in_place_merging_gives_the_same(qkv, mask):
    q = qkv[0]
    total = empty(q)
    assert total.out.dtype == torch.float64
    parts = cut(*qkv, mask, (0, 2, 2, 5, 9))
    for part in parts:
        merge_into(total, part)
    torch.testing.assert_close(total, merge(*parts))
    blind = empty(q)
    merge_into(blind, empty(q))
    assert torch.equal(blind.out, torch.zeros_like(q)) and (blind.lse == -torch.inf).all()


def test_three_numbers_by_hand():
    """Scores 0, log 2 and log 5 with values 8, 4 and 2: (8 + 8 + 10) / 8."""
    parts = [
        Partial(torch.tensor([[[[value]]]]), torch.tensor([[[weight]]]).log())
        for value, weight in ((8.0, 1.0), (4.0, 2.0), (2.0, 5.0))
    ]
    found = merge(*parts)
    assert found.out.item() == pytest.approx(26 / 8)
    assert found.lse.exp().item() == pytest.approx(8)
    mean = sum(part.out.item() for part in parts) / 3
    assert mean == pytest.approx(14 / 3), "averaging is another number"


@pytest.mark.parametrize("gap", [90.0, 200.0, 1e4, 1e30])
@pytest.mark.parametrize("join", ["merge", "in place"])
def test_no_gap_between_parts_overflows(gap, join):
    """exp(88.8) is infinite in float32."""
    low = Partial(torch.full((1, 1, 2, 3), 5.0), torch.tensor([[[-gap, 10.0]]]))
    high = Partial(torch.full((1, 1, 2, 3), 7.0), torch.tensor([[[10.0, 10.0 + gap]]]))
    found = merge(low, high)
    if join == "in place":
        found = Partial(low.out.clone(), low.lse.clone())
        merge_into(found, high)
    assert torch.equal(found.out, high.out)
    torch.testing.assert_close(found.lse, high.lse)


def test_a_part_that_saw_nothing_counts_nothing_whatever_its_output_holds():
    seen = Partial(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3))
    garbage = Partial(torch.full((1, 2, 3, 4), torch.nan), torch.full((1, 2, 3), -torch.inf))
    for found in (merge(seen, garbage), merge(garbage, seen), merge(garbage, seen, garbage)):
        torch.testing.assert_close(found, seen)
    both = merge(garbage, garbage)
    assert (both.out == 0).all() and (both.lse == -torch.inf).all()


def test_gradients_pass_through_a_merge_and_are_finite_where_nothing_is_seen(qkv, mask):
    leaves = [x.requires_grad_() for x in qkv]
    g = torch.randn(B, H, T, D, dtype=torch.float64)
    expected = torch.autograd.grad((truth(*leaves, mask).out * g).sum(), leaves)
    parts = [plain_part(*leaves, mask, slice(a, b)) for a, b in itertools.pairwise((0, 2, 5, 9))]
    found = torch.autograd.grad((merge(*parts).out * g).sum(), leaves)
    torch.testing.assert_close(found, expected)


def plain_part(q, k, v, mask, keys):
    """A differentiable partial result whose blind rows are cut out of the graph."""
    mask = mask[..., keys]
    blind = ~mask.any(-1)
    group = q.shape[1] // k.shape[1]
    k, v = (x[:, :, keys].repeat_interleave(group, dim=1) for x in (k, v))
    scores = (q @ k.mT / D**0.5).masked_fill(~mask & ~blind[..., None], -torch.inf)
    out = (scores.softmax(-1) @ v).masked_fill(blind[..., None], 0)
    return Partial(out, scores.logsumexp(-1).masked_fill(blind, -torch.inf))


def test_the_gradient_of_two_empty_parts_is_zero():
    lses = [torch.full((1, 1, 2), -torch.inf, requires_grad=True) for _ in range(2)]
    outs = [torch.zeros(1, 1, 2, 3, requires_grad=True) for _ in range(2)]
    merge(*map(Partial, outs, lses)).out.sum().backward()
    assert all((x.grad == 0).all() for x in (*lses, *outs))
    naive = torch.logaddexp(*lses)
    assert torch.autograd.grad(naive.sum(), lses)[0].isnan().all(), "what it is spared"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_sums_are_kept_in_float32_or_wider(dtype):
    part = Partial(torch.ones(1, 1, 2, 3, dtype=dtype), torch.zeros(1, 1, 2))
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    assert merge(part, part).out.dtype == empty(part.out).out.dtype == kept


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        ([], "nothing to merge"),
        ([((1, 2, 3, 4), (1, 2, 3)), ((1, 2, 5, 4), (1, 2, 5))], "part 1 has out"),
        ([((1, 2, 3, 4), (1, 2, 3, 1))], r"lse \(1, 2, 3, 1\); expected"),
    ],
)
def test_parts_that_do_not_match_are_refused(shapes, told):
    with pytest.raises(ValueError, match=told):
        merge(*(Partial(torch.zeros(out), torch.zeros(lse)) for out, lse in shapes))


# Blocks.

KINDS = ["all", "causal", "masked"]


def block_arguments(kind, qkv, mask):
    q, k, v = qkv
    if kind == "causal":
        return (q, k[:, :, :T], v[:, :, :T]), {"causal": True}, torch.ones(T, T).tril().bool()
    return (
        (q, k, v),
        {"mask": mask if kind == "masked" else None},
        (mask if kind == "masked" else torch.ones(T, S, dtype=torch.bool)),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("forward", [block_forward, plain_forward])
def test_a_block_forward_gives_output_and_log_sum_exp(qkv, mask, kind, forward):
    arguments, options, seen = block_arguments(kind, qkv, mask)
    expected = truth(*arguments, seen.expand(B, 1, *seen.shape[-2:]))
    found = forward(*arguments, **options)
    torch.testing.assert_close(found.out, expected.out)
    torch.testing.assert_close(found.lse, expected.lse)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backward", [block_backward, plain_backward])
def test_a_block_backward_is_the_gradient_when_the_block_is_all_there_is(qkv, mask, kind, backward):
    arguments, options, seen = block_arguments(kind, qkv, mask)
    leaves = [x.clone().requires_grad_() for x in arguments]
    d_out = torch.randn(B, H, T, D, dtype=torch.float64)
    seen = seen.expand(B, 1, *seen.shape[-2:])
    expected = torch.autograd.grad(truth(*leaves, seen).out, leaves, d_out)
    found = backward(d_out, *arguments, truth(*arguments, seen), **options)
    torch.testing.assert_close(tuple(found), expected)


@pytest.mark.parametrize("backward", [block_backward, plain_backward])
def test_shares_of_blocks_add_up_with_the_statistics_of_all_keys(qkv, mask, backward):
    """With those of the block alone, dq and dk are wrong; dv would even then be right."""
    leaves = [x.clone().requires_grad_() for x in qkv]
    d_out = torch.randn(B, H, T, D, dtype=torch.float64)
    expected = torch.autograd.grad(truth(*leaves, mask).out, leaves, d_out)
    q, k, v = qkv
    total = truth(*qkv, mask)
    halves = [
        backward(d_out, q, k[:, :, s], v[:, :, s], total, mask[..., s])
        for s in (slice(0, 5), slice(5, 9))
    ]
    d_q = halves[0][0] + halves[1][0]
    d_k, d_v = (torch.cat([h[i] for h in halves], dim=2) for i in (1, 2))
    torch.testing.assert_close((d_q, d_k, d_v), expected)


def test_the_kernel_lies_about_rows_that_see_nothing_and_we_do_not(qkv, mask):
    q, k, v = (x.float() for x in qkv)
    bias = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    full = [x.repeat_interleave(3, dim=1) for x in (k, v)]
    assert (kernel(q, *full, 0.0, False, attn_mask=bias)[1][0, :, 2] == 0).all()
    found = block_forward(q, k, v, mask)
    assert (found.lse[0, :, 2] == -torch.inf).all() and (found.out[0, :, 2] == 0).all()


def test_a_block_of_no_keys_is_empty(qkv):
    q, k, v = qkv
    found = block_forward(q, k[:, :, :0], v[:, :, :0])
    assert (found.out == 0).all() and (found.lse == -torch.inf).all()


def test_query_heads_read_neighbouring_kv_heads(qkv):
    """As in Hugging Face's repeat_interleave, not in turns."""
    q, k, v = qkv
    expected = F.scaled_dot_product_attention(
        q, k.repeat_interleave(3, dim=1), v.repeat_interleave(3, dim=1)
    )
    assert_near(block_forward(q, k, v).out, expected, 1e-12)
    assert_near(plain_forward(q, k, v).out, expected, 1e-12)


@pytest.mark.parametrize("forward", [block_forward, plain_forward])
def test_a_block_in_16_bits_has_its_log_sum_exp_in_32(qkv, forward):
    q, k, v = (x.bfloat16() for x in qkv)
    found = forward(q, k, v)
    assert (found.out.dtype, found.lse.dtype) == (torch.bfloat16, torch.float32)
    expected = F.scaled_dot_product_attention(*(x.double() for x in (q, k, v)), enable_gqa=True)
    assert_near(found.out.double(), expected, 1e-2)  # bfloat16 keeps 8 bits


def test_a_sum_in_32_bits_stays_flat_and_one_in_16_grows():
    errors = accumulation_errors((1, 2, 8, 64))
    flat, growing = errors["float32"], errors["bfloat16"]
    assert max(flat) < 1.3 * flat[0]
    assert growing == sorted(growing) and 5 < growing[-1] / growing[0] < 8
