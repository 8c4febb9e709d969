"""The derivation's two tools: the shown source is the real one, and sameness includes gradients."""

import inspect

import pytest
import torch

from kvpipe import attention
from kvpipe.derivation import assert_same, show


class Detached(torch.autograd.Function):
    """Doubles its input and claims a slope of 3."""

    @staticmethod
    def forward(context, x):
        return 2 * x

    @staticmethod
    def backward(context, gradient):
        return 3 * gradient


def test_the_shown_source_is_the_installed_one():
    shown = show(attention.visible, attention.attention)
    page = shown._repr_markdown_()
    for function in (attention.visible, attention.attention):
        assert inspect.getsource(function) in page
        assert f"`kvpipe.attention.{function.__name__}`" in page
    assert repr(shown) == "[source] kvpipe.attention.visible, kvpipe.attention.attention"


def test_a_method_is_shown_without_its_indentation():
    from kvpipe.cache import KVCache

    assert "python\ndef append(self" in show(KVCache.append)._repr_markdown_()


def test_nothing_to_show_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        show()


def test_equal_functions_pass_with_every_input_and_parameter():
    scale = torch.randn(4, requires_grad=True)
    assert_same(
        lambda x, y: x * scale + y,
        lambda x, y: y + scale * x,
        torch.randn(2, 3, 4),
        torch.randn(3, 4),
        parameters=[scale],
    )


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda x, y: x * y + 0.01, "not close"),
        (lambda x, y: (x * y)[..., :1], "shape"),
        (lambda x, y: x.detach() * y + (x - x.detach()) * 0, "gradients of input 0"),
        (lambda x, y: x * y.detach() + 0 * y, "gradients of input 1"),
    ],
    ids=["a value", "a shape", "the first gradient", "the second gradient"],
)
def test_a_difference_is_noticed(module, message):
    with pytest.raises(AssertionError, match=message):
        assert_same(lambda x, y: x * y, module, torch.randn(2, 3), torch.randn(2, 3))


def test_a_wrong_slope_behind_right_values_is_noticed():
    with pytest.raises(AssertionError, match="gradients of input 0"):
        assert_same(lambda x: 2 * x, Detached.apply, torch.randn(2, 3))


def test_the_gradient_of_a_parameter_is_compared():
    scale = torch.randn(3, requires_grad=True)
    with pytest.raises(AssertionError, match="gradients of parameter 0"):
        assert_same(
            lambda x: x * scale,
            lambda x: x * scale.detach() + 0 * scale,
            torch.randn(2, 3),
            parameters=[scale],
        )


def test_inputs_are_left_alone():
    x = torch.randn(2, 3)
    assert_same(lambda x: x * 2, lambda x: x + x, x)
    assert not x.requires_grad and x.grad is None
