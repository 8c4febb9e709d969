"""Decoding over a pipeline gives the tokens of a single process, with any number of batches.

The oracle is `kvpipe.generate` on the whole model, batch by batch. Shapes are the same in every
step, so the tokens are, too: equality is exact.
"""

import re
import shlex
import subprocess
import sys
from functools import cache
from itertools import pairwise

import pytest
from pipeline_models import LLAMA, WIDTH, one_thread, write_checkpoint
from pipeline_ranks import Answers, decode_cases, decode_other_requests, decode_slowly

from kvpipe import comm
from kvpipe.checkpoints import fetch, load_stage
from kvpipe.config import Config
from kvpipe.generate import generate, left_pad
from kvpipe.pipeline import round_robin
from kvpipe.pipeline.__main__ import main
from kvpipe.pipeline.batching import Batch, Request, Slots, check_batches
from kvpipe.pipeline.decode import Sampling
from kvpipe.pipeline.jobs import answer
from kvpipe.pipeline.measured import measured_timeline
from kvpipe.pipeline.stages import predicted_bytes, split_layers

LAUNCH = {"timeout_s": 240, "threads": 1}
PROMPTS = [
    [(5, 17, 3), (40, 2, 8, 9, 30, 11)],
    [(23,)],
    [(7, 7, 1, 50), (12, 31), (9, 4, 44, 28, 16)],
    [(33, 2), (1, 45, 6)],
]
MAX_NEW = 9
DRAWN = Sampling(temperature=1.0, top_k=20, top_p=0.9, seed=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config = {**LLAMA, "tie_word_embeddings": True}
    return write_checkpoint(tmp_path_factory.mktemp("llama"), config, seed=2)


@pytest.fixture(scope="module")
def serial(folder):
    """serial(prompts, sampling): new tokens per row of one process, no stop tokens."""
    model = load_stage(folder)

    @one_thread()
    def run(prompts: list, sampling: Sampling) -> list[list[int]]:
        tokens, positions = left_pad(prompts)
        return generate(model, tokens, MAX_NEW, positions=positions, **vars(sampling))

    return run


@pytest.fixture(scope="module")
def batches(serial):
    """Requests that end in every way: at a stop token early or late, or at their own maximum."""
    free = [serial(prompts, Sampling()) for prompts in PROMPTS]
    limits = [[MAX_NEW, 2], [4], [MAX_NEW, 1, 6], [MAX_NEW, MAX_NEW]]
    stops = {(0, 0): free[0][0][4], (2, 0): free[2][0][2], (3, 1): free[3][1][0]}
    return tuple(
        tuple(
            Request(prompt, limits[b][r], frozenset({stops[b, r]} if (b, r) in stops else ()))
            for r, prompt in enumerate(prompts)
        )
        for b, prompts in enumerate(PROMPTS)
    )


def ended(request: Request, tokens: list[int]) -> list[int]:
    """What is left of a row of free tokens when the request's own end is applied to it."""
    for n in range(1, len(tokens) + 1):
        if n == request.max_new_tokens or tokens[n - 1] in request.stop_tokens:
            return tokens[:n]
    raise AssertionError("the row does not end")


CASES = [(1, 1), (1, 4), (2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (3, 2), (3, 4)]


@pytest.fixture(scope="module")
def decoded(folder, batches):
    """decoded(P): name -> the reports of all ranks."""

    @cache
    def run(n_ranks: int) -> dict:
        cases = [Answers(str(n), batches, n) for p, n in CASES if p == n_ranks]
        cases.append(Answers("drawn", batches, 2, DRAWN))
        cases.append(Answers("drawn without seed", batches, 2, Sampling(temperature=1.0)))
        sizes = {1: None, 2: (5, 2), 3: (1, 4, 2)}[n_ranks]
        ranks = comm.launch(decode_cases, n_ranks, folder, cases, sizes, **LAUNCH)
        return {case.name: [rank[case.name] for rank in ranks] for case in cases}

    return run


def n_steps(rows: list[list[int]]) -> int:
    """A batch runs until its last row is finished."""
    return max(map(len, rows))


@pytest.mark.parametrize(("n_ranks", "n_in_flight"), CASES)
def test_tokens_are_those_of_one_process_on_every_rank(
    decoded, serial, batches, n_ranks, n_in_flight
):
    expected = [
        [ended(r, row) for r, row in zip(batch, serial(prompts, Sampling()), strict=True)]
        for batch, prompts in zip(batches, PROMPTS, strict=True)
    ]
    lengths = {len(row) for rows in expected for row in rows}
    assert len(lengths) >= 5, f"requests must end at different steps, not {lengths}"
    for report in decoded(n_ranks)[str(n_in_flight)]:
        assert report.tokens == expected


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_a_token_is_drawn_once_and_sent(decoded, serial, batches, n_ranks):
    """Every rank has random numbers of its own; drawing on two of them would show at once."""
    expected = [
        [ended(r, row) for r, row in zip(batch, serial(prompts, DRAWN), strict=True)]
        for batch, prompts in zip(batches, PROMPTS, strict=True)
    ]
    for report in decoded(n_ranks)["drawn"]:
        assert report.tokens == expected
    first, *others = decoded(n_ranks)["drawn without seed"]
    assert all(report.tokens == first.tokens for report in others)


@pytest.mark.parametrize(("n_ranks", "n_in_flight"), CASES)
def test_every_boundary_carries_tokens_times_width_times_bytes(decoded, n_ranks, n_in_flight):
    reports = decoded(n_ranks)[str(n_in_flight)]
    hidden = new = 0
    for prompts, rows in zip(PROMPTS, reports[0].tokens, strict=True):
        longest = max(map(len, prompts))  # shorter prompts are padded to it
        hidden += len(prompts) * (longest + n_steps(rows) - 1) * WIDTH * 4
        new += len(prompts) * n_steps(rows) * 8
    timeline = measured_timeline(round_robin(n_ranks, n_in_flight), reports)
    last = n_ranks - 1
    links = {(rank, rank + 1): hidden for rank in range(last)} | {
        (last, r): new for r in range(last)
    }
    assert timeline.bytes_by_link == links


@pytest.mark.parametrize(("n_ranks", "n_in_flight"), CASES)
def test_all_ranks_run_the_same_operations_and_none_for_a_finished_batch(
    decoded, n_ranks, n_in_flight
):
    reports = decoded(n_ranks)[str(n_in_flight)]
    ran = [[(s.op.microbatch, s.op.segment) for s in report.spans] for report in reports]
    assert all(of_rank == ran[0] for of_rank in ran)
    assert len(ran[0]) == sum(map(n_steps, reports[0].tokens))
    for slot in range(n_in_flight):
        steps = [step for s, step in ran[0] if s == slot]
        assert steps == list(range(len(steps))), "a freed slot is taken over without a gap"
    waits_for_token = [
        (a, b)
        for a, b in pairwise(ran[0])
        if n_in_flight > 1 and a[0] == b[0] and any(s != a[0] and t > a[1] for s, t in ran[0])
    ]
    assert not waits_for_token, "with several batches in flight they take turns"


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_a_finished_batch_gives_its_memory_back(decoded, batches, n_ranks):
    """One batch at a time: the peak is that of the largest, not their sum."""
    reports = decoded(n_ranks)["1"]
    layers = {1: (7,), 2: (5, 2), 3: (1, 4, 2)}[n_ranks]
    per_token = Config.from_hf(LLAMA).kv_bytes_per_token(4) / 7
    held = [
        len(prompts) * (max(map(len, prompts)) + n_steps(rows) - 1)
        for prompts, rows in zip(PROMPTS, reports[0].tokens, strict=True)
    ]
    for report, n_layers in zip(reports, layers, strict=True):
        assert report.peak_cache_bytes == max(held) * n_layers * per_token


def test_two_batches_in_flight_keep_two_ranks_busy(folder):
    """With 40 ms per stage, a token of one batch takes 80 ms; of two, one comes every 40 ms."""
    batches = tuple((Request((b + 1, 5), 10),) for b in range(2))
    ranks = comm.launch(decode_slowly, 2, folder, batches, [1, 2], 0.04, **LAUNCH)
    one, two = (measured_timeline(round_robin(2, n), [rank[n] for rank in ranks]) for n in (1, 2))
    assert one.makespan > 20 * 2 * 0.04, "one batch at a time leaves one of the ranks idle"
    assert two.makespan > 20 * 0.04
    assert one.makespan / two.makespan > 1.25  # 2 on an idle machine
    both_busy = sum(
        max(0, min(a.end, b.end) - max(a.start, b.start))
        for a in two.spans[0]
        for b in two.spans[1]
    )
    assert both_busy > 0.25 * two.makespan  # 0.9 on an idle machine
    alone = [
        (a.op, b.op)
        for a in one.spans[0]
        for b in one.spans[1]
        if min(a.end, b.end) > max(a.start, b.start)
    ]
    assert not alone, "one batch is on one rank at a time"


def test_ranks_with_different_requests_say_so(folder):
    batches = ((Request((5, 6, 7), 4),), (Request((8, 9), 4),))
    for told in comm.launch(decode_other_requests, 2, folder, batches, **LAUNCH):
        assert "ranks disagree about the requests" in told


@pytest.mark.parametrize(
    ("batches", "n_slots", "told"),
    [
        ((), 1, "at least one batch"),
        (((Request((1,)),), ()), 1, "every batch needs a request"),
        (((Request((1,)),),), 2, "2 batches in flight, but there are 1"),
        (((Request((1,)),),), 0, "0 batches in flight"),
        (((Request(()),),), 1, "0 prompt tokens"),
        (((Request((1,), 0),),), 1, "0 new ones"),
        (((Request((1, 53)),),), 1, r"outside the vocabulary 0\.\.52"),
        (((Request((-1,)),),), 1, "outside the vocabulary"),
        (((Request((1,) * 60), Request((1,), 5)),), 1, "60 prompt tokens and 64 new ones exceed"),
    ],
)
def test_what_cannot_be_decoded_is_refused_before_anything_is_sent(batches, n_slots, told):
    with pytest.raises(ValueError, match=told):
        check_batches(batches, n_slots, vocab_size=53, context=64)


def test_slots_follow_the_tokens_alone():
    stop = frozenset({0})
    waiting = [
        [Request((1,), 9, stop)],
        [Request((1,), 9, stop), Request((1,), 2)],
        [Request((1,))],
    ]
    slots = Slots(waiting, 2)
    assert [batch.index for batch in slots.in_flight] == [0, 1]
    assert not slots.accept(1, [0, 5])  # row 0 has stopped, row 1 has not
    assert slots.accept(0, [0])
    assert [batch.index for batch in slots.in_flight] == [2, 1]
    assert slots.accept(1, [7, 6])
    assert slots.in_flight[1] is None and not slots.is_finished
    assert slots.batches[1].new_tokens == [[0], [5, 6]], "nothing is added to a finished row"


def test_no_slot_needs_more_steps_than_foreseen():
    assert Slots([[Request((1,), 3), Request((1,), 7)], [Request((1,), 5)]], 2).most_steps() == 7
    assert Slots([[Request((1,), 3), Request((1,), 7)], [Request((1,), 5)]], 1).most_steps() == 12
    batch = Batch(0, [Request((1,), 2)])
    batch.accept([4])
    assert not batch.is_done
    batch.accept([4])
    assert batch.is_done


# --- the real model ----------------------------------------------------------


@pytest.mark.model
def test_two_processes_share_the_real_model(real):
    model, tokenizer = real
    questions = ["What is the capital of France?", "Name three colours.", "Count from one to five."]
    stop = frozenset({tokenizer.eos_token_id})
    ids = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": q}], add_generation_prompt=True, return_dict=False
        )
        for q in questions
    ]
    batches = [[Request(tuple(ids[0]), 12, stop), Request(tuple(ids[1]), 9, stop)]]
    batches.append([Request(tuple(ids[2]), 10, stop)])
    expected = []
    for batch in batches:
        tokens, positions = left_pad([request.prompt for request in batch])
        free = generate(model, tokens, 12, positions=positions)
        expected.append([ended(r, row) for r, row in zip(batch, free, strict=True)])
    ranks = comm.launch(answer, 2, fetch(), batches, 2, **LAUNCH)
    for rank in ranks:
        assert rank.report.tokens == expected
    assert "Paris" in tokenizer.decode(expected[0][0])

    config, whole = model.config, sum(p.nbytes for p in model.parameters())
    for rank, layers in zip(ranks, split_layers(config.n_layers, 2), strict=True):
        assert rank.memory.layers == tuple(layers)
        assert rank.memory.owned_bytes == predicted_bytes(config, layers)
        # Both ends own the embedding, so two ranks hold 60.5 % each, not half.
        assert rank.memory.owned_bytes / whole == pytest.approx(0.605, abs=0.001)
        assert 0.98 < rank.memory.resident_bytes / rank.memory.owned_bytes < 1.1


@pytest.mark.model
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            "decode --prompt 'What is the capital of France?' --prompt Hello. --max-new-tokens 10",
            ["> What is the capital of France?", "Paris", "> Hello.", "tokens/s"],
        ),
        (
            "train --rows 2 --tokens 16 --microbatches 2 --schedule zbv --layers 8 7 8 7",
            ["step 0: loss", "step 1: loss", "tokens/s with zbv"],
        ),
    ],
    ids=["decode", "train"],
)
def test_the_torchrun_command_works_on_one_machine(arguments, told):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--local-addr=127.0.0.1", "--nproc-per-node=2", "-m", "kvpipe.pipeline"]
    command += shlex.split(arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    for text in [*told, "rank 0: ", "rank 1: "]:
        assert text in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("decode --prompt Hello.", "RANK, .* start this with torchrun"),
        ("decode", "--prompt"),
        ("train --schedule round-robin", "invalid choice: 'round-robin'"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_in_a_line(monkeypatch, capsys, arguments, told):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit) as end:
        main(shlex.split(arguments))
    assert re.search(told, f"{end.value}{capsys.readouterr().err}")
