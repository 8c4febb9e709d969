"""A whole model over ranks: prefill, a cache sharded by token, and the tokens that follow.

The oracle is the same model in one process. Logits differ by float32 rounding through all layers;
new tokens must be identical.
"""

import re
import shlex
import subprocess
import sys
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from context_ranks import prefill_and_generate, prefill_complaints, train
from pipeline_models import MODELS, VOCAB, write_checkpoint
from tiny_models import assert_near

from kvpipe import comm
from kvpipe.attention import attention
from kvpipe.cache import KVCache
from kvpipe.checkpoints import fetch, load_stage
from kvpipe.context import Interleave, Shape, decode_bytes, zigzag
from kvpipe.context.__main__ import main
from kvpipe.context.circle import SimulatedRing
from kvpipe.context.decode import DecodeAttention, ShardedCache, decode_attention, local_attention
from kvpipe.context.jobs import prefill_and_decode
from kvpipe.context.merge import merge
from kvpipe.context.plan import Plan
from kvpipe.context.prefill import PrefillAttention
from kvpipe.generate import generate, left_pad
from kvpipe.pipeline.loss import next_tokens

LAUNCH = {"timeout_s": 240, "threads": 1}
NAMES = ("tied", "qwen3", "shared")  # plain, with a window of 3 and QK norm, with shared KV
N_NEW = 6
DRAWN = {"temperature": 1.0, "top_k": 20, "seed": 8}
CASES = [
    {"layout": "zigzag"},
    {"layout": "striped", "method": "all_gather", "interleave": 4},
    {"layout": "zigzag", "sampling": DRAWN},
    {"layout": "contiguous", "sampling": {"temperature": 1.0}},  # no seed: one is agreed on
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return [write_checkpoint(root / name, MODELS[name], seed=2) for name in NAMES]


@pytest.fixture(scope="module")
def prompts():
    """Rows of 23 and 17 tokens, padded on the left."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(VOCAB, (n,), generator=generator).tolist() for n in (23, 17)]
    return left_pad(rows)


@pytest.fixture(scope="module")
def serial(folders, prompts):
    """Per model: the logits of the prompt, and per sampling the new tokens, in one process."""
    tokens, positions = prompts
    found = []
    for folder in folders:
        model = load_stage(folder)
        with torch.inference_mode():
            logits = model(tokens, positions)
        new = [
            generate(model, tokens, N_NEW, positions=positions, **sampling)
            for sampling in ({}, DRAWN)
        ]
        found.append((logits, *new))
    return found


@pytest.mark.timeout(280)
@pytest.mark.parametrize("P", [1, 2, 3])
def test_logits_and_tokens_are_those_of_one_process(folders, prompts, serial, P):
    tokens, positions = prompts
    ranks = comm.launch(prefill_and_generate, P, folders, tokens, positions, N_NEW, CASES, **LAUNCH)
    for (m, (logits, greedy, drawn)), (c, case) in product(enumerate(serial), enumerate(CASES)):
        found = [rank[m][c] for rank in ranks]
        taken = sorted(t for of_rank in found for t in of_rank[0])
        assert taken == list(range(23))
        for mine, part, new, _ in found:
            is_token = positions[:, mine] >= 0
            # Seven layers of random weights; the worst of three models is 4e-6.
            assert_near(part[is_token], logits[:, mine][is_token], 2e-5)
            assert new == found[0][2], "all ranks have the same tokens"
            if c < 3:
                assert new == (drawn if case.get("sampling") else greedy), (NAMES[m], case)
        whole = KVCache()
        with torch.inference_mode():
            load_stage(folders[m])(tokens, positions, whole)
        assert sum(of_rank[3] for of_rank in found) == whole.nbytes, "every token is cached once"


def test_a_prompt_that_is_short_or_differs_is_refused_on_all_ranks(folders, prompts):
    told = comm.launch(prefill_complaints, 2, folders[0], prompts[0], **LAUNCH)
    assert all("1 tokens cannot be laid zigzag over 2 ranks" in t["short"] for t in told)
    assert all("ranks disagree about the batch" in t["other"] for t in told)


@pytest.mark.parametrize(("P", "n_ignored"), [(2, 0), (3, 11)])
def test_a_model_trains_on_sequences_that_lie_on_all_ranks(folders, P, n_ignored):
    """With 11 targets ignored, the last of three ranks has none: its loss is 0, not 0 / 0.

    The targets cross the borders of shards, and all are divided by the number on all ranks.
    """
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(VOCAB, (2, 17), generator=generator)
    model = load_stage(folders[1])
    targets = next_tokens(tokens)
    targets[:, 17 - n_ignored :] = -100
    F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    for grads in comm.launch(train, P, folders[1], tokens, n_ignored, **LAUNCH):
        assert grads.keys() == expected.keys()
        for name, grad in grads.items():
            assert_near(grad, expected[name], 5e-5)  # float32 through seven layers and back


def test_positions_of_the_model_are_the_places_in_the_whole_sequence(folders):
    """Rotary angles from local places would give other logits: the plan refuses those."""
    plan = Plan.of(zigzag(16, 2))
    attend = PrefillAttention(SimulatedRing(2), plan)
    attend.ring.rank = 1
    q, local = torch.randn(1, 4, 8, 10), torch.arange(8)[None]
    with pytest.raises(ValueError, match="not those that the plan has for rank 1"):
        attend(q, q[:, :2], q[:, :2], local, local)
    with pytest.raises(ValueError, match="prefill starts with an empty cache"):
        longer = torch.arange(9)[None]
        attend(q, q[:, :2], q[:, :2], plan.positions[1], longer)


# A cache sharded by token.

B, H, K, D = 2, 6, 2, 8


def steps(n: int, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(B, heads, n, D, generator=generator) for heads in (H, K, K)]


def attended(cache: KVCache, new: tuple, q_positions: torch.Tensor) -> tuple:
    """Arguments of attention after the queries, once `cache` has the new tokens."""
    keys, values, places = cache.append(0, *new)
    return keys, values, q_positions, places


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("P", "block"), [(1, 1), (2, 1), (3, 2), (4, 16)])
def test_decoding_from_a_sharded_cache_is_decoding_from_a_whole_one(P, block, window):
    """Chunks of 2, 1, 1, 5 and 8 tokens; with blocks of 16 on 4 ranks, two never get a token."""
    rule, circle, whole = Interleave(P, block), SimulatedRing(P), KVCache(1)
    caches = [ShardedCache(rank, rule) for rank in range(P)]
    q, k, v = steps(17)
    start = torch.tensor([[0], [-2]])  # row 1 is two tokens shorter, padded on the left
    done = 0
    for n in (2, 1, 1, 5, 8):
        now = slice(done, done + n)
        positions = (start + torch.arange(done, done + n)).clamp(min=-1)
        new = k[:, :, now], v[:, :, now], positions
        expected = attention(q[:, :, now], *attended(whole, new, positions), window)
        held = [cache.append(0, *new) for cache in caches]
        keys, values, places = zip(*held, strict=True)
        found = decode_attention(circle, q[:, :, now], keys, values, positions, places, window)
        done += n
        for rank, out in enumerate(found):
            assert_near(out, expected, 2e-6)
            assert torch.equal(out, found[0]), "the same bits on every rank"
            assert caches[rank].seen == done
            assert keys[rank].shape[2] == rule.length(rank, done)
    assert sum(cache.nbytes for cache in caches) == whole.nbytes


def test_layers_are_counted_apart():
    cache = ShardedCache(1, Interleave(2))
    _, k, v = steps(3)
    positions = torch.arange(3).expand(B, -1)
    for layer in (0, 4):
        _, _, places = cache.append(layer, k, v, positions)
        assert places.tolist() == [[1]] * B
        assert cache.seen == 3


def test_a_cache_that_starts_with_a_share_of_a_prompt_goes_on_counting():
    _, k, v = steps(4)
    local = KVCache()
    local.append(0, k[:, :, :2], v[:, :, :2], torch.tensor([[0, 3]] * B))
    cache = ShardedCache(1, Interleave(2), local, seen=5)
    _, _, places = cache.append(0, k, v, torch.arange(5, 9).expand(B, -1))
    assert places.tolist() == [[0, 3, 5, 7]] * B and cache.seen == 9


def test_what_travels_is_an_output_and_its_log_sum_exp_however_long_the_cache():
    for n_tokens in (16, 48):
        circle = SimulatedRing(3)
        q, k, v = steps(n_tokens)
        parts = list(zip(k.chunk(3, dim=2), v.chunk(3, dim=2), strict=True))
        places = list(torch.arange(n_tokens).expand(B, -1).chunk(3, dim=1))
        decode_attention(
            circle, q[:, :, :1], [p[0] for p in parts], [p[1] for p in parts],
            torch.full((B, 1), n_tokens), places,
        )  # fmt: skip
        expected = decode_bytes(Shape(3, 3, H, K, D, batch=B))
        assert circle.sent_bytes == dict.fromkeys(range(3), expected)


def test_a_rank_without_keys_takes_part_and_changes_nothing():
    q, k, v = steps(5)
    positions = torch.arange(5).expand(B, -1)
    empty = k[:, :, :0], v[:, :, :0], positions[:, :0]
    keys, values, places = zip(empty, (k, v, positions), empty, strict=True)
    found = decode_attention(SimulatedRing(3), q, keys, values, positions, places)
    for out in found:
        assert_near(out, attention(q, k, v, positions, positions), 2e-6)
    unseen = local_attention(q, k, v, positions - 9, positions)
    assert (unseen.out == 0).all() and (unseen.lse == -torch.inf).all()
    seen = local_attention(q, k, v, positions, positions)
    torch.testing.assert_close(merge(seen, unseen).out, seen.out)


def test_the_decoders_attend_takes_the_arguments_of_chapter_1():
    q, k, v = steps(5)
    positions = torch.arange(5).expand(B, -1)
    found = DecodeAttention(SimulatedRing(1))(q, k, v, positions, positions, 2)
    assert_near(found, attention(q, k, v, positions, positions, 2), 2e-6)


def test_a_rank_outside_the_interleave_is_refused():
    with pytest.raises(ValueError, match=r"rank 2 is outside 0\.\.1"):
        ShardedCache(2, Interleave(2))


# The real model.


@pytest.mark.model
@pytest.mark.timeout(280)
@pytest.mark.parametrize("P", [2, 4])
def test_the_real_model_is_prefilled_by_several_ranks(real, P):
    model, tokenizer = real
    text = "A ring passes keys and values on. " * 12 + "The capital of France is"
    prompt = torch.tensor([tokenizer(text).input_ids])
    S, c = prompt.shape[1], model.config
    expected = generate(model, prompt, 5)
    with torch.inference_mode():
        logits = model(prompt, n_logits=1)[:, -1]
    ranks = comm.launch(prefill_and_decode, P, fetch(), prompt, 5, **LAUNCH)
    per_token = c.kv_bytes_per_token(4)
    for rank in ranks:
        assert rank.new_tokens == expected
        assert rank.cache_bytes == len(rank.tokens) * per_token
        assert abs(len(rank.tokens) - S / P) <= 2
        if S - 1 in rank.tokens:
            assert_near(rank.logits, logits, 1e-4)  # 30 layers in float32
    assert sum(rank.sent_bytes for rank in ranks) == (P - 1) * S * per_token
    assert "Paris" in tokenizer.decode(expected[0])


@pytest.mark.model
def test_the_torchrun_command_works_on_one_machine(tmp_path):
    (tmp_path / "report.txt").write_text("The code of the door is 7391. " * 3, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--local-addr=127.0.0.1", "--nproc-per-node=2", "-m", "kvpipe.context"]
    command += ["--prompt", "What is the code of the door?", "--max-new-tokens", "16"]
    command += ["--file", str(tmp_path / "report.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    for text in ("7391", "rank 0: sent ", "rank 1: sent ", "prompt tokens on 2 ranks"):
        assert text in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--prompt Hello.", "RANK, .* start this with torchrun"),
        ("--file x.txt", "--prompt"),
        ("--prompt Hello. --layout diagonal", "invalid choice: 'diagonal'"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_in_a_line(monkeypatch, capsys, arguments, told):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit) as end:
        main(shlex.split(arguments))
    assert re.search(told, f"{end.value}{capsys.readouterr().err}")
