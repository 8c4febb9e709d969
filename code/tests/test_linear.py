"""The product of `kvpipe.linear`: the usual values on every path, and which path is taken."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kvpipe import linear as module
from kvpipe.checkpoints import load_stage
from kvpipe.linear import Linear, lay_out, linear, together

has_onednn = pytest.mark.skipif(module._onednn is None, reason="this torch has no oneDNN product")
is_x86 = pytest.mark.skipif(
    not module._is_x86(), reason="`lay_out` changes nothing on this machine"
)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Rows of x: nothing around them, the decoder's (B, T) for decoding and prefill, more than a block.
ROWS = ((), (1,), (1, 1), (2, 1), (3, 7), (130,))
SIZES = ((48, 80), (80, 48), (97, 33), (1, 5), (5, 1))  # (out, in)


def product(rows: tuple[int, ...], n_out: int, n_in: int, dtype=torch.float32, bias=True):
    """x, weight and bias of the given sizes, always the same numbers."""
    generator = torch.Generator().manual_seed(n_out * 1000 + n_in)
    sizes = ((*rows, n_in), (n_out, n_in), (n_out,))
    x, weight, b = (torch.randn(size, generator=generator).to(dtype) for size in sizes)
    return x, weight, b if bias else None


def by_columns(weight: Tensor) -> Tensor:
    """The same matrix as `lay_out` stores it."""
    tensors = {"weight": weight}
    lay_out(tensors, [["weight"]])
    return tensors["weight"]


def beside_another(weight: Tensor) -> Tensor:
    """The same matrix, its columns between those of another."""
    tensors = {"other": torch.randn(7, weight.shape[1]).to(weight.dtype), "weight": weight}
    lay_out(tensors, [["other", "weight"]])
    return tensors["weight"]


LAYOUTS = {"rows": torch.clone, "columns": by_columns, "beside-another": beside_another}
layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def assert_product(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Equal to float64 up to rounding: `n_in` additions of terms as large as their sum of moduli,
    and one rounding of the result."""
    x, weight = x.double(), weight.double()
    exact, size = F.linear(x, weight), F.linear(x.abs(), weight.abs())
    if bias is not None:
        exact, size = exact + bias.double(), size + bias.double().abs()
    limit = x.shape[-1] * torch.finfo(torch.float32).eps * size
    limit += 2 * torch.finfo(y.dtype).eps * size.clamp(max=exact.abs() + 1)
    assert y.shape == exact.shape
    assert ((y.double() - exact).abs() <= limit).all()


@pytest.fixture(params=[1, 2, 3], ids="{}-threads".format)
def n_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@layouts
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@torch.inference_mode()
def test_every_path_gives_the_usual_product(n_threads, dtype, layout, bias):
    for rows in ROWS:
        for n_out, n_in in SIZES:
            x, weight, b = product(rows, n_out, n_in, dtype, bias)
            assert_product(linear(x, layout(weight), b), x, weight, b)


@layouts
@torch.no_grad()
def test_x_may_lie_in_memory_as_it_likes(layout):
    _, weight, bias = product((), 48, 80)
    for x in (
        torch.randn(80, 4).T[1:2],
        torch.randn(1, 2, 160)[:, 1:, ::2],
        torch.randn(1, 1).expand(1, 80),
        torch.randn(80, 3).T,
    ):
        assert_product(linear(x, layout(weight), bias), x, weight, bias)


@is_x86
@torch.no_grad()
def test_infinite_and_undefined_numbers_come_through():
    x, weight, _ = product((1,), 48, 80)
    x[0, 3], weight[7, 5], weight[9] = torch.inf, torch.nan, 0
    y, usual = linear(x, by_columns(weight)), F.linear(x, weight)
    assert torch.equal(y.isnan(), usual.isnan())
    assert torch.equal(y.isinf(), usual.isinf())


@has_onednn
@is_x86
@torch.no_grad()
def test_a_matrix_with_gaps_stays_away_from_onednn(monkeypatch):
    x, weight, bias = product((2, 3), 48, 80)
    forbid(monkeypatch, module, "_onednn")
    for gaps in (beside_another(weight), torch.randn(96, 80)[::2], torch.randn(48, 90)[:, :80]):
        linear(x, gaps, bias)


class Unused(Exception):
    """A path was taken that should not be."""


def forbid(monkeypatch, owner: object, name: str) -> None:
    def refuse(*_, **__):
        raise Unused(name)

    monkeypatch.setattr(owner, name, refuse)


@is_x86
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [(), (1,), (1, 1)])
@torch.no_grad()
def test_one_row_times_columns_is_a_weighted_sum(monkeypatch, dtype, rows):
    x, weight, bias = product(rows, 48, 80, dtype)
    forbid(monkeypatch, F, "linear")
    forbid(monkeypatch, module, "_onednn")
    linear(x, by_columns(weight), bias)


@has_onednn
@pytest.mark.parametrize("layout", [torch.clone, by_columns], ids=["rows", "columns"])
@torch.no_grad()
def test_several_float32_rows_go_to_onednn(monkeypatch, layout):
    x, weight, bias = product((2, 3), 48, 80)
    forbid(monkeypatch, F, "linear")
    forbid(monkeypatch, torch, "embedding_bag")
    linear(x, layout(weight), bias)


@pytest.mark.parametrize("rows", [(1, 1), (2, 3)])
@layouts
@pytest.mark.parametrize("needs_grad", ["x", "weight"])
def test_gradients_are_those_of_the_usual_product(rows, layout, needs_grad):
    def gradients(function, weight: Tensor) -> list[Tensor | None]:
        x = x0.clone().requires_grad_(needs_grad == "x")
        weight = weight.detach().requires_grad_(needs_grad == "weight")
        function(x, weight, bias).square().sum().backward()
        return [x.grad, weight.grad]

    x0, weight, bias = product(rows, 48, 80)
    found, expected = gradients(linear, layout(weight)), gradients(F.linear, layout(weight))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert ours.abs().sum() > 0
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_module_learns_whatever_its_layout():
    layers = [Linear(80, 48), Linear(80, 48)]
    layers[1].load_state_dict(layers[0].state_dict())
    layers[1].weight = torch.nn.Parameter(by_columns(layers[0].weight.detach()))
    x = torch.randn(5, 80)
    for layer in layers:
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            layer(x).square().mean().backward()
            optimizer.step()
    # Five rows summed in another order: a few roundings, enlarged by Adam's division.
    torch.testing.assert_close(layers[1].weight, layers[0].weight, rtol=1e-3, atol=1e-4)


def test_what_the_first_call_prepares_serves_every_mode():
    module._bags.cache_clear()
    x, weight, _ = product((1,), 48, 80)
    with torch.inference_mode():
        first = linear(x, by_columns(weight))
    with torch.no_grad():
        assert torch.equal(linear(x, by_columns(weight)), first)
    linear(x, by_columns(weight).requires_grad_()).sum().backward()


@torch.no_grad()
def test_sizes_that_do_not_fit_are_refused():
    # 2 rows of 40 are as many numbers as one row of 80, and still not a row.
    for x in (torch.randn(2, 40), torch.randn(1, 79), torch.randn(40)):
        for weight in (torch.randn(48, 80), by_columns(torch.randn(48, 80))):
            with pytest.raises(RuntimeError, match=r"shape|size"):
                linear(x, weight)


@torch.no_grad()
def test_dtypes_that_differ_are_refused():
    for rows in ((1,), (2, 3)):
        x, weight, _ = product(rows, 48, 80)
        with pytest.raises(RuntimeError, match="dtype"):
            linear(x, by_columns(weight.bfloat16()))


@torch.no_grad()
def test_no_rows_give_no_rows():
    assert linear(torch.empty(0, 3, 80), torch.randn(48, 80)).shape == (0, 3, 48)
    assert linear(torch.empty(1, 0), torch.empty(48, 0)).tolist() == [[0.0] * 48]


def test_other_devices_take_the_usual_product():
    with torch.device("meta"):
        assert linear(torch.empty(1, 80), torch.empty(48, 80)).shape == (1, 48)
        assert by_columns(torch.empty(48, 80)).is_contiguous()


@is_x86
def test_every_thread_gets_an_equal_part():
    parts = {threads: module._n_parts(576, threads) for threads in (1, 2, 5, 7, 64)}
    assert parts == {1: 1, 2: 2, 5: 4, 7: 6, 64: 64}
    rows, starts = module._bags(4, 2)
    assert rows.tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert starts.tolist() == [0, 4]


SIDE = {"query": (48, 80), "key": (16, 80), "value": (16, 80), "output": (80, 48)}
GROUPS = [["query", "key", "value"], ["output"]]


def laid_out(dtype=torch.float32) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Matrices as they are, and as `lay_out` stores them in groups; with a vector it must spare."""
    generator = torch.Generator().manual_seed(1)
    plain = {name: torch.randn(size, generator=generator).to(dtype) for name, size in SIDE.items()}
    plain["norm"] = torch.randn(80)
    moved = dict(plain)
    lay_out(moved, GROUPS)
    return plain, moved


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lay_out_moves_numbers_and_changes_none(dtype):
    plain, moved = laid_out(dtype)
    for name, tensor in plain.items():
        assert torch.equal(moved[name], tensor), name
        assert moved[name].dtype is tensor.dtype
    assert moved["norm"] is plain["norm"]


@is_x86
def test_lay_out_puts_a_groups_columns_side_by_side():
    plain, moved = laid_out()
    assert moved["output"].stride() == (1, 80)
    assert {moved[name].stride() for name in GROUPS[0]} == {(1, 48 + 16 + 16)}
    first = moved["query"].data_ptr()
    assert [moved[name].data_ptr() - first for name in GROUPS[0]] == [0, 4 * 48, 4 * 64]
    joint = module._joint([moved[name] for name in GROUPS[0]])
    assert torch.equal(joint, torch.cat([plain[name] for name in GROUPS[0]]))
    # One stretch of memory for all groups.
    assert moved["output"].data_ptr() - first == 4 * 80 * 80
    moved["key"].zero_()
    for name in ("query", "value", "output"):
        assert torch.equal(moved[name], plain[name])


def test_weights_that_are_not_neighbours_are_not_joined():
    plain, moved = laid_out()
    for weights in (
        [plain["query"], plain["key"]],
        [moved["query"], moved["key"]],  # the value's columns lie between
        [moved["query"], moved["value"], moved["key"]],
        [moved["query"], moved["query"], moved["key"]],
        [moved["query"], moved["key"], moved["value"].clone()],
    ):
        assert module._joint(weights) is None


def layers_of(tensors: dict[str, Tensor], bias: bool) -> list[Linear]:
    layers = []
    for name in GROUPS[0]:
        layer = Linear(80, len(tensors[name]), bias=bias)
        layer.weight = torch.nn.Parameter(tensors[name])
        if bias:
            layer.bias.data = torch.arange(len(tensors[name])) + 0.5
        layers.append(layer)
    return layers


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_together_is_each_layer_by_itself(n_threads, bias, mode):
    plain, moved = laid_out()
    for rows in ROWS:
        x, _, _ = product(rows, 1, 80)
        for tensors in (plain, moved):
            layers = layers_of(tensors, bias)
            with mode():
                parts = together(x, *layers)
            for part, layer, name in zip(parts, layers, GROUPS[0], strict=True):
                found = part.detach()
                assert_product(found, x, plain[name], layer.bias.detach() if bias else None)


@is_x86
@pytest.mark.parametrize("rows", [(1, 1), (2, 3)])
def test_neighbours_cost_one_product_each_with_gradients_and_one_without(monkeypatch, rows):
    calls = []
    monkeypatch.setattr(module, "linear", lambda *a: calls.append(a) or linear(*a))
    layers, (x, _, _) = layers_of(laid_out()[1], bias=False), product(rows, 1, 80)

    def count() -> int:
        calls.clear()
        together(x, *layers)
        return len(calls)

    assert count() == 3
    with torch.no_grad():
        assert count() == 1
    for layer in layers[1:]:
        layer.requires_grad_(False)
    assert count() == 3
    layers[0].requires_grad_(False)
    assert count() == 1
    x.requires_grad_()
    assert count() == 3


def test_gradients_reach_every_neighbour():
    plain, moved = laid_out()
    x, _, _ = product((2, 3), 1, 80)
    gradients = []
    for tensors in (plain, moved):
        layers = layers_of(tensors, bias=True)
        sum(part.square().sum() for part in together(x, *layers)).backward()
        gradients.append([p.grad for layer in layers for p in layer.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        # The same sums over six rows, in an order that the layout may change.
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)


@is_x86
@pytest.mark.parametrize("layer_range", [None, range(1, 2)])
def test_a_loaded_model_has_its_neighbours_side_by_side(tiny, tmp_path, layer_range):
    for family in ("llama", "qwen2", "qwen3"):
        tiny(family)[1].save_pretrained(tmp_path / family)
        stage = load_stage(tmp_path / family, layer_range)
        for block in stage.blocks.values():
            inner, ffn = block.attention, block.ffn
            neighbours = [layer.weight for layer in (inner.query, inner.key, inner.value)]
            assert module._joint(neighbours) is not None
            for layer in (inner.output, ffn.gate, ffn.up, ffn.down):
                assert layer.weight.stride() == (1, len(layer.weight))


@is_x86
@torch.inference_mode()
def test_a_loaded_model_decodes_with_five_products_a_layer(tiny, monkeypatch):
    calls = []
    bag = torch.embedding_bag
    monkeypatch.setattr(torch, "embedding_bag", lambda *a, **k: calls.append(a) or bag(*a, **k))
    ours, _ = tiny("llama")
    ours(torch.tensor([[5]]))
    assert len(calls) == 5 * ours.config.n_layers
