"""Attention is what its definition says, for every pattern of positions, and so is its gradient."""

import math

import pytest
import torch
from torch import Tensor

from kvpipe.attention import attention, attention_weights, visible

B, H, K, D = 2, 6, 3, 4
# Float64 sums of at most 16 terms of size about 1: rounding stays below 1e-14.
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def may_see(p: int, s: int, window: int | None) -> bool:
    """The contract, for one query at position p and one key at position s."""
    return 0 <= s <= p and (window is None or p - s < window)


def by_definition(q, k, v, q_positions, k_positions, window=None) -> tuple[Tensor, Tensor]:
    """Output and weights from the formula, one number at a time."""
    n_batch, n_heads, n_queries, size = q.shape
    n_kv_heads, n_keys = k.shape[1:3]
    out = [[[None] * n_queries for _ in range(n_heads)] for _ in range(n_batch)]
    weights = q.new_zeros(n_batch, n_heads, n_queries, n_keys)
    for b in range(n_batch):
        for h in range(n_heads):
            g = h // (n_heads // n_kv_heads)
            where = k_positions[b] if k_positions.ndim == 2 else k_positions[b, g]
            for t in range(n_queries):
                p = int(q_positions[b, t])
                keys = [s for s in range(n_keys) if may_see(p, int(where[s]), window)]
                scores = [(q[b, h, t] * k[b, g, s]).sum() / math.sqrt(size) for s in keys]
                total = sum(score.exp() for score in scores)
                row = q.new_zeros(v.shape[-1])
                for s, score in zip(keys, scores, strict=True):
                    weights[b, h, t, s] = (score.exp() / total).detach()
                    row = row + score.exp() / total * v[b, g, s]
                out[b][h][t] = row
    return torch.stack([torch.stack([torch.stack(r) for r in x]) for x in out]), weights


def tensors(n_queries: int, n_keys: int) -> list[Tensor]:
    torch.manual_seed(3)
    shapes = (B, H, n_queries, D), (B, K, n_keys, D), (B, K, n_keys, D)
    return [torch.randn(s, dtype=torch.float64).mul(1.5).requires_grad_() for s in shapes]


def positions(*rows) -> Tensor:
    return torch.tensor(rows)


LINE = positions(range(7), range(7))
PADDED = positions([-1, -1, 0, 1, 2, 3, 4], range(7))
GAPS = positions([0, 2, 3, 7, 8, 9, 15], [1, 2, 5, 6, 7, 11, 12])
ZIGZAG = positions([0, 1, 10, 11, 4, 5, 6], [6, 5, 4, 11, 10, 1, 0])
PER_HEAD = torch.tensor(
    [
        [[0, 1, 2, 3, 4], [0, 2, 5, 7, -1], [6, 7, 8, 9, 10]],
        [[3, 1, 0, 8, 9], [9, 9, 9, 9, 9], [-1, -1, -1, -1, -1]],
    ]
)
CASES = {
    "causal": (LINE, LINE, None),
    "causal inside a window": (LINE, LINE, 7),
    "causal in a smaller window": (LINE, LINE, 3),
    "window of one": (LINE, LINE, 1),
    "left padding": (PADDED, PADDED, None),
    "left padding of one token": (LINE - 1, LINE - 1, None),
    "left padding and window": (PADDED, PADDED, 2),
    "gaps": (GAPS, GAPS, None),
    "window longer than the row but not than its gaps": (GAPS, GAPS, 7),
    "window as long as the reach of the longer row": (GAPS, GAPS, 15),
    "shuffled": (ZIGZAG, ZIGZAG, None),
    "shuffled and window": (ZIGZAG, ZIGZAG, 4),
    "queries of one shard, keys of another": (GAPS, ZIGZAG, None),
    "chunk after a cache": (positions(range(4, 7), range(4, 7)), LINE, None),
    "chunk after a padded cache": (PADDED[:, 4:], PADDED, None),
    "decode": (positions([6], [6]), LINE, None),
    "decode at the edge of the window": (positions([6], [6]), LINE, 6),
    "decode, padded": (positions([4], [6]), PADDED, None),
    "decode before some keys": (positions([3], [2]), LINE, None),
    "decode of a padded row": (positions([-1], [6]), LINE, None),
    "kept keys differ by head": (positions([8, 9], [3, 10]), PER_HEAD, None),
    "kept keys differ by head, window": (positions([8, 9], [3, 10]), PER_HEAD, 4),
    "decode, kept keys differ by head": (positions([10], [9]), PER_HEAD, None),
    "keys all later": (positions([0, 1], [2, 3]), GAPS + 4, None),
    "all padding": (LINE * 0 - 1, LINE * 0 - 1, None),
}


@pytest.mark.parametrize("case", CASES)
def test_output_and_gradients_follow_the_definition(case):
    q_positions, k_positions, window = CASES[case]
    q, k, v = tensors(q_positions.shape[1], k_positions.shape[-1])
    expected, _ = by_definition(q, k, v, q_positions, k_positions, window)
    out = attention(q, k, v, q_positions, k_positions, window)
    torch.testing.assert_close(out, expected, **EXACT)
    direction = torch.randn_like(out)
    ours = torch.autograd.grad(out, (q, k, v), direction, materialize_grads=True)
    if expected.requires_grad:
        theirs = torch.autograd.grad(expected, (q, k, v), direction, materialize_grads=True)
    else:  # no query sees anything: the definition's output is a constant
        theirs = [torch.zeros_like(x) for x in (q, k, v)]
    for mine, true in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, true, **EXACT)


@pytest.mark.parametrize("case", CASES)
def test_weights_follow_the_definition(case):
    q_positions, k_positions, window = CASES[case]
    q, k, v = tensors(q_positions.shape[1], k_positions.shape[-1])
    _, expected = by_definition(q, k, v, q_positions, k_positions, window)
    weights = attention_weights(q, k, q_positions, k_positions, window)
    assert weights.dtype == torch.float32
    # float32 has 24 bits; a softmax of scores near 10 loses about 10 of its units.
    torch.testing.assert_close(weights.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_visibility_is_the_contract_position_by_position(case):
    q_positions, k_positions, window = CASES[case]
    mask = visible(q_positions, k_positions, window)
    heads = 1 if k_positions.ndim == 2 else K
    assert mask.shape == (B, heads, q_positions.shape[1], k_positions.shape[-1])
    for b, h, t, s in torch.cartesian_prod(*(torch.arange(n) for n in mask.shape)).tolist():
        where = k_positions[b] if k_positions.ndim == 2 else k_positions[b, h]
        assert bool(mask[b, h, t, s]) == may_see(int(q_positions[b, t]), int(where[s]), window)


def test_random_positions_follow_the_definition():
    generator = torch.Generator().manual_seed(5)
    for trial in range(30):
        T, S = (int(n) for n in torch.randint(1, 6, (2,), generator=generator))
        shape = (B, S) if trial % 2 else (B, K, S)
        q_positions = torch.randint(-1, 9, (B, T), generator=generator)
        k_positions = torch.randint(-1, 9, shape, generator=generator)
        window = None if trial % 3 else int(torch.randint(1, 9, (1,), generator=generator))
        q, k, v = tensors(T, S)
        expected, _ = by_definition(q, k, v, q_positions, k_positions, window)
        out = attention(q, k, v, q_positions, k_positions, window)
        torch.testing.assert_close(out, expected, **EXACT)


def test_a_query_that_sees_nothing_returns_zeros_and_finite_gradients():
    q, k, v = tensors(7, 7)
    out = attention(q, k, v, PADDED, PADDED)
    assert (out[0, :, :2] == 0).all() and (out[0, :, 2:] != 0).all()
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0][0, :, :2] == 0).all()


def test_what_nobody_sees_does_not_matter():
    q, k, v = tensors(7, 7)
    before = attention(q, k, v, PADDED, PADDED)
    with torch.no_grad():
        k[0, :, :2] = 1e3
        v[0, :, :2] = -1e3
    torch.testing.assert_close(attention(q, k, v, PADDED, PADDED), before, rtol=0, atol=0)


def test_the_order_of_the_tokens_does_not_matter():
    order = torch.tensor([6, 0, 3, 1, 5, 2, 4])
    q, k, v = tensors(7, 7)
    straight = attention(q, k, v, LINE, LINE)
    shuffled = attention(*(x[:, :, order] for x in (q, k, v)), LINE[:, order], LINE[:, order])
    torch.testing.assert_close(shuffled, straight[:, :, order], **EXACT)


def calls_of_the_kernel(monkeypatch, *arguments) -> list[dict]:
    """Options with which `attention` calls torch's kernel."""
    seen, kernel = [], torch.nn.functional.scaled_dot_product_attention

    def spy(q, k, v, **options):
        seen.append(options)
        return kernel(q, k, v, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    attention(*arguments)
    return seen


@pytest.mark.parametrize(
    ("case", "is_causal"),
    [
        ("causal", True),
        ("causal inside a window", True),
        ("gaps", True),
        ("window as long as the reach of the longer row", None),
        ("decode", False),
        ("left padding", None),
        ("shuffled", None),
        ("chunk after a cache", None),
        ("causal in a smaller window", None),
        ("decode at the edge of the window", None),
    ],
)
def test_no_mask_is_built_where_positions_prove_the_plain_case(monkeypatch, case, is_causal):
    q_positions, k_positions, window = CASES[case]
    q, k, v = tensors(q_positions.shape[1], k_positions.shape[1])
    [options] = calls_of_the_kernel(monkeypatch, q, k, v, q_positions, k_positions, window)
    if is_causal is None:
        assert options["attn_mask"].dtype == torch.bool
    else:
        assert "attn_mask" not in options and options.get("is_causal", False) == is_causal


def test_half_precision_stays_close():
    q, k, v = (x.detach() for x in tensors(7, 7))
    expected, _ = by_definition(q, k, v, PADDED, PADDED, 4)
    out = attention(*(x.bfloat16() for x in (q, k, v)), PADDED, PADDED, 4)
    # bfloat16 keeps 8 bits: inputs off by 2^-9 move scores near 10 by 0.02 and values by 0.4 %.
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=0.05 * v.abs().max().item())
