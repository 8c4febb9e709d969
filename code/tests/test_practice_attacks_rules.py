"""The judge attacked with its source in hand: forbidden and required calls.

Unless a test says otherwise, the check of the source is off: what holds here are the processes,
the walls around them, and that the verdict is computed elsewhere.
"""
# ruff: noqa: F401, F811  (pytest finds the imported fixtures by their names)

import pytest
from practice_bench import answer, attack, host, problem, result_of, run, variant

pytestmark = pytest.mark.timeout(60)


ROUTES = (
    "torch.softmax(x, -1)",
    "x.softmax(-1)",
    "torch.nn.functional.softmax(x, -1)",
    "torch.nn.Softmax(-1)(x)",
    "torch.special.softmax(x, -1)",
    "torch.ops.aten.softmax.int(x, -1)",
    "torch.ops.aten._softmax(x, -1, False)",
    "torch._C._VariableFunctions.softmax(x, -1)",
    "torch._C.TensorBase.softmax(x, -1)",
    "getattr(torch, 'soft' + 'max')(x, -1)",
    "eval('torch.soft' + 'max(x, -1)')",
    "torch.jit.trace(lambda y: torch.special.softmax(y, -1), x)(x)",
    "torch.masked.softmax(x, -1)",
    "torch.vmap(lambda row: torch.special.softmax(row, -1))(x)",
    "torch.special.softmax(x.clone().requires_grad_(), -1).detach()",
)


@pytest.mark.parametrize("route", ROUTES)
def test_a_forbidden_call_is_stopped_by_every_route(attack, route):
    failure = attack(f"return {route}", kind="forbidden")
    assert "softmax" in failure.message.lower()


def test_a_swallowed_refusal_still_counts(attack):
    attack("try: torch.softmax(x, -1)\nexcept Exception: pass", kind="forbidden")


@pytest.mark.parametrize(
    "undo",
    (
        "import weakref\nfor f in list(weakref.finalize._registry): f()",
        "import importlib; importlib.reload(torch.nn.functional)",
        "from torch.utils._python_dispatch import _disable_current_modes\n"
        "_disable_current_modes().__enter__()",
        "torch._C._DisableTorchDispatch()",
        "import gc\nfor o in gc.get_objects():\n"
        "    if type(o).__name__ == '_DispatchModule': o.reset()",
    ),
)
def test_the_guard_cannot_be_taken_off(problem, host, undo):
    body = f"{undo}\nreturn torch.ops.aten._softmax(x, -1, False)"
    report = run(problem, host, answer(body))
    assert result_of(report, "second").status == "fail"


@pytest.mark.parametrize(
    ("source", "said"),
    (
        ("import torch\ndef soft_rows(x): return torch.softmax(x, -1)", "torch.softmax (line 2)"),
        ("import torch as t\ndef soft_rows(x): return t.softmax(x, -1)", "torch.softmax (line 2)"),
        ("from torch import softmax as s\ndef soft_rows(x): return s(x, -1)", "torch.softmax"),
        ("import torch.nn.functional as F\ndef soft_rows(x): return F.softmax(x, -1)", "softmax"),
        ("def soft_rows(x): return x.softmax(-1)", "torch.Tensor.softmax (line 1)"),
        ("def soft_rows(x): return getattr(x, 'softmax')(-1)", "torch.Tensor.softmax"),
        ("import torch\ns = torch.softmax\ndef soft_rows(x): return s(x, -1)", "torch.softmax"),
        ("def soft_rows(x): return eval('x')", "call: eval"),
        ("def soft_rows(x):\n import kvpipe\n return x", "import: kvpipe (line 2)"),
        ("import ctypes\ndef soft_rows(x): return x", "import: ctypes (line 1)"),
        ("import sys\ndef soft_rows(x): return sys._getframe(1)", "name: sys._getframe"),
    ),
)
def test_the_source_is_read_before_it_runs(problem, host, source, said):
    report = run(problem, host, source, static=True)
    assert report.failure.kind == "forbidden"
    assert said in report.failure.message
    assert report.results == ()


def test_a_function_of_ones_own_may_have_the_name(problem, host):
    source = "import torch\ndef softmax(x):\n    e = torch.exp(x - x.amax(-1, keepdim=True))\n"
    source += "    return e / e.sum(-1, keepdim=True)\ndef soft_rows(x):\n    return softmax(x)\n"
    assert run(problem, host, source, static=True).accepted


@pytest.mark.parametrize(
    "call",
    ("getattr(math, 'fs' + 'um')([1.0])", "getattr(numpy, 'ex' + 'p')(1.0)",
     "getattr(torch.nn, 'RMS' + 'Norm')(4)"),
)  # fmt: skip
def test_forbidden_functions_outside_torchs_kernels_are_stopped(tmp_path, host, call):
    problem = variant(tmp_path, 'FORBIDDEN = ("math.fsum", "numpy.exp", "torch.nn.RMSNorm")')
    report = run(problem, host, answer(f"import math, numpy\n{call}"))
    assert result_of(report, "second").failure.kind == "forbidden"
    assert run(problem, host, answer("import math; math.sqrt(2)"), static=True).accepted


def test_a_forbidden_function_in_a_module_nobody_imported_is_stopped(tmp_path, host):
    problem = variant(tmp_path, 'FORBIDDEN = ("json.tool.main",)')
    report = run(problem, host, answer("from json.tool import main"))
    assert result_of(report, "second").failure.kind == "forbidden"


@pytest.fixture(scope="module")
def demanding(tmp_path_factory):
    """The same problem, but it is about torch.logsumexp."""
    return variant(tmp_path_factory.mktemp("demanding"), 'REQUIRED = ("torch.logsumexp",)')


WITH_LSE = "import torch\ndef soft_rows(x):\n    return torch.exp(x - {lse})\n"


def test_a_required_call_that_is_made_is_accepted(demanding, host):
    source = WITH_LSE.format(lse="torch.logsumexp(x, -1, keepdim=True)")
    assert run(demanding, host, source, static=True).accepted


def test_a_required_call_that_is_not_written_is_missing(demanding, host):
    report = run(demanding, host, answer("pass"), static=True)
    assert report.verdict == "missing call: torch.logsumexp is not used in your file"


def test_a_required_call_that_is_never_reached_is_missing(demanding, host):
    source = answer("pass") + "\ndef unused(x):\n    return torch.logsumexp(x, -1)\n"
    report = run(demanding, host, source, static=True)
    assert not report.accepted and report.n_passed == 4
    assert report.verdict == "missing call: torch.logsumexp was never made"


def test_torch_in_a_plain_problem_and_calls_are_named_as_written(problem):
    from dataclasses import replace

    from kvpipe_practice.rules import check_source

    plain = replace(problem, torch=False)
    failure = check_source("import torch\n", plain)
    assert failure.message == "forbidden import: torch (line 1)"
    assert "plain Python" in failure.lines[0]
    source = "import torch.nn.functional as F\ndef soft_rows(x):\n    return F.softmax(x, -1)\n"
    failure = check_source(source, problem)
    assert failure.message == "forbidden call: torch.nn.functional.softmax (line 3)"
    failure = check_source("import torch\ny = torch.softmax\n", problem)
    assert failure.message == "forbidden call: torch.softmax (line 2)"
