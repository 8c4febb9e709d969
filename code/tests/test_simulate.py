"""The simulator: exact closed forms, an independent longest path, memory, bytes and metrics."""

import cProfile
import pstats
import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import inf

import pytest

from kvpipe.pipeline import (
    METRICS,
    Comm,
    Cost,
    Op,
    Schedule,
    Span,
    Timeline,
    equal_segments,
    equal_work_segments,
    gpipe,
    interleaved_1f1b,
    just_in_time_program,
    one_f_one_b,
    peak_activations,
    program,
    round_robin,
    run_synchronously,
    segment_work,
    seq1f1b,
    simulate,
    zb_h1,
    zbv,
)

SIZES = [(p, m) for p in (1, 2, 3, 4, 6) for m in (1, 2, 3, 4, 6, 8, 12)]


def makespan(schedule: Schedule, **cost) -> float:
    return simulate(schedule, Cost.of(schedule, **cost)).makespan


# Closed forms.


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (gpipe(4, 8), 33),
        (one_f_one_b(4, 8), 33),
        (interleaved_1f1b(4, 8, 2), 28.5),
        (interleaved_1f1b(4, 8, 4), 26.25),
        (seq1f1b(4, 8, 2), 28.5),
        (seq1f1b(4, 8, 4), 26.25),
        (zb_h1(4, 8), 27),
        (zb_h1(4, 8, 2), 25.5),
        (zbv(4, 8), 25.5),
    ],
    ids=lambda value: value.name if isinstance(value, Schedule) else str(value),
)
def test_check_table_for_4_ranks_8_micro_batches_forward_1_backward_2(schedule, expected):
    assert makespan(schedule) == expected


def test_gpipe_and_1f1b_take_m_plus_p_minus_1_steps_on_equal_stages():
    for p, m in SIZES:
        for build in (gpipe, one_f_one_b):
            assert makespan(build(p, m), forward=1, input_grad=1.5, weight_grad=2) == 4.5 * (
                m + p - 1
            )


def test_interleaving_divides_the_bubble_by_the_chunks_per_rank():
    for p, m in SIZES:
        for v in (2, 4):  # binary fractions: the times are exact
            if m % p == 0:
                assert makespan(interleaved_1f1b(p, m, v)) == 3 * m + 3 * (p - 1) / v
            elif m < p:  # one round, too short to hide the way around the loop
                assert makespan(interleaved_1f1b(p, m, v)) == 3 * (v * p + m - 1) / v


def test_segments_divide_the_bubble_by_their_number():
    for p, m in SIZES:
        for k in (2, 4):
            assert makespan(seq1f1b(p, m, k)) == 3 * m + 3 * (p - 1) / k


def test_weight_gradients_shorten_the_bubble_of_zb_h1():
    for p, m in SIZES:
        if m >= p:
            for f, i, w in ((1, 1, 1), (1, 1.5, 0.5), (2, 2, 1)):
                t = makespan(zb_h1(p, m), forward=f, input_grad=i, weight_grad=w)
                assert t == m * (f + i + w) + (p - 1) * (f + i - w)


def test_zbv_waits_only_for_its_first_forward():
    for p, m in SIZES:
        if m >= 2 * p - 1:
            timeline = simulate(zbv(p, m))
            assert timeline.makespan == 3 * m + (p - 1) / 2
            assert set(timeline.rank_spans) == {3 * m}


def test_decoding_is_bound_by_the_ranks_or_by_the_batches_in_flight():
    for p, m in SIZES:
        for steps in (1, 5):
            expected = m * steps + p - 1 if m >= p else p * steps + m - 1
            assert makespan(round_robin(p, m, steps)) == expected


def test_unequal_stages_part_gpipe_and_1f1b():
    first, last = [2, 1, 1, 1], [1, 1, 1, 2]
    assert makespan(gpipe(4, 8), weights=first) == 57
    assert makespan(one_f_one_b(4, 8), weights=first) == 51
    assert makespan(gpipe(4, 8), weights=last) == makespan(one_f_one_b(4, 8), weights=last) == 57


def test_gpipe_runs_at_the_pace_of_its_slowest_stage():
    rng = random.Random(0)
    for p, m in SIZES:
        weights = [rng.randint(1, 9) for _ in range(p)]
        expected = 3 * (m * max(weights) + sum(weights) - max(weights))
        assert makespan(gpipe(p, m), weights=weights) == expected


# An independent oracle: the longest path through all pairs of operations.


def must_precede(schedule: Schedule, a: Op, b: Op) -> bool:
    """Whether b uses what a computes, said without `Schedule.needs`."""
    if a.microbatch != b.microbatch or a.kind == "W":
        return False
    last = max(op.chunk for order in schedule.order for op in order)
    chunk_step, segment_step = b.chunk - a.chunk, b.segment - a.segment
    if a.kind == "F" and b.kind == "F":
        returned = schedule.feeds_back and a.chunk == last and b.chunk == 0 and segment_step == 1
        return returned or (chunk_step, segment_step) in ((1, 0), (0, 1))
    if a.kind == "F":
        return b.kind in "BI" and (chunk_step, segment_step) == (0, 0)
    if b.kind == "W":
        return (chunk_step, segment_step) == (0, 0)
    return b.kind in "BI" and (chunk_step, segment_step) in ((-1, 0), (0, -1))


def longest_path(schedule: Schedule, cost, latency) -> dict[Op, float]:
    """Earliest start of every operation, by relaxing all edges until nothing moves."""
    ops = [(rank, op) for rank, order in enumerate(schedule.order) for op in order]
    edges = [
        (a, b, cost(a) + (latency if source != target else 0))
        for source, a in ops
        for target, b in ops
        if must_precede(schedule, a, b)
    ]
    for order in schedule.order:
        edges += [(a, b, cost(a)) for a, b in pairwise(order)]
    start = dict.fromkeys((op for _, op in ops), 0)
    for _ in ops:  # no path is longer than the number of operations
        late = [(a, b, length) for a, b, length in edges if start[b] < start[a] + length]
        if not late:
            return start
        for a, b, length in late:
            start[b] = max(start[b], start[a] + length)
    raise AssertionError("operations that wait for each other in a circle")


@pytest.mark.parametrize(
    "schedule",
    [
        gpipe(3, 4),
        one_f_one_b(3, 5),
        one_f_one_b(4, 2),
        interleaved_1f1b(3, 5, 2),
        zb_h1(3, 4),
        zb_h1(2, 3, 2),
        zbv(2, 4),
        zbv(3, 2),
        seq1f1b(3, 3, 3),
        round_robin(3, 2, 3),
        round_robin(2, 4, 3),
    ],
    ids=lambda s: f"{s.name}-{s.n_ranks}-{s.n_microbatches}",
)
def test_every_start_is_the_longest_path_for_random_costs_and_latency(schedule):
    rng = random.Random(schedule.name)
    for _ in range(3):
        ops = [op for order in schedule.order for op in order]
        times = {op: Fraction(rng.randint(1, 20), 4) for op in ops}  # one time per micro-batch too
        latency = Fraction(rng.randint(0, 8), 4)
        timeline = simulate(schedule, times.__getitem__, Comm(latency=latency))
        expected = longest_path(schedule, times.__getitem__, latency)
        for rank, spans in enumerate(timeline.spans):
            assert [span.op for span in spans] == list(schedule.order[rank])
            assert all(span.end - span.start == times[span.op] for span in spans)
        assert {op: span.start for op, span in timeline.span_of.items()} == expected


def test_a_dearer_operation_never_makes_a_step_shorter():
    rng = random.Random(1)
    for schedule in (one_f_one_b(3, 5), zbv(3, 5), interleaved_1f1b(3, 4, 2)):
        times = {op: rng.randint(1, 9) for order in schedule.order for op in order}
        before = simulate(schedule, times.__getitem__).makespan
        for op in times:
            dearer = {**times, op: times[op] + 5}
            after = simulate(schedule, dearer.__getitem__).makespan
            assert before <= after <= before + 5


# The three bubbles.


@pytest.mark.parametrize(
    ("schedule", "ideal", "fraction", "span"),
    [
        (gpipe(4, 8), 3 / 8, 3 / 11, 3 / 11),
        (one_f_one_b(4, 8), 3 / 8, 3 / 11, 3 / 11),
        (one_f_one_b(1, 5), 0, 0, 0),
        (interleaved_1f1b(4, 8, 2), 3 / 16, 4.5 / 28.5, 4.5 / 28.5),
        (zb_h1(4, 8), 3 / 24, 3 / 27, 3 / 27),
        (zbv(4, 8), 1.5 / 24, 1.5 / 25.5, 0),
    ],
    ids=lambda value: value.name if isinstance(value, Schedule) else "",
)
def test_each_bubble_metric_has_its_own_value(schedule, ideal, fraction, span):
    timeline = simulate(schedule)
    values = [timeline.bubble(metric) for metric in METRICS]
    assert values == pytest.approx([ideal, fraction, span], abs=1e-12)


def test_a_bubble_without_a_name_is_refused():
    with pytest.raises(ValueError, match="unknown bubble metric 'bubble'; choose one of"):
        simulate(gpipe(2, 2)).bubble("bubble")


def test_busy_idle_and_spans_of_unequal_stages_by_hand():
    timeline = simulate(gpipe(2, 2), Cost.of(gpipe(2, 2), weights=[1, 2]))
    # rank 0: F 0-1, 1-2, wait, B 9-11, 13-15;  rank 1: F 1-3, 3-5, B 5-9, 9-13
    assert timeline.spans[0][2] == Span(Op("B", 0, 0), 9, 11)
    assert (timeline.makespan, timeline.busy, timeline.idle) == (15, (6, 12), (9, 3))
    assert timeline.rank_spans == (15, 12)
    assert timeline.bubble("bubble/ideal") == 12 / 18
    assert timeline.bubble("bubble/makespan") == pytest.approx(12 / 30)


def test_makespan_starts_at_the_first_operation_not_at_zero():
    op = Op("F", 0, 0)
    schedule = Schedule("measured", 1, (0,), ((op,),), trains=False)
    timeline = Timeline(schedule, ((Span(op, 100.0, 103.0),),), ())
    assert timeline.makespan == 3
    assert timeline.bubble("bubble/makespan") == 0


# Activations.


@pytest.mark.parametrize(
    ("schedule", "peaks"),
    [
        (gpipe(4, 8), (8, 8, 8, 8)),
        (one_f_one_b(4, 8), (4, 3, 2, 1)),
        (one_f_one_b(4, 2), (2, 2, 2, 1)),
        (interleaved_1f1b(4, 8, 2), (11, 9, 7, 5)),
        (zb_h1(4, 8), (4, 4, 4, 4)),
        (zbv(4, 8), (8, 8, 8, 8)),
        (seq1f1b(4, 8, 2), (2.5, 2, 1.5, 1)),
        (seq1f1b(4, 8, 4), (1.75, 1.5, 1.25, 1)),
        (round_robin(4, 8, 3), (1, 1, 1, 1)),
    ],
    ids=lambda value: value.name if isinstance(value, Schedule) else "",
)
def test_peak_activations(schedule, peaks):
    assert simulate(schedule).peak_activations == pytest.approx(peaks)


def test_peak_activations_closed_forms():
    for p, m in SIZES:
        assert peak_activations(gpipe(p, m)) == (m,) * p
        assert peak_activations(one_f_one_b(p, m)) == tuple(min(m, p - r) for r in range(p))
        for k in (2, 4):
            expected = tuple(min(m * k, p - r + k - 1) / k for r in range(p))
            assert peak_activations(seq1f1b(p, m, k)) == expected
        if m % p == 0:
            leads = [p + 2 * (p - 1 - r) + 1 for r in range(p)]
            assert peak_activations(interleaved_1f1b(p, m, 2)) == tuple(
                min(2 * m, n) for n in leads
            )


def test_what_an_input_gradient_leaves_behind_counts_until_the_weight_gradient():
    schedule = zb_h1(4, 8)
    assert peak_activations(schedule, kept_for_weights=0) == (4, 3, 2, 1)
    assert peak_activations(schedule, kept_for_weights=0.5) == (4, 3.5, 3, 2.5)


def test_peak_activations_in_bytes_follow_the_chunks_and_the_tokens():
    assert peak_activations(one_f_one_b(2, 4), chunk_sizes=(10, 30)) == (20, 30)
    assert peak_activations(seq1f1b(1, 1, (3, 1)), chunk_sizes=(100,)) == (100,)
    # The last rank frees its short segment first and meets the next long one with the first
    # still held: F 75, F 25, B -25, F 75. Unequal lengths cost memory there.
    assert peak_activations(seq1f1b(2, 2, (3, 1)), chunk_sizes=(100, 100)) == (175, 150)
    with pytest.raises(ValueError, match="2 chunks need as many sizes, got 1"):
        peak_activations(one_f_one_b(2, 4), chunk_sizes=(10,))


# Bytes and transfers.


def test_bytes_moved_closed_forms():
    comm = Comm(activation_bytes=100, token_bytes=8)
    for p, m in SIZES:

        def moved(schedule):
            return simulate(schedule, comm=comm).bytes_moved

        assert moved(gpipe(p, m)) == moved(one_f_one_b(p, m)) == 2 * m * (p - 1) * 100
        assert moved(zb_h1(p, m)) == moved(seq1f1b(p, m, 4)) == 2 * m * (p - 1) * 100
        if p > 1:
            assert moved(interleaved_1f1b(p, m, 3)) == 2 * m * (3 * p - 1) * 100
        assert moved(zbv(p, m)) == 2 * m * (2 * p - 2) * 100  # the turn of the V is free
        tokens = m * (3 - 1) * 8 if p > 1 else 0
        assert moved(round_robin(p, m, 3)) == m * 3 * (p - 1) * 100 + tokens


def test_bytes_are_counted_per_directed_link():
    comm = Comm(activation_bytes=100, token_bytes=8)
    assert simulate(one_f_one_b(3, 4), comm=comm).bytes_by_link == {
        (0, 1): 400, (1, 0): 400, (1, 2): 400, (2, 1): 400
    }  # fmt: skip
    assert simulate(round_robin(3, 4, 2), comm=comm).bytes_by_link == {
        (0, 1): 800, (1, 2): 800, (2, 0): 32
    }  # fmt: skip


def test_segments_of_unequal_length_send_their_share():
    timeline = simulate(seq1f1b(2, 1, (3, 1)), comm=Comm(activation_bytes=100))
    assert Counter(t.n_bytes for t in timeline.transfers) == {75: 2, 25: 2}


def test_messages_on_one_link_queue_but_do_not_hold_up_the_sender():
    schedule = round_robin(2, 3)
    comm = Comm(bandwidth=10, activation_bytes=20, latency=0.5)  # 2 on the link, 0.5 in flight
    timeline = simulate(schedule, comm=comm)
    assert [(t.start, t.end) for t in timeline.transfers] == [(1, 3.5), (3, 5.5), (5, 7.5)]
    assert [span.start for span in timeline.spans[0]] == [0, 1, 2]
    assert [span.start for span in timeline.spans[1]] == [3.5, 5.5, 7.5]


def test_a_sender_that_does_not_overlap_waits_for_its_message():
    schedule = round_robin(2, 3)
    timeline = simulate(schedule, comm=Comm(latency=0.5, overlaps=False))
    assert [span.start for span in timeline.spans[0]] == [0, 1.5, 3]
    assert [span.start for span in timeline.spans[1]] == [1.5, 3, 4.5]


def test_a_synchronous_send_holds_up_both_ranks():
    timeline = run_synchronously(gpipe(2, 2), comm=Comm(latency=1))
    # rank 0: F 0-1, send 1-2, F 2-3, send 3-4, receive 6-7, B 7-9, receive 9-10, B 10-12
    # rank 1: receive 1-2, F 2-3, receive 3-4, F 4-5, B 5-7, send 7-8, B 8-10, send 10-11
    assert [(s.start, s.end) for s in timeline.spans[1]] == [(2, 3), (4, 5), (5, 7), (8, 10)]
    assert [(s.start, s.end) for s in timeline.spans[0]] == [(0, 1), (2, 3), (8, 10), (11, 13)]
    assert len(timeline.transfers) == 4


def test_synchronous_sends_never_make_a_step_shorter():
    for schedule in (one_f_one_b(3, 6), interleaved_1f1b(2, 4, 2), zbv(3, 6), round_robin(3, 4, 3)):
        for latency in (0, 0.25):
            comm = Comm(latency=latency, activation_bytes=8, bandwidth=64)
            free, bound = simulate(schedule, comm=comm), run_synchronously(schedule, comm=comm)
            assert free.makespan <= bound.makespan
            assert free.bytes_moved == bound.bytes_moved


def test_an_early_receive_saves_time_that_a_late_one_loses():
    schedule = gpipe(3, 4)
    late = run_synchronously(schedule, just_in_time_program(schedule), comm=Comm(latency=0.5))
    placed = run_synchronously(schedule, program(schedule), comm=Comm(latency=0.5))
    posted = simulate(schedule, comm=Comm(latency=0.5))
    assert posted.makespan < placed.makespan <= late.makespan


# Latency and throughput of decoding: four stages of 5 ms, transfers of 0.2 ms.


def decode(n_batches: int, n_steps: int, **comm) -> Timeline:
    schedule = round_robin(4, n_batches, n_steps)
    return simulate(schedule, Cost.of(schedule, forward=5), Comm(latency=0.2, **comm))


def steps_per_second(timeline: Timeline) -> float:
    """Decoding steps of all batches per second once the pipeline is full."""
    ends = sorted(span.end for span in timeline.spans[-1])
    middle, last = len(ends) // 2, len(ends) - 1
    return 1000 * (last - middle) / (ends[last] - ends[middle])


def test_time_per_token_of_one_request_is_the_sum_of_stages_and_transfers():
    ends = [span.end for span in decode(1, 5).spans[-1]]
    assert [b - a for a, b in pairwise(ends)] == pytest.approx([20.8] * 4)


@pytest.mark.parametrize(
    ("n_batches", "overlaps", "expected"),
    [
        (1, True, 1000 / 20.8),
        (2, True, 2 * 1000 / 20.8),
        (4, True, 4 * 1000 / 20.8),  # the way round takes 20.8 ms, not 20: a fifth batch fits
        (5, True, 200),
        (8, True, 200),
        (4, False, 1000 / 5.2),
        (8, False, 1000 / 5.2),
    ],
)
def test_throughput_needs_overlap_and_more_batches_than_stages(n_batches, overlaps, expected):
    timeline = decode(n_batches, 40, overlaps=overlaps)
    # 40 rounds: the measured window holds whole rounds, up to one batch.
    assert steps_per_second(timeline) == pytest.approx(expected, rel=0.02)


def test_batches_in_flight_really_run_at_the_same_time():
    one, four = decode(1, 12), decode(4, 12)
    assert four.makespan < 1.1 * one.makespan < 4 * one.makespan
    running = [span for spans in four.spans for span in spans if span.start <= 100 < span.end]
    assert len(running) >= 3


# Pitfalls of other pipelines.


def test_the_second_rank_starts_when_the_first_micro_batch_arrives():
    for schedule in (gpipe(4, 8), one_f_one_b(4, 8), zb_h1(4, 8), zbv(4, 8)):
        spans = simulate(schedule).span_of
        assert spans[Op("F", 0, 1)].start == spans[Op("F", 0, 0)].end


def test_two_forwards_of_lead_per_hop_hide_the_transfers_of_the_interleaved_schedule():
    schedule = interleaved_1f1b(4, 8, 2)
    exposed = simulate(schedule, comm=Comm(latency=0.1)).makespan - simulate(schedule).makespan
    # 2 * (2P - 1) hops lie on the way of the first and the last micro-batch; steady hops are free.
    assert exposed == pytest.approx(2 * (2 * 4 - 1) * 0.1)


def test_segments_of_equal_work_beat_segments_of_equal_length():
    per_token, per_pair, tokens, k = 1, 0.05, 1024, 4
    steps = {}
    for cut in (equal_segments(tokens, k), equal_work_segments(tokens, k, per_token, per_pair)):
        work = segment_work(cut, per_token, per_pair)
        schedule = seq1f1b(4, 8, cut)
        steps[cut] = makespan(schedule, shares=[w / sum(work) for w in work])
    by_length, by_work = steps.values()
    assert by_work == pytest.approx(26.25, rel=2e-3)  # the closed form of four equal segments
    assert by_length > 1.1 * by_work


# Speed and bad input.


def test_work_grows_with_the_operations_and_no_faster():
    """Seconds are measured in `make bench`; here calls are counted, on any machine alike."""
    calls = []
    for n_microbatches in (64, 256):
        schedule, profile = one_f_one_b(32, n_microbatches), cProfile.Profile()
        assert profile.runcall(simulate, schedule).makespan == 3 * (n_microbatches + 31)
        calls.append(pstats.Stats(profile).total_calls)
    assert calls[1] < 4.4 * calls[0]
    assert simulate(one_f_one_b(64, 512)).makespan == 3 * (512 + 63)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda s: Cost.of(s, weights=[1, 1, 1]), "weights per chunk: expected 2, got 3"),
        (lambda s: Cost.of(s, shares=[0.5, 0.5]), "shares per segment: expected 1, got 2"),
        (lambda s: Cost.of(s, forward=-1), "must not be negative"),
        (lambda s: Comm(latency=-1), "latency and bytes must be at least 0"),
        (lambda s: Comm(bandwidth=0), "bandwidth above 0"),
    ],
)
def test_costs_that_make_no_sense_are_refused(make, reason):
    with pytest.raises(ValueError, match=reason):
        make(gpipe(2, 2))


def test_costs_are_those_of_one_rank_divided_among_its_chunks():
    schedule = zbv(2, 1)
    cost = Cost.of(schedule, forward=4, input_grad=6, weight_grad=2, weights=[1, 1, 1, 3])
    assert [cost(Op(kind, 0, 0)) for kind in "FIWB"] == [2, 3, 1, 4]
    assert [cost(Op(kind, 0, 3)) for kind in "FIWB"] == [6, 9, 3, 12]
    halves = replace(cost, shares=(0.25, 0.75))
    assert halves(Op("B", 0, 0, 1)) == 3


def test_transfers_are_free_by_default():
    assert Comm() == Comm(0.0, inf, 0.0, 0.0, True)
    timeline = simulate(one_f_one_b(2, 2))
    assert all(t.start == t.end and t.n_bytes == 0 for t in timeline.transfers)
