"""Training over a pipeline computes what a single process computes, for every schedule.

The oracle is plain autograd on the whole model and the whole batch, with torch's own mean loss.
In float64, a gradient is off by about 1e-15 of its largest element for the order of its sums; the
tolerance is 1e-12. Whatever is forgotten or routed wrongly is off by 1e-3 at least.
"""

from dataclasses import replace
from functools import cache

import pytest
import torch
from pipeline_models import (
    MODELS,
    WIDTH,
    assert_same,
    batch,
    one_thread,
    serial_loss,
    serial_step,
    write_checkpoint,
)
from pipeline_ranks import (
    Case,
    complaints,
    fail_inside,
    optimize,
    train_as_pair,
    train_by_torch,
    train_cases,
)

from kvpipe import comm
from kvpipe.checkpoints import load_stage
from kvpipe.generate import left_pad
from kvpipe.pipeline import (
    gpipe,
    interleaved_1f1b,
    one_f_one_b,
    peak_activations,
    program,
    round_robin,
    seq1f1b,
    simulate,
    zb_h1,
    zbv,
)
from kvpipe.pipeline.jobs import compare_engines
from kvpipe.pipeline.loss import IGNORED, next_tokens
from kvpipe.pipeline.measured import measured_cost, measured_timeline
from kvpipe.pipeline.runtime import Trainer

TOLERANCE = 1e-12
LAUNCH = {"timeout_s": 240, "threads": 1}
TOKENS = batch(7, 11)
TARGETS = next_tokens(TOKENS)


def padded() -> dict:
    """Rows of different length, padded left; one has a single target, one micro-batch none."""
    rows = [list(range(2, 2 + n)) for n in (9, 6, 11, 8, 3, 10)]
    tokens, positions = left_pad(rows, pad_token=1)
    targets = next_tokens(tokens, positions)
    targets[2, :-2] = IGNORED
    targets[4:6] = IGNORED
    return {"tokens": tokens, "targets": targets, "positions": positions}


def cases(n_ranks: int) -> list[Case]:
    """Every schedule, and every way in which a batch, a model or its split can be uneven."""
    P = n_ranks
    even = {"tokens": TOKENS, "targets": TARGETS}
    schedules = {
        "gpipe": gpipe(P, 5),
        "1f1b": one_f_one_b(P, 5),
        "1f1b, M = 1": one_f_one_b(P, 1),
        "1f1b, M = P": one_f_one_b(P, P),
        "interleaved, M = 4": interleaved_1f1b(P, 4, 2),
        "zb-h1": zb_h1(P, 5),
        "zb-h1, two chunks": zb_h1(P, 4, 2),
        "zbv": zbv(P, 5),
        "zbv, M = 2": zbv(P, 2),
        "seq1f1b": seq1f1b(P, 3, 3),
        "seq1f1b, uneven": seq1f1b(P, 2, (5, 4, 2)),
    }
    found = [Case(name, "tied", schedule, **even) for name, schedule in schedules.items()]
    for model in ("untied", "qwen2", "qwen3"):
        found.append(Case(f"1f1b, {model}", model, one_f_one_b(P, 3), **even))
        found.append(Case(f"zb-h1, {model}", model, zb_h1(P, 3), **even))
    found.append(Case("seq1f1b, qwen3", "qwen3", seq1f1b(P, 3, 4), **even))
    split = {1: (7,), 2: (5, 2), 3: (2, 1, 4)}[P]
    found.append(Case("uneven split", "tied", one_f_one_b(P, 4), **even, sizes=split))
    shared = {1: (7,), 2: (3, 4), 3: (2, 3, 2)}[P]
    for schedule in (one_f_one_b(P, 3), seq1f1b(P, 2, 3)):
        name = f"shared keys and values, {schedule.name}"
        found.append(Case(name, "shared", schedule, **even, sizes=shared))
    found.append(Case("padded", "tied", one_f_one_b(P, 3), **padded()))
    found.append(Case("padded, seq1f1b", "tied", seq1f1b(P, 3, 3), **padded()))
    slow = {"posted_ahead": 0, "sends_kept": 0}
    for schedule in (one_f_one_b(P, 5), interleaved_1f1b(P, 4, 2), zbv(P, 5), seq1f1b(P, 3, 3)):
        name = f"synchronous sends, {schedule.name}"
        found.append(Case(name, "tied", schedule, **even, options=slow))
    eager = {"posted_ahead": 99, "sends_kept": 99}
    found.append(Case("all posted at once", "tied", gpipe(P, 5), **even, options=eager))
    for schedule in (zb_h1(P, 5), zbv(P, 5)):
        found.append(Case(f"two steps, {schedule.name}", "tied", schedule, **even, n_steps=2))
    for schedule in (seq1f1b(P, 2, 3), zb_h1(P, 3)):
        for chunk in (0, 1):
            name = f"frozen {chunk}, {schedule.name}"
            found.append(Case(name, "untied", schedule, **even, frozen=(chunk,)))
    counted = {"counts_activations": True}
    found.append(Case("counted, gpipe", "tied", gpipe(P, 7), **even, options=counted))
    found.append(Case("counted, 1f1b", "tied", one_f_one_b(P, 7), **even, options=counted))
    found.append(Case("counted, zb-h1", "tied", zb_h1(P, 7), **even, options=counted))
    return found


def todo(n_ranks: int) -> list[Case]:
    """On one rank, what differs between models and splits is tested by the others."""
    found = cases(n_ranks)
    return found if n_ranks > 1 else [case for case in found if case.model == "tied"]


NAMES = {n_ranks: [case.name for case in todo(n_ranks)] for n_ranks in (1, 2, 3)}
EVERY_CASE = [(n_ranks, name) for n_ranks, names in NAMES.items() for name in names]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    made = {name: write_checkpoint(root / name, config) for name, config in MODELS.items()}
    made["other weights"] = write_checkpoint(root / "other weights", MODELS["tied"], seed=6)
    wider = {**MODELS["tied"], "rope_theta": 123.0}
    made["other sizes"] = write_checkpoint(root / "other sizes", wider)
    return made


@pytest.fixture(scope="module")
def trained(folders):
    """trained(P): all cases on P ranks, in one launch; name -> (case, per rank what it did)."""

    @cache
    def run(n_ranks: int) -> dict:
        ranks = comm.launch(train_cases, n_ranks, folders, todo(n_ranks), **LAUNCH)
        return {case.name: (case, [rank[case.name] for rank in ranks]) for case in todo(n_ranks)}

    return run


def serial_name(name: str, expected: dict) -> str:
    """'3:head.weight' -> 'head.weight', or the embedding where the two are tied."""
    name = name.partition(":")[2]
    return name if name in expected else "embedding.weight"


def assert_serial(case: Case, losses: list, grads: list[dict], folders: dict) -> None:
    """Loss and every gradient as on a single process; every parameter is somewhere."""
    loss, expected = serial_step(folders[case.model], case.tokens, case.targets, case.positions)
    owner = case.schedule.placement[-1]
    assert [rank for rank, value in enumerate(losses) if value is not None] == [owner]
    assert losses[owner] == pytest.approx(loss, rel=TOLERANCE)
    found = set()
    for rank, of_rank in enumerate(grads):
        for name, gradient in of_rank.items():
            found.add(serial_name(name, expected))
            reference = case.n_steps * expected[serial_name(name, expected)]
            assert_same(gradient, reference, TOLERANCE, f"rank {rank}, {name}")
            assert int(name.partition(":")[0]) not in case.frozen
    assert found == set(expected) or (case.frozen and found < set(expected))


@pytest.mark.parametrize(("n_ranks", "name"), EVERY_CASE)
def test_loss_and_gradients_are_those_of_one_process(trained, folders, n_ranks, name):
    case, ranks = trained(n_ranks)[name]
    losses = [report.loss for report, _ in ranks]
    assert_serial(case, losses, [gradients for _, gradients in ranks], folders)


@pytest.mark.parametrize(("n_ranks", "name"), EVERY_CASE)
def test_every_rank_runs_its_operations_in_the_order_of_the_schedule(trained, n_ranks, name):
    case, ranks = trained(n_ranks)[name]
    assert tuple(tuple(s.op for s in report.spans) for report, _ in ranks) == case.schedule.order
    for report, _ in ranks:
        times = [time for span in report.spans for time in (span.start, span.end)]
        assert times == sorted(times)


@pytest.mark.parametrize(("n_ranks", "name"), EVERY_CASE)
def test_the_bytes_sent_are_tokens_times_width_times_bytes(trained, n_ranks, name):
    case, ranks = trained(n_ranks)[name]
    bytes_per_token = WIDTH * 8
    n_messages = [sum("send" in str(i) for i in rank) for rank in program(case.schedule)]
    assert [len(report.sent) for report, _ in ranks] == n_messages
    n_crossings = sum(
        case.schedule.placement[chunk] != case.schedule.placement[chunk + 1]
        for chunk in range(case.schedule.n_chunks - 1)
    )
    total = sum(report.sent_bytes for report, _ in ranks)
    assert total == 2 * n_crossings * case.tokens.numel() * bytes_per_token


@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zbv", "1f1b, untied"])
def test_only_copies_on_two_ranks_exchange_tied_gradients(trained, n_ranks, name):
    case, ranks = trained(n_ranks)[name]
    ends = {case.schedule.placement[0], case.schedule.placement[-1]}
    is_exchanged = case.model == "tied" and len(ends) == 2
    matrix_bytes = ranks[0][1]["0:embedding.weight"].nbytes
    expected = [matrix_bytes * (is_exchanged and rank in ends) for rank in range(n_ranks)]
    assert [report.tied_bytes for report, _ in ranks] == expected


@pytest.mark.parametrize(("n_ranks", "name"), EVERY_CASE)
def test_no_rank_holds_more_parts_than_predicted(trained, n_ranks, name):
    case, ranks = trained(n_ranks)[name]
    parts = replace(case.schedule, segment_tokens=())
    predicted = [round(peak * parts.n_segments) for peak in peak_activations(parts)]
    assert [report.peak_parts for report, _ in ranks] == predicted


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_activation_bytes_grow_with_the_parts_held(trained, n_ranks):
    results = trained(n_ranks)
    (_, all_held), (_, few_held), (_, split) = (
        results[f"counted, {name}"] for name in ("gpipe", "1f1b", "zb-h1")
    )
    for rank in range(n_ranks):
        of_gpipe, of_1f1b, of_zb = (held[rank][0] for held in (all_held, few_held, split))
        bytes_per_part = of_gpipe.peak_activation_bytes / of_gpipe.peak_parts
        assert of_1f1b.peak_activation_bytes == bytes_per_part * of_1f1b.peak_parts > 0
        # A part that waits for its weight gradients only keeps less than its graph did.
        whole = bytes_per_part * of_zb.peak_parts
        waits = rank > 0  # zb-h1: rank r runs its weight gradients r behind
        assert of_1f1b.peak_activation_bytes <= of_zb.peak_activation_bytes <= whole
        assert (of_zb.peak_activation_bytes < whole) == waits


def test_measured_steps_have_the_form_of_simulated_ones(trained):
    case, ranks = trained(2)["1f1b"]
    timeline = measured_timeline(case.schedule, [report for report, _ in ranks])
    assert timeline.schedule == case.schedule
    assert timeline.bytes_moved == 2 * TOKENS.numel() * WIDTH * 8
    assert all(transfer.end >= transfer.start >= 0 for transfer in timeline.transfers)
    for op, start, _ in (span for spans in timeline.spans for span in spans):
        for need in case.schedule.needs(op):
            before = timeline.span_of.get(need) or timeline.span_of[need._replace(kind="B")]
            assert before.end <= start, f"{op} starts before {need} ends"
    predicted = simulate(case.schedule, measured_cost([timeline]))
    assert 0 < predicted.makespan <= 2 * sum(timeline.busy)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1", "zbv"])
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_torchs_engine_computes_the_same_with_our_stages(by_torch, folders, n_ranks, name):
    case, ranks = by_torch(n_ranks)[name]
    losses, grads = zip(*ranks, strict=True)
    assert_serial(case, list(losses), list(grads), folders)


@pytest.fixture(scope="module")
def by_torch(folders):
    @cache
    def run(n_ranks: int) -> dict:
        P, M = n_ranks, 6
        schedules = {
            "gpipe": gpipe(P, M),
            "1f1b": one_f_one_b(P, M),
            "interleaved": interleaved_1f1b(P, M, 2),
            "zb-h1": zb_h1(P, M, 2),
            "zbv": zbv(P, M),
        }
        tokens = batch(12, 9)
        steps = [
            Case(name, "tied", schedule, tokens, next_tokens(tokens))
            for name, schedule in schedules.items()
        ]
        ranks = comm.launch(train_by_torch, n_ranks, folders, steps, **LAUNCH)
        return {case.name: (case, [rank[case.name] for rank in ranks]) for case in steps}

    return run


@one_thread()
def test_twenty_optimizer_steps_end_in_the_same_weights(folders):
    batches = [(tokens, next_tokens(tokens)) for tokens in (batch(6, 8, s) for s in range(20))]
    model = load_stage(folders["tied"], dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    expected = []
    for tokens, targets in batches:
        loss = serial_loss(model, tokens, targets)
        expected.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert expected[-1] < expected[0] - 0.3, "the steps must change something"
    weights = {name: p.detach() for name, p in model.named_parameters()}
    schedules = (one_f_one_b(2, 3), zbv(2, 3), seq1f1b(2, 3, 2))
    runs = [Case(schedule.name, "tied", schedule, *batches[0]) for schedule in schedules]
    ranks = comm.launch(optimize, 2, folders, runs, batches, **LAUNCH)
    for schedule in schedules:
        of_ranks = [rank[schedule.name] for rank in ranks]
        last = schedule.placement[-1]
        assert of_ranks[last][0] == pytest.approx(expected, rel=1e-9)
        for _, of_rank in of_ranks:
            for name, weight in of_rank.items():
                # Where a gradient is almost 0, AdamW magnifies its rounding.
                assert_same(weight, weights[serial_name(name, weights)], 1e-8, name)
        head = of_ranks[last][1][f"{schedule.n_chunks - 1}:head.weight"]
        assert torch.equal(head, of_ranks[0][1]["0:embedding.weight"]), "the same, bit for bit"


def test_a_pipeline_may_be_part_of_a_larger_world(folders):
    case = Case("pair", "tied", one_f_one_b(2, 3), TOKENS, TARGETS)
    world = comm.launch(train_as_pair, 3, folders, case, **LAUNCH)
    ranks = [world[rank]["pair"] for rank in (1, 2)]
    losses = [report.loss for report, _ in ranks]
    assert_serial(case, losses, [gradients for _, gradients in ranks], folders)


PROBLEMS = {
    "other schedule": "ranks disagree about the schedule",
    "other checkpoint": "different copies of the tied embedding",
    "other model": "ranks disagree about the config: rank 0 has {'rope_theta': 10000.0}",
    "other dtype": "ranks disagree about the element type",
    "gap": "chunk 1 starts at layer 3, but the chunks before it end at layer 2",
    "other batch": "ranks disagree about the batch",
    "one end frozen": "the embedding is trained on one rank and frozen on another",
    "no target": "none of the 77 targets counts",
    "too few rows": "a batch of 2 rows cannot be cut into 3 micro-batches",
    "shapes": "must both be (B, T)",
}


@pytest.fixture(scope="module")
def complained(folders):
    case = Case("fine", "tied", one_f_one_b(2, 3), TOKENS, TARGETS)
    return comm.launch(complaints, 2, folders, case, list(PROBLEMS), **LAUNCH)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_mistake_is_named_on_every_rank_and_nothing_hangs(complained, problem):
    for told in complained:
        assert PROBLEMS[problem] in told[problem]
    assert [told["afterwards"] == "None" for told in complained] == [True, False]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("raises", ["rank 1 failed first", "ArithmeticError: this loss cannot be computed"]),
        ("is killed", ["rank 1 failed first", "ended by SIGKILL"]),
        ("stands still", ["rank 0 failed first", "from rank 1: the other end did not answer"]),
    ],
)
def test_a_rank_that_fails_inside_a_step_is_named_within_seconds(folders, how, told):
    case = Case("", "tied", one_f_one_b(2, 4), TOKENS, TARGETS)
    with pytest.raises(comm.RankError) as error:
        comm.launch(fail_inside, 2, folders, case, how, timeout_s=200, threads=1)
    for text in told:
        assert text in str(error.value)


def test_a_schedule_without_backward_is_refused():
    with pytest.raises(ValueError, match="round-robin has no backward"):
        Trainer(None, round_robin(2, 2), {})


def test_what_torchs_engine_cannot_do_is_refused():
    from kvpipe.pipeline.engine import TorchEngine

    with pytest.raises(ValueError, match=r"torch\.distributed\.pipelining has no seq1f1b"):
        TorchEngine(None, seq1f1b(2, 2), {})
    engine = object.__new__(TorchEngine)  # without a process group
    engine.schedule = gpipe(2, 3)
    with pytest.raises(ValueError, match="7 rows are not a multiple of 3 micro-batches"):
        engine.step(TOKENS, TARGETS)


def test_both_engines_are_timed_in_turns(folders):
    schedule, tokens = one_f_one_b(2, 3), batch(6, 8)
    ranks = comm.launch(compare_engines, 2, folders["tied"], schedule, tokens, 2, **LAUNCH)
    for seconds in ranks:
        assert {name: len(times) for name, times in seconds.items()} == {"kvpipe": 2, "torch": 2}
        assert min(min(times) for times in seconds.values()) > 0


def test_no_micro_batch_at_all_is_refused():
    with pytest.raises(ValueError, match="n_microbatches must be a whole number of at least 1"):
        one_f_one_b(2, 0)
