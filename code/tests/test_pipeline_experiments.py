"""What chapter 2 times is right first: tokens, bytes and losses of real processes."""

import pytest
import torch
from pipeline_models import MODELS, batch, serial_step, write_checkpoint

from kvpipe import comm
from kvpipe.checkpoints import load_stage
from kvpipe.generate import generate
from kvpipe.pipeline import build, by_hand, experiments
from kvpipe.pipeline.batching import Request
from kvpipe.pipeline.loss import next_tokens

PROMPTS = [[5, 9, 3, 30], [7, 7, 2], [1, 50, 11, 4, 8]]
N_NEW = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("models") / "tied", MODELS["tied"])


@pytest.fixture(scope="module")
def answers(folder):
    model = load_stage(folder)
    return [generate(model, [prompt], max_new_tokens=N_NEW)[0] for prompt in PROMPTS]


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_the_pipeline_by_hand_gives_the_tokens_and_bytes_of_the_formula(folder, answers, n_ranks):
    done = comm.launch(by_hand.greedy, n_ranks, folder, PROMPTS[0], N_NEW, threads=1)
    assert [tokens for tokens, _ in done] == [answers[0]] * n_ranks
    width = MODELS["tied"]["hidden_size"]
    hidden = [len(PROMPTS[0]) * width * 4] + [width * 4] * (N_NEW - 1)
    assert [sent for _, sent in done[:-1]] == [hidden] * (n_ranks - 1)
    # The last rank sends each token to every other.
    assert done[-1][1] == [8] * N_NEW * (n_ranks - 1)


def test_decoding_runs_agree_with_one_process_however_they_are_split(folder, answers):
    batches = [[Request(tuple(prompt), N_NEW)] for prompt in PROMPTS]
    runs = [(None, 2), ((5, 2), 2), (None, 3)]
    done = comm.launch(experiments.decode_runs, 2, folder, batches, runs, 2, threads=1)
    for rank in done:
        assert [len(repeats) for repeats in rank.reports] == [2, 2, 2]
        for (_, n), repeats in zip(runs, rank.reports, strict=True):
            for report in repeats:
                assert report.tokens == [[answer] for answer in answers[:n]]
        assert rank.link_s > 0
    assert [rank.memory.layers for rank in done] == [(0, 1, 2, 3), (4, 5, 6)]
    even, uneven = ([rank.reports[run][0].peak_cache_bytes for rank in done] for run in (0, 1))
    assert [b / a for a, b in zip(even, uneven, strict=True)] == [5 / 4, 2 / 3]


def test_training_runs_agree_with_one_process_under_every_schedule(folder):
    steps = [batch(4, 5, seed) for seed in (1, 2)]
    schedules = {name: build(name, 2, 2) for name in ("gpipe", "1f1b", "zbv")}
    schedules["torch"] = build("1f1b", 2, 2)
    done = comm.launch(
        experiments.train_runs, 2, folder, schedules, steps, 0.1, ["torch"], threads=1
    )
    loss, gradients = serial_step(folder, steps[0], next_tokens(steps[0]))
    model = load_stage(folder, dtype=torch.float64)
    for name, weight in model.named_parameters():
        weight.data -= 0.1 * gradients[name]
    logits = model(steps[1])[:, :-1].flatten(0, 1)
    after = torch.nn.functional.cross_entropy(logits, steps[1][:, 1:].flatten()).item()
    for name, schedule in schedules.items():
        last = done[schedule.placement[-1]][name]
        assert last.losses == pytest.approx([loss, after], rel=1e-5), name
        assert len(last.seconds) == 2
        assert len(last.reports) == (0 if name == "torch" else 2)
    assert done[0]["gpipe"].reports[0].peak_activation_bytes > 0
