"""The product of `kvpipe.linear`: the usual values on every path, and which path is taken."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kvpipe import linear as module
from kvpipe.linear import Linear, by_columns, linear

has_onednn = pytest.mark.skipif(module._onednn is None, reason="this torch has no oneDNN product")
is_x86 = pytest.mark.skipif(not module._is_x86(), reason="`by_columns` keeps rows on this machine")
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
@pytest.mark.parametrize("layout", [torch.clone, by_columns], ids=["rows", "columns"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@torch.inference_mode()
def test_every_path_gives_the_usual_product(n_threads, dtype, layout, bias):
    for rows in ROWS:
        for n_out, n_in in SIZES:
            x, weight, b = product(rows, n_out, n_in, dtype, bias)
            assert_product(linear(x, layout(weight), b), x, weight, b)


@pytest.mark.parametrize("layout", [torch.clone, by_columns], ids=["rows", "columns"])
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
@pytest.mark.parametrize("layout", [torch.clone, by_columns], ids=["rows", "columns"])
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
def test_by_columns_moves_numbers_and_changes_none():
    weight = torch.randn(48, 80)
    columns = by_columns(weight)
    assert torch.equal(columns, weight)
    assert columns.stride() == (1, 48)
    assert columns.data_ptr() != weight.data_ptr()


@is_x86
def test_every_thread_gets_an_equal_part():
    parts = {threads: module._n_parts(576, threads) for threads in (1, 2, 5, 7, 64)}
    assert parts == {1: 1, 2: 2, 5: 4, 7: 6, 64: 64}
    rows, starts = module._bags(4, 2)
    assert rows.tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert starts.tolist() == [0, 4]
