"""Who holds, computes and sends what, decided without tensors: brute force and closed forms."""

import itertools

import pytest

from kvpipe.context import (
    PARTITIONS,
    Interleave,
    Shape,
    all_gather_backward_bytes,
    contiguous,
    contiguous_efficiency,
    critical_path,
    decode_bytes,
    efficiency,
    hiding_tokens,
    holder,
    pairs_per_rank,
    pairs_per_step,
    partition,
    ring_backward_bytes,
    ring_forward_bytes,
    seen_by_each,
    source,
    striped,
    tile,
    tiles,
    ulysses_forward_bytes,
    ulysses_heads,
    zigzag,
)

# 31, 7, 9 and 2999 are lengths at which public implementations lost or doubled tokens.
SIZES = [(7, 2), (9, 4), (10, 4), (31, 2), (64, 4), (2999, 4), (5, 1), (16, 8), (8, 3)]


@pytest.mark.parametrize(("S", "P"), SIZES)
@pytest.mark.parametrize("name", PARTITIONS)
def test_every_token_lies_on_one_rank_and_finds_its_way_back(name, S, P):
    laid = partition(name, S, P)
    assert sorted(laid.order) == list(range(S))
    assert [laid.order[place] for place in laid.inverse] == list(range(S))
    assert len(laid.lengths) == P and sum(laid.lengths) == S
    for rank in range(P):
        tokens = laid.tokens(rank)
        assert tokens == sorted(tokens) and len(tokens) == laid.lengths[rank]
        assert {laid.owner(token) for token in tokens} == {rank}
    limit = 2 if name == "zigzag" else 1  # two blocks, each at most one token longer
    assert max(laid.lengths) - min(laid.lengths) <= limit


def test_the_partitions_are_the_textbook_ones():
    assert [contiguous(8, 2).tokens(r) for r in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [zigzag(8, 2).tokens(r) for r in range(2)] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert [striped(8, 2).tokens(r) for r in range(2)] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [zigzag(7, 2).tokens(r) for r in range(2)] == [[0, 1, 6], [2, 3, 4, 5]]
    assert contiguous(7, 3).lengths == (3, 2, 2)


@pytest.mark.parametrize(
    ("name", "S", "P", "told"),
    [
        ("zigzag", 7, 4, "7 tokens cannot be laid zigzag over 4 ranks: that needs 8"),
        ("contiguous", 3, 4, "that needs 4"),
        ("striped", 0, 1, "that needs 1"),
        ("zigzag", 8, 0, "at least 1"),
        ("diagonal", 8, 2, "no partition is called 'diagonal'; there are contiguous, zigzag"),
    ],
)
def test_a_sequence_too_short_is_refused_with_what_it_needs(name, S, P, told):
    with pytest.raises(ValueError, match=told):
        partition(name, S, P)


def test_an_owner_outside_the_sequence_is_refused():
    with pytest.raises(ValueError, match=r"token 8 is outside 0\.\.7"):
        zigzag(8, 2).owner(8)


# What is seen.


def sees(query, key, causal, window):
    return not causal or (key <= query and (window is None or query - key < window))


CASES = [(True, None), (False, None), (True, 1), (True, 3), (True, 40)]


@pytest.mark.parametrize(("S", "P"), [(31, 2), (24, 3), (17, 4), (9, 1)])
@pytest.mark.parametrize(("causal", "window"), CASES)
@pytest.mark.parametrize("name", PARTITIONS)
def test_tiles_hold_exactly_what_is_visible(name, causal, window, S, P):
    """Against every pair on its own: nothing visible is outside, and the kind says the truth."""
    laid = partition(name, S, P)
    for rank, origin in itertools.product(range(P), repeat=2):
        queries, keys = laid.tokens(rank), laid.tokens(origin)
        found = tile(queries, keys, causal, window)
        seen = {
            (i, j)
            for i, q in enumerate(queries)
            for j, k in enumerate(keys)
            if sees(q, k, causal, window)
        }
        assert found.pairs == len(seen)
        rows, columns = range(len(queries))[found.rows], range(len(keys))[found.keys]
        box = set(itertools.product(rows, columns))
        assert seen <= box and (found.kind == "none") == (not seen)
        first, start = (rows[0], columns[0]) if box else (0, 0)
        triangle = {(i, j) for i, j in box if j - start <= i - first}
        by_kind = {"none": set(), "full": box, "causal": triangle, "masked": seen}
        assert seen == by_kind[found.kind]
        if found.kind == "causal":
            assert len(rows) == len(columns), "kernels disagree about other triangles"


@pytest.mark.parametrize(("S", "P"), [(64, 4), (31, 2), (29, 5), (7, 2)])
@pytest.mark.parametrize("name", PARTITIONS)
def test_no_partition_needs_a_mask_and_zigzag_tiles_have_no_waste(name, S, P):
    found = [t for step in tiles(partition(name, S, P)) for t in step]
    assert {t.kind for t in found} <= {"none", "full", "causal"}
    for t in found:
        if t.kind == "full":
            n_rows, n_keys = (s.stop - s.start for s in (t.rows, t.keys))
            assert t.pairs == n_rows * n_keys


def test_seen_by_each_is_empty_for_a_window_that_ends_before_the_keys():
    assert seen_by_each([2, 9], [0, 1, 2], window=2) == [(1, 3), (3, 3)]


# Work.


def test_at_step_s_the_block_of_rank_r_minus_s_is_in_hand():
    for P in (1, 2, 5):
        met = {(rank, source(rank, s, P)) for rank in range(P) for s in range(P)}
        assert met == set(itertools.product(range(P), repeat=2))
        for rank, s in itertools.product(range(P), repeat=2):
            assert holder(source(rank, s, P), s, P) == rank
            assert source(rank, s + 1, P) == source((rank - 1) % P, s, P), "it comes from before"


def test_64_tokens_on_4_ranks():
    assert pairs_per_rank(contiguous(64, 4)) == [136, 392, 648, 904]
    assert pairs_per_rank(zigzag(64, 4)) == [520, 520, 520, 520]
    assert pairs_per_rank(striped(64, 4)) == [496, 512, 528, 544]
    assert pairs_per_step(contiguous(64, 4))[1] == [0, 256, 256, 256]
    assert pairs_per_step(zigzag(64, 4)) == [[136] * 4] + [[128] * 4] * 3


@pytest.mark.parametrize(("S", "P"), [(64, 4), (128, 8), (24, 3), (10, 1)])
def test_work_is_what_the_closed_forms_say(S, P):
    b, c = S // P, S // (2 * P)
    assert pairs_per_rank(contiguous(S, P)) == [r * b * b + b * (b + 1) // 2 for r in range(P)]
    assert critical_path(contiguous(S, P)) == b * b * (P - 1) + b * (b + 1) // 2
    stripes = [b * (r + 1) + P * b * (b - 1) // 2 for r in range(P)]
    assert pairs_per_rank(striped(S, P)) == stripes
    assert critical_path(striped(S, P)) == P * b * (b + 1) // 2
    assert efficiency(striped(S, P)) == pytest.approx((S + 1) / (S + P))
    if S % (2 * P) == 0:
        assert pairs_per_step(zigzag(S, P)) == [
            [2 * c * c + (c if step == 0 else 0)] * P for step in range(P)
        ]
        assert efficiency(zigzag(S, P)) == 1


@pytest.mark.parametrize(("causal", "window"), CASES)
@pytest.mark.parametrize("name", PARTITIONS)
def test_all_ranks_together_compute_every_visible_pair_once(name, causal, window):
    S = 37
    pairs = sum(sees(q, k, causal, window) for q in range(S) for k in range(S))
    for P in (1, 2, 3, 5):
        assert sum(pairs_per_rank(partition(name, S, P), causal, window)) == pairs


def test_efficiency_of_contiguous_blocks_falls_to_p_over_2p_minus_1():
    assert efficiency(contiguous(64, 4)) == pytest.approx(0.575, abs=5e-4)
    assert efficiency(contiguous(128, 8)) == pytest.approx(0.535, abs=5e-4)
    assert contiguous_efficiency(8) == pytest.approx(0.533, abs=5e-4)
    assert efficiency(contiguous(4096, 8)) == pytest.approx(contiguous_efficiency(8), rel=1e-3)
    assert efficiency(contiguous(64, 4), causal=False) == 1


# Traffic.


def test_llama3_8b_with_64k_tokens_on_8_ranks():
    gqa = Shape(8, 65_536, 32, 8, 128)
    mha = Shape(8, 65_536, 32, 32, 128)
    mib = 2**20
    assert (ring_forward_bytes(gqa), ring_backward_bytes(gqa)) == (224 * mib, 736 * mib)
    assert (ring_forward_bytes(mha), ring_backward_bytes(mha)) == (896 * mib, 2944 * mib)
    assert (ulysses_forward_bytes(gqa), ulysses_forward_bytes(mha)) == (140 * mib, 224 * mib)
    assert all_gather_backward_bytes(gqa) == (224 + 7 * 64) * mib
    assert decode_bytes(gqa) == 7 * 32 * 129 * 4


def test_one_rank_sends_nothing():
    one = Shape(1, 64, 4, 2, 8)
    counts = (ring_forward_bytes, ring_backward_bytes, all_gather_backward_bytes)
    assert [count(one) for count in (*counts, ulysses_forward_bytes, decode_bytes)] == [0] * 5


def test_unequal_blocks_have_no_single_count():
    with pytest.raises(ValueError, match="31 tokens do not divide evenly over 2 ranks"):
        Shape(2, 31, 4, 2, 8)


@pytest.mark.parametrize(
    ("H", "K", "P", "kv"),
    [
        (8, 4, 2, [(0, 1), (2, 3)]),
        (4, 1, 2, [(0,), (0,)]),  # one KV head, two ranks: a copy for each
        (28, 7, 2, [(0, 1, 2, 3), (3, 4, 5, 6)]),  # head 3 serves both
        (9, 3, 9, [(0,)] * 3 + [(1,)] * 3 + [(2,)] * 3),
        (6, 6, 1, [(0, 1, 2, 3, 4, 5)]),
    ],
)
def test_ulysses_gives_every_rank_the_kv_heads_that_its_queries_read(H, K, P, kv):
    dealt = ulysses_heads(H, K, P)
    assert [tuple(heads) for _, heads in dealt] == kv
    assert [head for heads, _ in dealt for head in heads] == list(range(H))


@pytest.mark.parametrize(
    ("H", "K", "P", "told"),
    [
        (9, 3, 2, "9 query heads cannot be dealt evenly to 2 ranks; Ulysses works with 1, 3, 9"),
        (4, 2, 8, "Ulysses works with 1, 2, 4 ranks here"),
        (12, 8, 4, "12 query heads are not a multiple of 8"),
    ],
)
def test_ulysses_refuses_what_cannot_be_dealt_and_names_what_can(H, K, P, told):
    with pytest.raises(ValueError, match=told):
        ulysses_heads(H, K, P)


def test_transfers_hide_behind_blocks_of_f_over_b_tokens():
    assert hiding_tokens(312e12, 300e9) == pytest.approx(1040)  # A100, NVLink
    assert hiding_tokens(312e12, 12.5e9) == pytest.approx(24_960)  # A100, 100 Gbit/s
    h100 = hiding_tokens(989e12, 450e9)
    assert h100 == pytest.approx(2198, abs=1)
    assert hiding_tokens(989e12, 450e9, 32, 8, causal=True) == pytest.approx(h100 / 2)
    assert hiding_tokens(989e12, 450e9, itemsize=4) == 2 * h100


# Decoding.


@pytest.mark.parametrize("P", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("block", [1, 2, 4, 16])
def test_owner_place_and_length_agree_with_dealing_out_by_hand(P, block):
    kept = [[] for _ in range(P)]
    rule = Interleave(P, block)
    for n_tokens in range(70):
        assert [rule.length(rank, n_tokens) for rank in range(P)] == [len(x) for x in kept]
        rank = n_tokens // block % P  # whose turn it is
        assert (rule.owner(n_tokens), rule.place(n_tokens)) == (rank, len(kept[rank]))
        kept[rank].append(n_tokens)


def test_17_tokens_in_blocks_of_16_leave_two_of_four_ranks_empty():
    assert [Interleave(4, 16).length(rank, 17) for rank in range(4)] == [16, 1, 0, 0]


def test_an_interleave_needs_ranks_and_tokens():
    with pytest.raises(ValueError, match="0 ranks and blocks of 4 tokens"):
        Interleave(0, 4)
    with pytest.raises(ValueError, match="blocks of 0 tokens"):
        Interleave(2, 0)
