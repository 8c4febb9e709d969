"""Schedules: complete, executable, free of deadlock, and in the order others use."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from kvpipe.pipeline import (
    BUILDERS,
    Op,
    Recv,
    Schedule,
    Send,
    build,
    equal_segments,
    equal_work_segments,
    gpipe,
    interleaved_1f1b,
    just_in_time_program,
    one_f_one_b,
    output,
    program,
    round_robin,
    run_synchronously,
    segment_work,
    seq1f1b,
    simulate,
    validate,
    zb_h1,
    zbv,
)

RANKS = (1, 2, 3, 4, 5)
MICROBATCHES = (1, 2, 3, 4, 5, 7, 8, 9)


def grid():
    """Every builder for M below, equal to, above and not a multiple of P, and several v and k."""
    for p in RANKS:
        for m in MICROBATCHES:
            yield from (gpipe(p, m), one_f_one_b(p, m), zbv(p, m), round_robin(p, m, 3))
            for v in (1, 2, 3):
                yield from (interleaved_1f1b(p, m, v), zb_h1(p, m, v))
            for k in (1, 2, 3):
                yield seq1f1b(p, m, k)


def words(schedule: Schedule, rank: int) -> str:
    return " ".join(map(str, schedule.order[rank]))


def edited(schedule: Schedule, rank: int, *ops: str | Op, **fields) -> Schedule:
    """The schedule with another order on one rank."""
    order = list(schedule.order)
    order[rank] = tuple(parse(op) if isinstance(op, str) else op for op in ops)
    return replace(schedule, order=tuple(order), **fields)


def parse(text: str) -> Op:
    head, _, segment = text.partition(".")
    kind = next(letter for letter in head if letter.isalpha())
    chunk, microbatch = head.split(kind)
    return Op(kind, int(microbatch), int(chunk), int(segment or 0))


# What a schedule is.


def test_every_schedule_of_the_grid_is_valid():
    for schedule in grid():
        validate(schedule)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (gpipe(2, 2), ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"]),
        (one_f_one_b(2, 3), ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"]),
        (one_f_one_b(3, 1), ["0F0 0B0", "1F0 1B0", "2F0 2B0"]),
        (
            interleaved_1f1b(2, 2, 2),
            ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"],
        ),
        (
            zb_h1(2, 3),
            ["0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"],
        ),
        (
            seq1f1b(2, 2, 2),
            [
                "0F0 0F0.1 0F1 0B0.1 0F1.1 0B0 0B1.1 0B1",
                "1F0 1F0.1 1B0.1 1F1 1B0 1F1.1 1B1.1 1B1",
            ],
        ),
        (zbv(1, 2), ["0F0 1F0 1I0 1W0 0F1 0I0 0W0 1F1 1I1 1W1 0I1 0W1"]),
        (round_robin(2, 2, 2), ["0F0 0F1 0F0.1 0F1.1", "1F0 1F1 1F0.1 1F1.1"]),
    ],
    ids=lambda value: f"{value.name}-{value.n_ranks}" if isinstance(value, Schedule) else "",
)
def test_orders_written_out_by_hand(schedule, expected):
    assert [words(schedule, rank) for rank in range(schedule.n_ranks)] == expected


def test_chunks_are_placed_in_a_loop_or_a_v():
    assert interleaved_1f1b(3, 3, 2).placement == (0, 1, 2, 0, 1, 2)
    assert zbv(4, 8).placement == (0, 1, 2, 3, 3, 2, 1, 0)
    assert zbv(4, 8).chunks(1) == (1, 6)
    assert interleaved_1f1b(3, 3, 2).chunks(1) == (1, 4)


def test_results_go_to_the_rank_of_the_next_chunk_and_nowhere_else():
    loop, v, decoding = interleaved_1f1b(3, 3, 2), zbv(3, 5), round_robin(3, 2, 4)
    assert loop.receiver(parse("2F1")) == 0  # the loop closes: chunk 3 is on rank 0
    assert loop.receiver(parse("5F1")) is None  # the loss stays
    assert loop.receiver(parse("3B1")) == 2
    assert loop.receiver(parse("0B1")) is None
    assert v.receiver(parse("2F1")) is None  # the turn of the V stays on its rank
    assert v.receiver(parse("3F1")) == 1
    assert v.receiver(parse("3I1")) is None
    assert v.receiver(parse("4I1")) == 2
    assert v.receiver(parse("4W1")) is None
    assert decoding.receiver(parse("2F1.2")) == 0  # the token returns
    assert decoding.returns_token(parse("2F1.2"))
    assert decoding.receiver(parse("2F1.3")) is None  # the last token has no next step
    assert not decoding.returns_token(parse("1F1.2"))
    assert round_robin(1, 2, 4).receiver(parse("0F1.2")) is None


def test_every_result_sent_is_needed_by_the_receiver_exactly_once():
    for schedule in (interleaved_1f1b(3, 4, 2), zbv(3, 5), seq1f1b(3, 3, 2), round_robin(3, 4, 3)):
        for rank, order in enumerate(schedule.order):
            for op in order:
                target = schedule.receiver(op)
                for other in range(schedule.n_ranks):
                    users = [o for o in schedule.order[other] if output(op) in schedule.needs(o)]
                    if other != rank and op.kind != "W":
                        assert len(users) == (other == target), f"{schedule.name} {op}"


def test_warm_up_of_1f1b_is_the_distance_to_the_last_rank():
    for p in RANKS:
        for m in MICROBATCHES:
            schedule = one_f_one_b(p, m)
            for rank, order in enumerate(schedule.order):
                before_first_backward = [op.kind for op in order].index("B")
                assert before_first_backward == min(p - rank, m)


def test_schedules_import_without_torch():
    code = "import kvpipe.pipeline, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


# The same order as torch.distributed.pipelining.


def torch_schedules():
    return pytest.importorskip("torch.distributed.pipelining.schedules")


def torch_order(name: str, p: int, m: int, v: int | None = None) -> list[list[Op]]:
    """torch's compute order per rank, as our operations."""
    visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    ranks = visualizer.get_schedule_ops(name, p, m, num_stages_per_rank=v)
    return [from_torch(actions) for actions in ranks]


def from_torch(actions) -> list[Op]:
    return [
        Op(a.computation_type.value, a.microbatch_index, a.stage_index)
        for a in actions
        if a is not None and a.is_compute_op
    ]


def as_lists(schedule: Schedule) -> list[list[Op]]:
    return [list(order) for order in schedule.order]


def test_gpipe_order_equals_torch():
    for p in RANKS:
        for m in MICROBATCHES:
            assert as_lists(gpipe(p, m)) == torch_order("GPipe", p, m)


def test_1f1b_order_equals_torch():
    for p in RANKS:
        for m in range(p, 10):  # torch refuses M < P
            expected = torch_order("1F1B", p, m)
            # torch 2.13 numbers the forwards of the last rank's table from 1; its runtime,
            # which does not use the table, numbers them from 0.
            if expected[-1][0].microbatch == 1:
                expected[-1] = [
                    op._replace(microbatch=op.microbatch - 1) if op.kind == "F" else op
                    for op in expected[-1]
                ]
            assert as_lists(one_f_one_b(p, m)) == expected


@pytest.mark.parametrize(
    ("name", "builder"), [("Interleaved1F1B", interleaved_1f1b), ("InterleavedZeroBubble", zb_h1)]
)
def test_interleaved_order_equals_torch(name, builder):
    compared = 0
    for p in (2, 3, 4, 5):
        for m in range(1, 13):
            if m % max(1, m // p):
                continue  # torch refuses rounds of uneven size
            for v in (2, 3):
                assert as_lists(builder(p, m, v)) == torch_order(name, p, m, v)
                compared += 1
    assert compared > 50


def test_zb_h1_order_equals_torch_rules_for_one_chunk_per_rank():
    torch = torch_schedules()
    for p in RANKS:
        for m in MICROBATCHES:
            for rank in range(p):
                # torch's class wants two chunks; the rule behind it takes any number.
                ahead = torch._get_warmup_ops(rank, 1, m, p, m, multiply_factor=1)
                ops = torch._get_1f1b_rank_ops(
                    1, p, ahead, m - ahead, ahead, rank,
                    lambda _, rank=rank: rank, lambda _, rank=rank: rank,
                    num_1f1b_microbatches=rank, enable_zero_bubble=True,
                )  # fmt: skip
                assert list(zb_h1(p, m).order[rank]) == from_torch(ops)


def test_zbv_order_and_placement_equal_torch():
    utils = pytest.importorskip("torch.distributed.pipelining._utils")
    for p in RANKS:
        mapping = utils.generate_stage_to_rank_mapping(p, 2 * p, style="v")
        assert zbv(p, 1).placement == tuple(mapping[chunk] for chunk in range(2 * p))
        for m in MICROBATCHES:
            assert as_lists(zbv(p, m)) == torch_order("ZBVZeroBubble", p, m, 2)


def test_torch_accepts_and_executes_our_tables():
    torch = torch_schedules()
    for schedule in grid():
        if not schedule.trains or schedule.n_segments > 1:
            continue  # torch knows neither segments nor decoding steps
        table = {
            rank: [
                torch._Action(op.chunk, torch._ComputationType(op.kind), op.microbatch)
                for op in order
            ]
            for rank, order in enumerate(schedule.order)
        }
        n_chunks, ranks = schedule.n_chunks, schedule.placement
        torch._validate_schedule(table, schedule.n_ranks, n_chunks, schedule.n_microbatches)
        with_comms = torch._add_send_recv(table, lambda stage, ranks=ranks: ranks[stage], n_chunks)
        torch._simulate_comms_compute(with_comms, lambda stage, ranks=ranks: ranks[stage], n_chunks)


# What validate refuses.

ONE = one_f_one_b(2, 2)  # 0F0 0F1 0B0 0B1 | 1F0 1B0 1F1 1B1
SPLIT = zb_h1(2, 1)  # 0F0 0I0 0W0 | 1F0 1I0 1W0
SEQ = seq1f1b(1, 1, 2)  # 0F0 0F0.1 0B0.1 0B0


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (edited(ONE, 0, "0F0", "0F1", "0B0"), r"micro-batch 1, chunk 0.*expected.*'B': 1"),
        (edited(ONE, 0, "0F0", "0F1", "0B0", "0B1", "0B1"), r"micro-batch 1, chunk 0.*'B': 2"),
        (edited(ONE, 0, "0F0", "0F0", "0F1", "0B0", "0B1"), r"micro-batch 0, chunk 0.*'F': 2"),
        (edited(ONE, 0, "0F0", "0B0"), r"micro-batch 1, chunk 0, segment 0 is run never"),
        (edited(SPLIT, 0, "0F0", "0I0"), r"chunk 0.*'I': 1\}; expected"),
        (edited(SPLIT, 0, "0F0", "0I0", "0W0", "0B0"), r"chunk 0"),
        (edited(ONE, 0, "0B0", "0F0", "0F1", "0B1"), r"before 0B0 and needs 0F0 \(still ahead"),
        (edited(SPLIT, 0, "0F0", "0W0", "0I0"), r"before 0W0 and needs 0I0"),
        (edited(SEQ, 0, "0F0", "0F0.1", "0B0", "0B0.1"), r"before 0B0 and needs 0I0.1"),
        (edited(SEQ, 0, "0F0.1", "0F0", "0B0.1", "0B0"), r"before 0F0.1 and needs 0F0 "),
        (
            edited(edited(ONE, 0, "0F0", "0B0", "0F1", "0B1"), 1, "1F1", "1F0", "1B0", "1B1"),
            r"rank 0 stands before 0B0 .*; rank 1 stands before 1F1",
        ),
        (edited(ONE, 0, "1F0", "0F1", "0B0", "0B1"), r"chunk 1 lives on rank 1"),
        (edited(ONE, 0, "0X0"), r"kind 'X'"),
        (edited(ONE, 0, "0F2"), r"microbatch 2 is not in 0 to 1"),
        (edited(ONE, 0, "0F0.1"), r"segment 1 is not in 0 to 0"),
        (edited(ONE, 0, "7F0"), r"chunk 7 is not in 0 to 1"),
        (edited(round_robin(1, 1), 0, "0F0", "0B0"), r"does not train"),
        (replace(ONE, placement=(0, 0)), r"places chunks on ranks \[0\]"),
        (replace(ONE, n_microbatches=0), r"needs a micro-batch"),
        (replace(SEQ, segment_tokens=(5,)), r"2 segments, but 1 lengths"),
    ],
)
def test_a_broken_schedule_is_refused_with_the_reason(schedule, reason):
    with pytest.raises(ValueError, match=reason):
        validate(schedule)


def test_validate_checks_that_a_program_computes_the_schedule():
    other = edited(ONE, 0, "0F0", "0F1", "0B1", "0B0")
    swapped = edited(other, 1, "1F0", "1F1", "1B1", "1B0")
    validate(swapped)
    with pytest.raises(ValueError, match="something else"):
        validate(ONE, program(swapped))
    backward_first = edited(ONE, 0, "0B0", "0F0", "0F1", "0B1")
    with pytest.raises(ValueError, match=r"needs 0F0 \(still ahead on rank 0\)"):
        validate(backward_first, just_in_time_program(backward_first))


# Sends and receives.


def test_programs_send_each_message_once_and_receive_it_before_its_use_in_link_order():
    for schedule in grid():
        sent: dict[tuple[int, int], list[Op]] = {}
        received: dict[tuple[int, int], list[Op]] = {}
        for rank, instructions in enumerate(program(schedule)):
            here: set[Op] = set()
            for step in instructions:
                if isinstance(step, Send):
                    assert step.op in here
                    sent.setdefault((rank, step.target), []).append(step.op)
                elif isinstance(step, Recv):
                    here.add(step.op)
                    received.setdefault((step.source, rank), []).append(step.op)
                else:
                    assert here.issuperset(schedule.needs(step))
                    here.add(output(step))
        assert sent == received
        n_messages = sum(
            schedule.receiver(op) is not None for order in schedule.order for op in order
        )
        assert sum(map(len, sent.values())) == n_messages
        assert all(len(set(messages)) == len(messages) for messages in sent.values())


def test_the_obvious_program_deadlocks_where_two_ranks_send_to_each_other():
    validate(gpipe(2, 4), just_in_time_program(gpipe(2, 4)))
    for schedule in (one_f_one_b(2, 4), interleaved_1f1b(2, 2, 2), round_robin(2, 2, 2)):
        with pytest.raises(ValueError, match="deadlocks under synchronous sends"):
            validate(schedule, just_in_time_program(schedule))
        validate(schedule, program(schedule))


def test_a_deadlock_names_what_every_rank_stands_before():
    with pytest.raises(ValueError) as error:
        run_synchronously(ONE, just_in_time_program(ONE))
    assert "rank 0 stands before: send 0F1 to rank 1" in str(error.value)
    assert "rank 1 stands before: send 1I0 to rank 0" in str(error.value)


def test_messages_out_of_order_on_a_link_are_a_deadlock():
    first, second = program(gpipe(2, 2))
    sends = [i for i, step in enumerate(first) if isinstance(step, Send)]
    a, b = sends[:2]
    # Both forwards first, then their messages in the wrong order.
    swapped = (*first[:a], *first[a + 1 : b], first[b], first[a], *first[b + 1 :])
    with pytest.raises(ValueError, match="deadlocks"):
        run_synchronously(gpipe(2, 2), (swapped, second))


def test_a_program_without_a_receive_does_not_finish():
    first, second = program(gpipe(2, 2))
    with pytest.raises(ValueError, match="rank 0 stands before: send 0F0 to rank 1"):
        run_synchronously(
            gpipe(2, 2), (first, tuple(s for s in second if s != Recv(parse("0F0"), 0)))
        )


def test_a_program_that_computes_before_it_receives_does_not_run():
    first, (receive, compute, *rest) = program(gpipe(2, 2))
    with pytest.raises(ValueError, match="rank 1 stands before: 1F0"):
        run_synchronously(gpipe(2, 2), (first, (compute, receive, *rest)))


@pytest.mark.parametrize(
    "schedule",
    [
        one_f_one_b(8, 1),  # warm-up longer than the work
        one_f_one_b(2, 1),
        one_f_one_b(4, 4),  # M = P
        interleaved_1f1b(2, 2, 2),  # send and receive cross between two ranks
        interleaved_1f1b(4, 5, 3),  # a last round shorter than P would deadlock here
        round_robin(2, 2, 8),
        round_robin(4, 9, 3),
    ],
    ids=lambda s: f"{s.name}-{s.n_ranks}-{s.n_microbatches}",
)
def test_cases_that_hang_other_pipelines_finish_here(schedule):
    validate(schedule)


def test_uneven_micro_batches_go_in_even_rounds_none_shorter_than_the_pipeline():
    firsts = [op.microbatch for op in interleaved_1f1b(4, 11, 2).order[0] if op.kind == "F"]
    assert firsts == [*range(6), *range(6), *range(6, 11), *range(6, 11)]


# What a builder refuses.


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "4"])
@pytest.mark.parametrize("name", BUILDERS)
def test_counts_below_one_are_refused_by_name(name, bad):
    with pytest.raises(ValueError, match=r"n_ranks must be .* at least 1"):
        build(name, bad, 4)
    with pytest.raises(ValueError, match=r"(n_microbatches|n_batches) must be .* at least 1"):
        build(name, 4, bad)
    option = BUILDERS[name][1]
    if option and bad is not True:
        with pytest.raises(ValueError, match=r"(chunks_per_rank|segments|n_steps) must be"):
            build(name, 2, 4, **{option: bad if isinstance(bad, int) else 0})


@pytest.mark.parametrize(
    ("name", "option", "reason"),
    [
        ("1f1b", {"chunks_per_rank": 2}, "option of interleaved-1f1b, zb-h1"),
        ("gpipe", {"segments": 2}, "option of seq1f1b, round-robin"),
        ("zbv", {"chunks_per_rank": 3}, "zbv works with chunks_per_rank=2 only, got 3"),
        ("seq1f1b", {"chunks_per_rank": 2}, "chunks_per_rank=1 only"),
        ("dualpipe", {}, "unknown schedule 'dualpipe'; there are gpipe, 1f1b"),
        ("seq1f1b", {"segments": (4, 0)}, "segment_tokens must be"),
        ("seq1f1b", {"segments": ()}, "segments must be"),
    ],
)
def test_an_option_a_schedule_cannot_use_is_refused_with_the_reason(name, option, reason):
    with pytest.raises(ValueError, match=reason):
        build(name, 2, 4, **option)


def test_build_passes_its_option_on():
    assert build("interleaved-1f1b", 2, 4, chunks_per_rank=3) == interleaved_1f1b(2, 4, 3)
    assert build("seq1f1b", 2, 4, segments=(5, 3)) == seq1f1b(2, 4, (5, 3))
    assert build("round-robin", 2, 4, segments=5) == round_robin(2, 4, 5)
    assert build("zbv", 2, 4, chunks_per_rank=2) == zbv(2, 4)
    assert build("zb-h1", 2, 4) == zb_h1(2, 4)
    assert build("gpipe", 2, 4, segments=1) == gpipe(2, 4)


# Segments.


def test_equal_segments_differ_by_one_token_at_most():
    assert equal_segments(10, 3) == (4, 3, 3)
    assert equal_segments(7, 7) == (1,) * 7
    with pytest.raises(ValueError, match="3 tokens cannot be cut into 4 segments"):
        equal_segments(3, 4)


def test_segment_work_counts_visible_pairs():
    assert segment_work([2, 3], per_token=10, per_pair=1) == (2 * 10 + 1 + 2, 3 * 10 + 3 + 4 + 5)
    # Per-token work alone is the length; the parts of a sequence sum to the whole.
    assert segment_work([2, 3], 1, 0) == (2, 3)
    assert sum(segment_work([2, 3, 4], 1, 1)) == segment_work([9], 1, 1)[0]


@pytest.mark.parametrize("per_pair", [0, 1e-3, 1, 100])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 8])
def test_equal_work_segments_are_equal_to_one_token(k, per_pair):
    n_tokens = 997
    lengths = equal_work_segments(n_tokens, k, per_token=1, per_pair=per_pair)
    assert sum(lengths) == n_tokens
    assert len(lengths) == k
    work = segment_work(lengths, 1, per_pair)
    # Each end of a segment is rounded by half a token at most, and the last token is the dearest.
    dearest_token = 1 + per_pair * n_tokens
    assert all(abs(w - sum(work) / k) <= dearest_token for w in work)
    assert all(a >= b - 1 for a, b in pairwise(lengths)), "later tokens cost more"


def test_equal_work_segments_keep_a_token_each_and_refuse_bad_costs():
    assert equal_work_segments(4, 4, 0, 1) == (1, 1, 1, 1)
    assert sum(equal_work_segments(5, 4, 0, 1)) == 5
    assert min(equal_work_segments(5, 4, 0, 1)) == 1
    with pytest.raises(ValueError, match="not both 0"):
        equal_work_segments(4, 2, 0, 0)
    with pytest.raises(ValueError, match="at least 0"):
        equal_work_segments(4, 2, 1, -1)


def test_seq1f1b_carries_its_lengths():
    schedule = seq1f1b(2, 2, equal_work_segments(100, 2, 0, 1))
    assert schedule.segment_tokens == (71, 29)
    assert schedule.segment_shares() == (0.71, 0.29)
    assert schedule.order == seq1f1b(2, 2, 2).order


def test_without_attention_cost_equal_work_is_equal_length():
    assert equal_work_segments(12, 4, 1, 0) == (3, 3, 3, 3)


def test_simulation_of_an_unfinishable_schedule_says_why():
    with pytest.raises(ValueError, match=r"rank 0 stands before 0B0 and needs 0F0"):
        simulate(edited(ONE, 0, "0B0", "0F0", "0F1", "0B1"))
    with pytest.raises(ValueError, match=r"needs 0F1 \(never run\)"):
        simulate(edited(ONE, 0, "0F0", "0B0"))
