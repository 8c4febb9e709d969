"""Attention over ranks, forward and backward, is attention in one process.

Oracles: `kvpipe.attention` (chapter 1, itself tested against Hugging Face) in the same precision,
torch's own ring, and ring_attention_pytorch where it is installed. Tolerances are relative to the
scale of each tensor: float32 carries 1.2e-7 per operation, and a merge adds a few of them.
"""

import functools
import itertools

import pytest
import torch
from context_ranks import (
    attend_as_pair,
    attend_by_ring_attention_pytorch,
    attend_by_torch,
    awkward_tensors,
    complaints,
    lose_a_neighbour,
)
from tiny_models import assert_near

from kvpipe import comm
from kvpipe.attention import attention
from kvpipe.context import (
    PARTITIONS,
    Shape,
    all_gather_backward_bytes,
    partition,
    ring_backward_bytes,
    ring_forward_bytes,
    ulysses_forward_bytes,
    zigzag,
)
from kvpipe.context.attend import METHODS, context_attention, shard, simulate, unshard
from kvpipe.context.circle import Exchange, Gather, Shift, SimulatedRing
from kvpipe.context.jobs import Job, attend, join
from kvpipe.context.plan import Plan

FORWARD, BACKWARD = 2e-6, 5e-6
LAUNCH = {"timeout_s": 200, "threads": 1}
B, D = 2, 10
SEEN = [(True, None), (False, None), (True, 7)]  # causal, window


def example(H: int, K: int, S: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> list:
    """q, k, v and a gradient of the output."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(B, n, S, D, generator=generator, dtype=dtype) for n in (H, K, K, H)]


def serial(q, k, v, d_out, causal=True, window=None):
    """Output and gradients of attention in one piece."""
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    positions = torch.arange(q.shape[2]).expand(q.shape[0], -1)
    last = positions if causal else torch.full_like(positions, q.shape[2])
    out = attention(*leaves, last, positions, window)
    return out.detach(), *torch.autograd.grad(out, leaves, d_out)


def assert_all_near(found, expected):
    """The output and each of the three gradients on its own, at its own scale."""
    for name, a, b in zip(("out", "dq", "dk", "dv"), found, expected, strict=True):
        try:
            assert_near(a, b, FORWARD if name == "out" else BACKWARD)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


# One process.


@pytest.mark.parametrize(("H", "K", "S"), [(6, 2, 31), (4, 4, 24), (4, 1, 17)])
@pytest.mark.parametrize(("causal", "window"), SEEN)
@pytest.mark.parametrize("P", [1, 2, 3, 4])
def test_a_simulated_ring_gives_the_output_and_gradients_of_one_piece(P, causal, window, H, K, S):
    q, k, v, d_out = example(H, K, S)
    expected = serial(q, k, v, d_out, causal, window)
    for name, method in itertools.product(PARTITIONS, METHODS):
        if method == "ulysses" and H % P:
            continue
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        laid = partition(name, S, P)
        out = simulate(*leaves, laid, causal=causal, window=window, method=method)
        assert_all_near((out.detach(), *torch.autograd.grad(out, leaves, d_out)), expected)


@pytest.mark.parametrize(("H", "K", "P"), [(28, 7, 2), (4, 1, 2), (8, 2, 8), (9, 3, 3)])
def test_ulysses_copies_kv_heads_that_several_ranks_read(H, K, P):
    q, k, v, d_out = example(H, K, 19)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = simulate(*leaves, zigzag(19, P), method="ulysses")
    found = out.detach(), *torch.autograd.grad(out, leaves, d_out)
    assert_all_near(found, serial(q, k, v, d_out))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("padding", [(0, 3), (1, 1)])
def test_padding_stays_invisible(method, window, padding):
    """With 3 tokens of padding, rank 0 holds nothing else of row 1. With 1 in both rows, positions
    are alike and ascend, and still are no plain tokens.
    """
    q, k, v, d_out = example(4, 2, 8)
    positions = torch.stack([torch.arange(8) - n for n in padding]).clamp(min=-1)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = attention(*leaves, positions, positions, window)
    grads = torch.autograd.grad(expected, leaves, d_out)
    laid = partition("contiguous", 8, 4)
    plan = Plan(shard(positions, laid))
    shards = [shard(x, laid, dim=2) for x in leaves]
    out = unshard(context_attention(SimulatedRing(4), plan, *shards, window, method), laid, dim=2)
    assert_all_near((out.detach(), *torch.autograd.grad(out, leaves, d_out)), (expected, *grads))
    assert (out[1, :, : padding[1]] == 0).all()


def test_full_attention_sees_no_padding_either():
    q, k, v, _ = example(4, 2, 8)
    positions = torch.stack([torch.arange(8), torch.arange(8) - 3]).clamp(min=-1)
    laid = zigzag(8, 2)
    plan = Plan(shard(positions, laid), causal=False)
    shards = [shard(x, laid, dim=2) for x in (q, k, v)]
    for method in METHODS:
        found = unshard(context_attention(SimulatedRing(2), plan, *shards, None, method), laid, 2)
        assert_near(found[0], serial(q, k, v, q, causal=False)[0][0], FORWARD)
        alone = [x[1:, :, 3:] for x in (q, k, v)]
        assert_near(found[1, :, 3:], serial(*alone, alone[0], causal=False)[0][0], FORWARD)
        assert (found[1, :, :3] == 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_scores_a_hundred_times_as_large_do_not_overflow(method):
    q, k, v, d_out = example(6, 2, 24)
    q = q * 100
    out = simulate(q, k, v, zigzag(24, 3), method=method)
    assert out.isfinite().all()
    exact = serial(*(x.double() for x in (q, k, v, d_out)))[0]
    # A score of 1000 has an absolute error of 1e-4 in float32, and so has its weight.
    assert_near(out.double(), exact, 1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_number_formats_come_back_as_they_went_in(dtype):
    q, k, v, d_out = example(4, 2, 24, dtype=torch.float64)
    exact = serial(q, k, v, d_out)
    leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    out = simulate(*leaves, zigzag(24, 3))
    grads = torch.autograd.grad(out, leaves, d_out.to(dtype))
    for found, expected in zip((out, *grads), exact, strict=True):
        assert found.dtype == dtype
        # bfloat16 keeps 8 bits of inputs, weights and results.
        assert_near(found.detach().double(), expected, 4e-2 if dtype == torch.bfloat16 else 1e-13)


def test_what_nobody_sees_is_not_computed(monkeypatch):
    from kvpipe.context import ring

    computed = []

    def counted(q, k, v, mask=None, causal=False):
        n, m = q.shape[2], k.shape[2]
        computed.append(n * (n + 1) // 2 if causal else n * m)
        return real(q, k, v, mask, causal)

    real = ring.block_forward
    monkeypatch.setattr(ring, "block_forward", counted)
    q, k, v, _ = example(4, 2, 64)
    for name, calls in (("contiguous", 10), ("zigzag", 16), ("striped", 16)):
        computed.clear()
        simulate(q, k, v, partition(name, 64, 4))
        assert (len(computed), sum(computed)) == (calls, 64 * 65 // 2), name


def test_the_next_block_is_on_its_way_before_this_one_is_used(monkeypatch):
    from kvpipe.context import ring

    events, real = [], ring.block_forward
    monkeypatch.setattr(ring, "block_forward", lambda *a: events.append("use") or real(*a))
    q, k, v, _ = example(4, 2, 12)
    plan = Plan.of(zigzag(12, 3), B)
    kv = torch.stack([k, v])[:, :, :, :4]
    program = ring.ring_forward(0, plan, q[:, :, :4], kv, None)
    message = next(program)
    while True:
        events.append("post")
        assert isinstance(message, Shift) and message.arriving == kv.shape
        try:
            message = program.send(lambda: events.append("take") or kv)
        except StopIteration:
            break
    assert events == ["post", "use", "take", "post", "use", "take", "use"]


def test_a_ring_passes_to_the_next_and_an_exchange_to_the_named():
    def program(rank):
        a = yield Shift(torch.tensor([rank]), (1,))
        b = yield Gather(torch.tensor([10 * rank]), [(1,)] * 3)
        c = yield Exchange([torch.tensor([rank, other]) for other in range(3)], [(2,)] * 3)
        return a().tolist(), [x.item() for x in b()], [x.tolist() for x in c()]

    circle = SimulatedRing(3)
    found = circle.run([program(rank) for rank in range(3)])
    for rank in range(3):
        everyone = [[other, rank] for other in range(3)]
        assert found[rank] == ([(rank - 1) % 3], [0, 10, 20], everyone)
    assert circle.sent_bytes == dict.fromkeys(range(3), 8 + 2 * 8 + 2 * 16)


def test_shards_come_back_in_order():
    x = torch.arange(2 * 31 * 3).view(2, 31, 3)
    for name, P in itertools.product(PARTITIONS, (1, 2, 5)):
        laid = partition(name, 31, P)
        parts = shard(x, laid)
        assert [part.shape[1] for part in parts] == list(laid.lengths)
        assert torch.equal(unshard(parts, laid), x)
    with pytest.raises(ValueError, match="partition is of 31 tokens, axis 2 has 3"):
        shard(x, laid, dim=2)


# Bytes.


@pytest.mark.parametrize(("H", "K"), [(6, 2), (6, 6)])
@pytest.mark.parametrize("P", [1, 2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_bytes_sent_are_those_of_the_closed_forms(method, P, H, K):
    S = 24
    q, k, v, d_out = example(H, K, S)
    shape = Shape(P, S, H, K, D, batch=B, itemsize=4)
    circle = SimulatedRing(P)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = simulate(*leaves, zigzag(S, P), method=method, circle=circle)
    forward = list(circle.sent_bytes.values())
    torch.autograd.grad(out, leaves, d_out)
    both = list(circle.sent_bytes.values())
    expected = {
        "ring": (ring_forward_bytes(shape), ring_backward_bytes(shape)),
        "all_gather": (ring_forward_bytes(shape), all_gather_backward_bytes(shape)),
        "ulysses": (ulysses_forward_bytes(shape),) * 2,
    }[method]
    if method == "ulysses" and K % P:  # ranks differ; the closed form is their mean
        forward, both = ([sum(x) / len(x)] for x in (forward, both))
    for found, one in ((forward, expected[0]), (both, sum(expected))):
        assert found == pytest.approx([one] * len(found), abs=1 if K % P else 0)  # rounded


# Real ranks.


@functools.cache
def jobs(P: int) -> dict[str, Job]:
    q, k, v, d_out = example(6, 2, 31)
    found = {
        f"{name} {method} {causal} {window}": Job(q, k, v, d_out, name, method, causal, window)
        for name in PARTITIONS
        for method in METHODS
        for causal, window in SEEN
        if method != "ulysses" or P in (1, 2, 3)
    }
    even = [x[:, :, :24] for x in (q, k, v, d_out)]
    return found | {"even": Job(*even), "even gather": Job(*even, method="all_gather")}


@pytest.mark.timeout(280)
@pytest.mark.parametrize("P", [1, 2, 3, 4])
def test_real_ranks_give_the_output_and_gradients_of_one_piece(P):
    cases = jobs(P)
    ranks = comm.launch(attend, P, list(cases.values()), **LAUNCH)
    for i, (name, job) in enumerate(cases.items()):
        done = join([rank[i] for rank in ranks], job.partition(P))
        expected = serial(job.q, job.k, job.v, job.d_out, job.causal, job.window)
        assert_all_near((done.out, *done.grads), expected)
        shape = Shape(P, 24, 6, 2, D, batch=B, itemsize=4)
        if name == "even":
            assert done.forward_bytes == ring_forward_bytes(shape)
            assert done.backward_bytes == ring_backward_bytes(shape)
        if name == "even gather":
            assert done.backward_bytes == all_gather_backward_bytes(shape)


def test_a_ring_of_two_in_a_world_of_three_knows_its_own_ranks():
    job = jobs(2)["zigzag ring True None"]
    idle, *pair = comm.launch(attend_as_pair, 3, [job], **LAUNCH)
    assert idle == []
    done = join([rank[0] for rank in pair], job.partition(2))
    assert_all_near((done.out, *done.grads), serial(job.q, job.k, job.v, job.d_out))


@pytest.mark.parametrize(("P", "rotate"), [(2, "alltoall"), (4, "allgather")])
def test_torchs_own_ring_gives_the_same(P, rotate):
    q, k, v, d_out = example(4, 4, 24, seed=1)  # it has no GQA and no unequal blocks
    cases = [Job(q, k, v, d_out, name) for name in ("zigzag", "contiguous")]
    cases.append(Job(q, k, v, d_out, "contiguous", causal=False))
    theirs = comm.launch(attend_by_torch, P, cases, rotate, **LAUNCH)
    if theirs[0] is None:
        pytest.skip("this torch has no private ring attention under the known names")
    ours = comm.launch(attend, P, cases, **LAUNCH)
    for i in range(len(cases)):
        for rank in range(P):
            mine = ours[rank][i]
            assert_all_near((mine.out, *mine.grads), theirs[rank][i])


PROBLEMS = {
    "other layout": "ranks disagree about the attention: rank 0 has {'lengths': ",
    "more heads": "ranks disagree about the attention: rank 0 has {'queries': ",
    "longer block": "rank 1: q .* expected B = 2 and T = ",
    "other dtype": "{'dtype': 'torch.float32'}, rank 1 {'dtype': 'torch.float64'}",
    "mixed dtypes": "rank 1: q is torch.float32, k torch.bfloat16",
    "integers": "expected one floating-point type",
    "other window": "rank 1 {'window': 5}",
    "other method": "rank 1 {'method': 'all_gather'}",
    "too many ranks for ulysses": "query heads cannot be dealt evenly to 2 ranks",
}


def test_ranks_that_disagree_are_all_told_the_same_and_go_on():
    job = jobs(2)["zigzag ring True None"]
    told = comm.launch(complaints, 2, job, list(PROBLEMS), **LAUNCH)
    for problem, pattern in PROBLEMS.items():
        messages = {rank[problem] for rank in told}
        assert len(messages) == 1, (problem, messages)
        with pytest.raises(ValueError, match=pattern):
            raise ValueError(messages.pop())
    assert all(rank["afterwards"].startswith("(2, 6, ") for rank in told)


@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ("is killed", comm.RankError, "rank 1 failed first"),
        ("stands still", comm.RankError, "TimeoutError: rank [02], .* did not answer"),
    ],
)
def test_a_lost_neighbour_ends_the_run_with_its_name(how, error, told):
    job = jobs(3)["zigzag ring True None"]
    with pytest.raises(error, match=told):
        comm.launch(lose_a_neighbour, 3, job, how, 3.0, timeout_s=60, threads=1)


def test_tensors_need_not_be_contiguous():
    job = jobs(2)["zigzag ring True None"]
    for views, plain in comm.launch(awkward_tensors, 2, job, **LAUNCH):
        torch.testing.assert_close(views, plain)


# Mistakes that need no ring.


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"method": "tree"}, "no method is called 'tree'; there are ring, all_gather, ulysses"),
        ({"window": 0}, "window of 0 tokens"),
        ({"window": 3, "causal": False}, "window of 3 tokens needs causal attention"),
    ],
)
def test_impossible_options_are_refused(change, told):
    q, k, v, _ = example(4, 2, 12)
    with pytest.raises(ValueError, match=told):
        simulate(q, k, v, zigzag(12, 3), **change)


def test_a_plan_for_other_ranks_is_refused():
    q, k, v, _ = example(4, 2, 12)
    shards = [shard(x, zigzag(12, 3), dim=2) for x in (q, k, v)]
    with pytest.raises(ValueError, match="plan is for 2 ranks, the ring has 3"):
        context_attention(SimulatedRing(3), Plan.of(zigzag(12, 2), B), *shards)
    with pytest.raises(ValueError, match="H a multiple of K"):
        simulate(q[:, :3], k, v, zigzag(12, 3))
    with pytest.raises(ValueError, match=r"ranks \[1\] have no tokens"):
        Plan([torch.zeros(1, 2), torch.zeros(1, 0)])
    with pytest.raises(ValueError, match="one B for all ranks"):
        Plan([torch.zeros(1, 2), torch.zeros(2, 2)])
    with pytest.raises(ValueError, match="ring of 0 ranks"):
        SimulatedRing(0)


# Another implementation.


@pytest.mark.parametrize("P", [2, 3])
def test_ring_attention_pytorch_gives_the_same_forward(P):
    """Forward only, without GQA: its gradients of keys and values are sums of both."""
    pytest.importorskip("ring_attention_pytorch", reason="ring_attention_pytorch not installed")
    q, k, v, d_out = example(4, 4, 24)
    cases = [Job(q, k, v, layout="contiguous", causal=causal) for causal in (True, False)]
    cases.append(Job(q, k, v, layout="striped"))
    ranks = comm.launch(attend_by_ring_attention_pytorch, P, cases, **LAUNCH)
    for i, job in enumerate(cases):
        found = unshard([rank[i] for rank in ranks], job.partition(P), dim=2)
        ours = simulate(q, k, v, job.partition(P), causal=job.causal)
        assert_near(ours, found, FORWARD)
        assert_near(found, serial(q, k, v, d_out, job.causal)[0], FORWARD)
