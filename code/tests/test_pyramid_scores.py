"""Scores, pooling and selection against loops, by hand, and under padding."""

import math

import pytest
import torch

from kvpipe.attention import attention_weights
from kvpipe.pyramid import H2O, Full, Observed, PyramidKV, Random, Scheduled, SnapKV, StreamingLLM
from kvpipe.pyramid.quantize import dequantize, quantize, quantized_bytes
from kvpipe.pyramid.scores import pool, query_scores
from kvpipe.pyramid.selection import in_window, select, take

B, H, K, S, D, W = 2, 6, 2, 13, 4, 3  # three query heads per KV head


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def padded_positions() -> torch.Tensor:
    """Two rows of 13 places; the second has 4 of padding."""
    row = torch.arange(S)
    return torch.stack([row, (row - 4).clamp(min=-1)])


def observed(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> Observed:
    """All that a method may look at after a prompt; positions (B, S)."""
    per_head = positions[:, None].expand(-1, k.shape[1], -1)
    return Observed(q, k, positions, per_head, positions.amax(dim=1), layer=2)


def slow_scores(q, k, q_positions, k_positions, window=None):
    """Attention received by each key, in loops and float64: (B, H, S)."""
    out = torch.zeros(B, H, S, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            for j, at in enumerate(q_positions[b].tolist()):
                seen = [
                    i
                    for i, p in enumerate(k_positions[b].tolist())
                    if 0 <= p <= at and (window is None or at - p < window)
                ]
                dots = [
                    float(q[b, h, j].double() @ k[b, h // 3, i].double()) / math.sqrt(D)
                    for i in seen
                ]
                exps = [math.exp(x - max(dots)) for x in dots]
                for i, e in zip(seen, exps, strict=True):
                    out[b, h, i] += e / sum(exps)
    return out


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("group", ["mean", "max", "sum"])
def test_scores_are_the_attention_that_keys_receive(group, window):
    q, k, positions = drawn(B, H, W, D), drawn(B, K, S, D, seed=1), padded_positions()
    expected = slow_scores(q, k, positions[:, -W:], positions, window).view(B, K, 3, S)
    expected = {"mean": expected.mean(2), "max": expected.amax(2), "sum": expected.sum(2)}[group]
    for k_positions in (positions, positions[:, None].expand(-1, K, -1)):
        actual = query_scores(q, k, positions[:, -W:], k_positions, window, group)
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-6)


def test_an_average_divides_by_the_queries_that_are_no_padding():
    q, k, positions = drawn(B, H, S, D), drawn(B, K, S, D, seed=1), padded_positions()
    total = query_scores(q, k, positions, positions)
    mean = query_scores(q, k, positions, positions, average=True)
    torch.testing.assert_close(mean, total / torch.tensor([13.0, 9.0])[:, None, None])


def test_more_queries_than_a_block_give_the_same_sum():
    S = 300
    q, k = drawn(1, 2, S, D), drawn(1, 1, S, D, seed=1)
    positions = torch.arange(S)[None]
    weights = attention_weights(q, k, positions, positions)
    actual = query_scores(q, k, positions, positions)
    torch.testing.assert_close(actual, weights.sum(dim=2).mean(dim=1, keepdim=True))


def test_one_loud_head_counts_by_its_group_rule():
    """Head 0 looks at key 1 alone, heads 1 and 2 mostly at key 2."""
    k = torch.zeros(1, 1, 4, 2)
    k[0, 0, 1], k[0, 0, 2] = torch.tensor([40.0, 0.0]), torch.tensor([0.0, 1.5])
    q = torch.tensor([[4.0, 0.0], [0.0, 2.0], [0.0, 2.0]])[None, :, None]
    positions = torch.arange(4)[None]
    scores = {g: query_scores(q, k, positions[:, -1:], positions, group=g) for g in ("mean", "max")}
    assert scores["max"].argmax() == 1 and scores["mean"].argmax() == 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_are_refused(bad):
    q, k = drawn(B, H, W, D), drawn(B, K, S, D, seed=1)
    k[1, 0, 7, 2] = bad
    positions = torch.arange(S).expand(B, S)
    with pytest.raises(ValueError, match=r"attention scores are NaN"):
        query_scores(q, k, positions[:, -W:], positions)


# --- pooling -----------------------------------------------------------------


def slow_pool(row: list[float], kernel: int, kind: str, edge_bias: bool) -> list[float]:
    out = []
    for i in range(len(row)):
        near = row[max(0, i - kernel // 2) : i + kernel // 2 + 1]
        n = kernel if edge_bias else len(near)
        out.append(max(near) if kind == "max" else sum(near) / n)
    return out


@pytest.mark.parametrize("kernel", [1, 3, 5, 7, 31])
@pytest.mark.parametrize("kind, edge_bias", [("max", False), ("average", False), ("average", True)])
def test_pooling_looks_at_history_only(kernel, kind, edge_bias):
    scores = drawn(B, K, S).abs()
    is_history = torch.zeros(B, K, S, dtype=torch.bool)
    is_history[0, :, :10] = True
    is_history[1, :, 4:10] = True
    actual = pool(scores, is_history, kernel, kind, edge_bias)
    for b, start in ((0, 0), (1, 4)):
        for h in range(K):
            row = slow_pool(scores[b, h, start:10].tolist(), kernel, kind, edge_bias)
            expected = torch.zeros(S)
            expected[start:10] = torch.tensor(row)
            torch.testing.assert_close(actual[b, h], expected)


def test_only_the_biased_average_holds_edges_down():
    flat, is_history = torch.ones(1, 1, 9), torch.ones(1, 1, 9, dtype=torch.bool)
    assert pool(flat, is_history, 5, "average").unique().tolist() == [1]
    assert pool(flat, is_history, 5, "max").unique().tolist() == [1]
    biased = pool(flat, is_history, 5, "average", edge_bias=True)[0, 0]
    torch.testing.assert_close(biased[:3], torch.tensor([0.6, 0.8, 1.0]))


@pytest.mark.parametrize("kernel", [0, -1, 2, 4])
def test_kernels_without_a_middle_are_refused(kernel):
    with pytest.raises(ValueError, match=rf"kernel of {kernel} has no middle"):
        SnapKV(32, kernel=kernel)
    with pytest.raises(ValueError, match=r"no middle"):
        pool(torch.ones(1, 1, 9), torch.ones(1, 1, 9, dtype=torch.bool), kernel)


# --- selection ---------------------------------------------------------------


def test_every_head_keeps_its_own_best_in_the_order_of_the_text():
    scores = torch.tensor([[[0, 9, 1, 8, 0, 0, 0], [7, 0, 0, 0, 6, 0, 0]]]).float()
    positions = torch.arange(7).expand(1, 2, 7)
    kept = select(scores, positions, torch.tensor([6]), torch.tensor([4]), window=2)
    assert kept.positions.tolist() == [[[1, 3, 5, 6], [0, 4, 5, 6]]]
    assert kept.indices.tolist() == kept.positions.tolist()
    x = drawn(1, 2, 7, D)
    torch.testing.assert_close(take(x, kept.indices)[0, 1], x[0, 1, [0, 4, 5, 6]], rtol=0, atol=0)


def test_padding_never_outranks_a_token():
    """Row 1 keeps 7 of its 9 tokens though padding has the best scores; row 0 keeps 5."""
    positions = padded_positions()[:, None].expand(-1, K, -1)
    scores = torch.where(positions < 0, 99.0, drawn(B, K, S).abs() * 0)
    kept = select(scores, positions, torch.tensor([12, 8]), torch.tensor([5, 7]), window=W)
    assert kept.positions[0, 0].tolist() == [-1, -1, 0, 1, 10, 11, 12]
    assert kept.positions[1, 1].tolist() == [0, 1, 2, 3, 6, 7, 8]


def test_the_window_survives_equal_scores():
    for value in (0.0, 1.0, 1e30):
        scores, positions = torch.full((1, 1, 50), value), torch.arange(50).expand(1, 1, 50)
        kept = select(scores, positions, torch.tensor([49]), torch.tensor([9]), window=8)
        assert kept.positions[0, 0].tolist() == [0, *range(42, 50)]


def test_a_count_below_the_window_is_refused():
    positions = torch.arange(9).expand(1, 2, 9)
    with pytest.raises(ValueError, match=r"row 0 may keep 3 tokens, fewer than its window of 4"):
        select(torch.ones(1, 2, 9), positions, torch.tensor([8]), torch.tensor([3]), window=4)


def test_a_row_shorter_than_the_window_is_kept_whole():
    row = torch.arange(S)
    positions = torch.stack([row, (row - 11).clamp(min=-1)])[:, None].expand(-1, K, -1)
    kept = select(drawn(B, K, S), positions, torch.tensor([12, 1]), torch.tensor([6, 2]), window=4)
    assert kept.positions[1].tolist() == [[-1, -1, -1, -1, 0, 1]] * K


# --- methods -----------------------------------------------------------------

METHODS = [
    PyramidKV(7, window=W),
    SnapKV(7, window=W, pooling="average", kernel=3),
    H2O(7, window=W),
    StreamingLLM(7, window=W, sinks=2),
    Random(7, window=W, seed=3),
]


def kept_by(method, q, k, positions, n: int) -> torch.Tensor:
    seen = observed(q, k, positions)
    counts = torch.full((len(positions),), n)
    scores = method.scores(seen)
    return select(scores, seen.k_positions, seen.last, counts, method.window).positions


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_padding_changes_nothing(method):
    """A row's choice is the one it makes alone, whatever is beside it and however it is padded."""
    q, k, positions = drawn(B, H, S, D), drawn(B, K, S, D, seed=1), padded_positions()
    together = kept_by(method, q, k, positions, 7)
    alone = kept_by(method, q[1:, :, 4:], k[1:, :, 4:], positions[1:, 4:], 7)
    assert together[1].tolist() == alone[0].tolist()
    swapped = kept_by(method, q.flip(0), k.flip(0), positions.flip(0), 7)
    assert swapped.tolist() == together.flip(0).tolist()


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_every_method_keeps_its_window(method):
    q, k, positions = drawn(B, H, S, D), drawn(B, K, S, D, seed=1), padded_positions()
    kept = kept_by(method, q, k, positions, 5)
    for row, last in enumerate((12, 8)):
        assert kept[row, :, -W:].tolist() == [list(range(last - W + 1, last + 1))] * K


def test_equal_heads_choose_as_their_repeated_keys_would():
    """GQA: a KV head whose group agrees chooses what plain multi-head attention chooses."""
    q, k, positions = drawn(B, K, S, D), drawn(B, K, S, D, seed=1), padded_positions()
    grouped = kept_by(METHODS[1], q.repeat_interleave(3, dim=1), k, positions, 7)
    assert grouped.tolist() == kept_by(METHODS[1], q, k, positions, 7).tolist()


def test_streaming_keeps_the_first_and_the_last():
    method = StreamingLLM(6, window=2, sinks=2)
    kept = kept_by(method, drawn(B, H, S, D), drawn(B, K, S, D), padded_positions(), 6)
    assert kept[0, 0].tolist() == [0, 1, 9, 10, 11, 12]
    assert kept[1, 1].tolist() == [0, 1, 5, 6, 7, 8]


def test_sinks_are_the_first_tokens_wherever_their_count_begins():
    positions = torch.tensor([[-1, -1, 7, 8, 9, 10, 11, 12]])
    q, k = drawn(1, H, 8, D), drawn(1, K, 8, D)
    kept = kept_by(StreamingLLM(4, window=2, sinks=2), q, k, positions, 4)
    assert kept[0, 0].tolist() == [7, 8, 11, 12]


def test_random_draws_evenly_and_by_its_seed():
    positions = torch.arange(40)[None]
    q, k = drawn(1, 6, 40, D), drawn(1, 2, 40, D)
    counts = torch.zeros(40)
    for seed in range(300):
        for head in kept_by(Random(13, window=4, seed=seed), q, k, positions, 13)[0]:
            counts[head] += 1
    # 9 of 36 each, 600 draws: mean 150, standard deviation 10.6; six of them are left for luck.
    assert counts[36:].tolist() == [600] * 4
    assert counts[:36].min() > 86 and counts[:36].max() < 214
    first, again = (kept_by(Random(13, seed=1), q, k, positions, 13) for _ in range(2))
    assert first.tolist() == again.tolist()
    assert first[0, 0].tolist() != first[0, 1].tolist()


def test_heavy_hitters_are_what_all_queries_look_at():
    """Key 5 is looked at by early queries only: H2O keeps it, a window of 2 does not."""
    q, k = torch.zeros(1, 1, 12, 2), torch.zeros(1, 1, 12, 2)
    k[0, 0, 5], q[0, 0, 5:9] = torch.tensor([9.0, 0.0]), torch.tensor([9.0, 0.0])
    q[0, 0, 9:] = torch.tensor([-9.0, 0.0])
    positions = torch.arange(12)[None]
    assert 5 in kept_by(H2O(4, window=2), q, k, positions, 4)[0, 0].tolist()
    assert 5 not in kept_by(SnapKV(4, window=2, kernel=1), q, k, positions, 4)[0, 0].tolist()


def test_budgets_are_the_methods_own():
    assert SnapKV(20).budgets(3, 100) == (20, 20, 20) == H2O(ratio=0.2).budgets(3, 100)
    assert PyramidKV(20, beta=4).budgets(3, 100) == (29, 20, 11)
    assert Scheduled(20, schedule=lambda *sizes: sizes[:3]).budgets(3, 100) == (3, 100, 20)
    assert Full().budgets(3, 100) == (100, 100, 100)
    assert SnapKV(ratio=0.01).budgets(2, 100) == (8, 8)  # never below the window


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "give one"),
        ({"budget": 20, "ratio": 0.5}, "give one"),
        ({"budget": 7}, "budget of 7 tokens per layer is less than the window of 8"),
        ({"budget": 20, "window": 0}, "0 window tokens"),
        ({"budget": 0.5, "window": 8}, "for a share of the prompt use ratio"),
        ({"ratio": 0.0}, "in .0, 1"),
        ({"ratio": 1.2}, "in .0, 1"),
        ({"budget": 20, "beta": 0.5}, "beta is 0.5"),
        ({"budget": 20, "pooling": "min"}, "pooling 'min'"),
        ({"budget": 20, "group": "median"}, "group 'median'"),
    ],
)
def test_options_that_make_no_method_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PyramidKV(**options)


# --- fewer bits --------------------------------------------------------------


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantising_errs_by_at_most_half_a_step(bits, dim):
    x = drawn(B, K, S, 6) * torch.tensor([0.1, 1, 50, 3, 1, 1e-3])
    stored = quantize(x, bits, dim)
    error = (dequantize(stored) - x).abs()
    # Half a step, and float32 rounding of a value as large as the largest.
    assert (error <= stored.scale / 2 + 1e-6 * x.abs().max()).all()
    assert error.max() > 0 and stored.codes.amax() > 0
    assert stored.codes.shape[-1] == (6 if bits == 8 else 3)


def test_a_constant_slice_and_extremes_come_back_exactly():
    x = torch.full((1, 1, 3, 4), 2.5)
    torch.testing.assert_close(dequantize(quantize(x, 4, 2)), x, rtol=0, atol=0)
    x[0, 0, 1] = -7.5
    torch.testing.assert_close(dequantize(quantize(x, 4, 2)), x)
    assert dequantize(quantize(x.bfloat16(), 8, 3)).dtype == torch.bfloat16


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_bytes_count_scales(bits):
    k, v = quantize(drawn(B, K, S, 6), bits, 2), quantize(drawn(B, K, S, 6), bits, 3)
    assert k.nbytes + v.nbytes == quantized_bytes(S, K, 6, bits, rows=B)


def test_what_cannot_be_quantised_is_refused():
    with pytest.raises(ValueError, match=r"3 bits are not supported; use 4 or 8"):
        quantize(drawn(1, 1, 3, 4), 3, 2)
    with pytest.raises(ValueError, match=r"head size 5 is odd"):
        quantize(drawn(1, 1, 3, 5), 4, 2)
    with pytest.raises(ValueError, match=r"nothing to quantise"):
        quantize(drawn(1, 1, 0, 4), 8, 2)


def test_the_window_is_by_position():
    positions = torch.tensor([[[-1, 0, 3, 7, 8]]])
    assert in_window(positions, torch.tensor([8]), 2)[0, 0].tolist() == [False] * 3 + [True] * 2
    assert not in_window(torch.full((1, 1, 3), -1), torch.tensor([-1]), 4).any()
