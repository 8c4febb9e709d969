"""What a rank owns, how a batch is cut, a backward in two halves: the parts without processes."""

import json

import pytest
import torch
from pipeline_models import (
    MODELS,
    N_LAYERS,
    VOCAB,
    WIDTH,
    assert_same,
    batch,
    one_thread,
    write_checkpoint,
)
from safetensors.torch import load_file, save_file
from torch.utils.flop_counter import FlopCounterMode

from kvpipe.checkpoints import load_stage
from kvpipe.config import Config
from kvpipe.pipeline import gpipe, interleaved_1f1b, one_f_one_b, seq1f1b, zbv
from kvpipe.pipeline.backward import WeightGradients, deferring
from kvpipe.pipeline.compute import Chunk
from kvpipe.pipeline.loss import next_tokens, summed_cross_entropy
from kvpipe.pipeline.ops import Op
from kvpipe.pipeline.parts import cut
from kvpipe.pipeline.stages import load_stages, owned_bytes, predicted_bytes, split_layers
from kvpipe.transformer import Transformer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("tied"), MODELS["tied"])


@pytest.fixture(autouse=True)
def in_one_thread():
    with one_thread():
        yield


# --- what a rank owns --------------------------------------------------------


def test_layers_are_split_evenly_or_as_told():
    assert split_layers(7, 3) == (range(0, 3), range(3, 5), range(5, 7))
    assert split_layers(7, 3, [1, 5, 1]) == (range(0, 1), range(1, 6), range(6, 7))
    assert split_layers(3, 3) == (range(0, 1), range(1, 2), range(2, 3))
    assert split_layers(5, 1) == (range(0, 5),)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((3, 4), "3 layers cannot be cut into 4 chunks.*use 1 to 3"),
        ((3, 0), "3 layers cannot be cut into 0 chunks"),
        ((7, 2, [7, 0]), r"\[7, 0\]: expected 2 numbers of at least 1 that sum to 7"),
        ((7, 2, [3, 3]), "sum to 7"),
        ((7, 2, [3, 2, 2]), "expected 2 numbers"),
    ],
)
def test_a_split_that_leaves_a_rank_empty_or_a_layer_over_is_refused(arguments, told):
    with pytest.raises(ValueError, match=told):
        split_layers(*arguments)


def test_more_ranks_than_layers_are_refused(folder):
    with pytest.raises(ValueError, match="7 layers cannot be cut into 8 chunks"):
        load_stages(folder, one_f_one_b(8, 1), rank=0)
    with pytest.raises(ValueError, match="7 layers cannot be cut into 8 chunks"):
        load_stages(folder, interleaved_1f1b(4, 4, 2), rank=3)


@pytest.mark.parametrize("n_ranks", range(1, N_LAYERS + 1))
def test_the_stages_of_all_ranks_are_the_model(folder, n_ranks):
    """Chained by hand they compute the whole model's logits, whatever P is, bit for bit."""
    schedule = gpipe(n_ranks, 1)
    stages = {}
    for rank in range(n_ranks):
        stages |= load_stages(folder, schedule, rank)
    x = tokens = batch(3, 9)
    for chunk in range(n_ranks):
        x = stages[chunk](x)
    assert torch.equal(x, load_stage(folder)(tokens))


def test_a_rank_reads_only_the_tensors_it_owns(folder, tmp_path):
    """A checkpoint from which everything else was taken away is enough for it."""
    schedule, rank = zbv(2, 1), 1
    owned = [layer for s in load_stages(folder, schedule, rank).values() for layer in s.layers]
    assert owned == [2, 3, 4, 5]
    tensors = load_file(folder / "model.safetensors")
    kept = {n: t for n, t in tensors.items() if any(f"layers.{i}." in n for i in owned)}
    assert len(kept) < len(tensors)
    save_file(kept, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(MODELS["tied"]))
    stages = load_stages(tmp_path, schedule, rank)
    assert owned_bytes(stages) == sum(t.nbytes for t in kept.values())
    with pytest.raises(ValueError, match="the checkpoint lacks"):
        load_stages(tmp_path, schedule, rank=0)


@pytest.mark.parametrize("model", ["tied", "untied"])
def test_each_rank_holds_its_part_and_both_ends_the_tied_matrix(tmp_path, model):
    folder = write_checkpoint(tmp_path, MODELS[model])
    config = Config.from_hf(folder)
    whole = config.n_parameters() * 4
    owned = [owned_bytes(load_stages(folder, gpipe(3, 1), rank)) for rank in range(3)]
    predicted = [predicted_bytes(config, layers) for layers in split_layers(N_LAYERS, 3)]
    assert owned == predicted
    assert sum(owned) - whole == (VOCAB * WIDTH * 4 if model == "tied" else 0)


def test_where_both_ends_live_on_one_rank_the_tied_matrix_is_there_once(folder):
    stages = load_stages(folder, zbv(2, 1), rank=0)
    assert sorted(stages) == [0, 3]
    assert stages[3].head.weight is stages[0].embedding.weight
    parts = [predicted_bytes(Config.from_hf(folder), stage.layers) for stage in stages.values()]
    assert owned_bytes(stages) == sum(parts) - VOCAB * WIDTH * 4


# --- how a batch is cut ------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "n_rows", "n_tokens"),
    [
        (gpipe(2, 3), 8, 5),
        (gpipe(1, 5), 5, 1),
        (seq1f1b(2, 2, 3), 7, 11),
        (seq1f1b(2, 1, (5, 2)), 1, 7),
    ],
)
def test_parts_cover_the_batch_once(schedule, n_rows, n_tokens):
    parts, seen = cut(schedule, n_rows, n_tokens), torch.zeros(n_rows, n_tokens)
    for m in range(schedule.n_microbatches):
        for s in range(schedule.n_segments):
            op = Op("F", m, 0, s)
            seen[parts(op)] += 1
            assert tuple(seen[parts(op)].shape) == parts.shape(op)
    assert torch.equal(seen, torch.ones(n_rows, n_tokens))
    rows = [s.stop - s.start for s in parts.rows]
    assert max(rows) - min(rows) <= 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((gpipe(2, 5), 4, 9), "4 rows cannot be cut into 5 micro-batches"),
        ((seq1f1b(2, 2, (4, 4)), 4, 9), r"\[4, 4\] tokens make 8, but the sequences have 9"),
        ((seq1f1b(2, 2, 4), 4, 3), "3 tokens cannot be cut into 4 segments"),
    ],
)
def test_a_cut_with_an_empty_part_is_refused(arguments, told):
    with pytest.raises(ValueError, match=told):
        cut(*arguments)


# --- the backward in two halves ----------------------------------------------


@pytest.fixture(params=["tied", "qwen2", "qwen3"])
def model(request, tmp_path):
    return load_stage(write_checkpoint(tmp_path, MODELS[request.param]), dtype=torch.float64)


def loss_of(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    return summed_cross_entropy(model(tokens), next_tokens(tokens))


def test_both_halves_together_are_the_whole_backward(model):
    tokens = batch(3, 8)
    loss_of(model, tokens).backward()
    whole = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    later = WeightGradients()
    with deferring(later):
        loss = loss_of(model, tokens)
    loss.backward()
    early = {name for name, p in model.named_parameters() if p.grad is not None}
    vectors = {name for name, p in model.named_parameters() if "norm" in name}
    assert early == vectors | {"embedding.weight"}, "matrices must wait, and nothing else"
    later.compute()
    for name, p in model.named_parameters():
        assert_same(p.grad, whole[name], 1e-13, name)


def test_each_half_does_its_products_and_no_other(model):
    """dx = dy W and dW = dy^T x cost as much as y = x W^T; nothing is computed twice."""
    tokens = batch(3, 8)
    n = tokens.numel()
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    head = VOCAB * WIDTH if model.head is None else 0
    product = 2 * n * (sum(p.numel() for p in matrices) + head)

    with FlopCounterMode(display=False) as whole:
        loss = loss_of(model, tokens)
        forward = whole.get_total_flops()
        loss.backward()
    later = WeightGradients()
    with deferring(later):
        loss = loss_of(model, tokens)
    with FlopCounterMode(display=False) as first:
        loss.backward()
    with FlopCounterMode(display=False) as second:
        later.compute()
    assert second.get_total_flops() == product
    assert first.get_total_flops() == whole.get_total_flops() - forward - product


def test_what_waits_is_the_input_and_the_gradient_of_every_product(model):
    tokens = batch(3, 8)
    later = WeightGradients()
    with deferring(later):
        loss = loss_of(model, tokens)
    assert later.nbytes == 0
    loss.backward()
    c = model.config
    heads, kv_heads = c.n_heads * c.head_size, c.n_kv_heads * c.head_size
    inputs = c.width + heads + c.width + c.ffn_width
    gradients = heads + 2 * kv_heads + c.width + 2 * c.ffn_width + c.width
    per_token = c.n_layers * (inputs + gradients) + c.width + c.vocab_size
    assert later.nbytes == tokens.numel() * per_token * 8
    later.compute()
    assert later.nbytes == 0


def test_deferring_leaves_nothing_behind_and_respects_frozen_weights(model):
    tokens, later = batch(2, 5), WeightGradients()
    model.blocks["0"].ffn.up.weight.requires_grad_(False)
    with deferring(later):
        loss = loss_of(model, tokens)
    loss.backward()
    later.compute()
    assert model.blocks["0"].ffn.up.weight.grad is None
    assert model.blocks["0"].ffn.down.weight.grad is not None
    before = model.blocks["1"].ffn.up.weight.grad.clone()
    loss_of(model, tokens).backward()
    later.compute()
    assert_same(model.blocks["1"].ffn.up.weight.grad, 2 * before, 1e-13, "a plain backward again")


def test_a_chunk_lets_go_of_what_it_held(folder):
    chunk = Chunk(load_stage(folder, range(0, 3), dtype=torch.float64), 2, counts_bytes=True)
    tokens, positions = batch(2, 6), torch.arange(6).expand(2, 6)
    outs = []
    for segment in (slice(0, 4), slice(4, 6)):
        part = (0, len(outs))
        outs.append(chunk.forward(part, tokens[:, segment], positions[:, segment], splits=True))
    assert chunk.n_held == 2 and chunk.held_bytes > 0
    assert not any(out.requires_grad for out in outs)
    for part in (1, 0):
        assert chunk.backward((0, part), torch.ones_like(outs[part])) is None  # tokens came in
    graphs_gone = chunk.held_bytes
    for part in (0, 1):
        chunk.weight_gradient((0, part))
    assert (chunk.n_held, chunk.held_bytes) == (0, 0) and graphs_gone > 0


def test_targets_are_the_next_tokens_and_padding_has_none():
    tokens = torch.tensor([[1, 2, 3], [9, 4, 5]])
    assert next_tokens(tokens).tolist() == [[2, 3, -100], [4, 5, -100]]
    positions = torch.tensor([[0, 1, 2], [-1, 0, 1]])
    assert next_tokens(tokens, positions).tolist() == [[2, 3, -100], [-100, 5, -100]]
