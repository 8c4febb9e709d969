"""The judge in a notebook: functions travel with what they use; the same verdict as HTML."""

import re

import pytest
import torch

from kvpipe_practice import gather, problems
from kvpipe_practice.progress import Progress

pytestmark = pytest.mark.timeout(60)


CELLS = """
import math
import torch
from functools import lru_cache as cached
FACTOR = 2
LOWEST = float("-inf")
KIND = torch.float32
class Scale:
    def __init__(self, s): self.s = s
    def __call__(self, x): return shift(x) * self.s
def shift(x): return (x + math.floor(FACTOR)).clamp(min=LOWEST).to(KIND)
@cached
def made(n): return n
def mine(x: torch.Tensor) -> torch.Tensor:
    y = [made(i) for i in range(2)]
    return Scale(len(y))(x)
BIG = torch.zeros(3)
def uses_big(x): return x + BIG
def outer():
    k = 3
    def inner(x): return x + k
    return inner
"""


@pytest.fixture
def cell():
    """Names as a notebook's cell would define them."""
    import linecache

    names = {"__name__": "__main__"}
    linecache.cache["<cell>"] = (len(CELLS), None, CELLS.splitlines(keepends=True), "<cell>")
    exec(compile(CELLS, "<cell>", "exec"), names)
    yield names
    del linecache.cache["<cell>"]


def test_a_notebooks_function_travels_with_what_it_uses(cell):
    source = gather.answer_source(cell["mine"], "wanted")
    alone = {"__name__": "elsewhere"}
    exec(source, alone)
    x = torch.ones(2)
    torch.testing.assert_close(alone["wanted"](x), cell["mine"](x))


@pytest.mark.parametrize(
    ("name", "said"),
    (
        ("uses_big", "uses BIG, a torch.Tensor of the notebook"),
        ("outer()", "uses its k; define it at the top of a cell"),
        ("FACTOR", "not a int"),
        ("(lambda x: x)", "not a lambda"),
    ),
)
def test_what_cannot_travel_is_refused_with_a_way_out(cell, name, said):
    with pytest.raises(gather.GatherError, match=re.escape(said)):
        gather.answer_source(eval(name, cell), "wanted")


def test_check_in_a_notebook_gives_html_and_the_same_verdict(tmp_path, monkeypatch):
    from kvpipe_practice import check, hint, notebook, solution
    from kvpipe_practice.work import Work

    monkeypatch.setattr(notebook, "Work", lambda: Work(tmp_path))
    right = check("rms-norm", problems.find("rms-norm").solution)
    assert right.accepted and "accepted" in repr(right)
    assert Progress.load(tmp_path).get("rms-norm").state == "solved"
    wrong = check("rms-norm", "def rms_norm(x, weight, eps):\n    return '<b>&'\n")
    html = wrong._repr_html_()
    assert not wrong.accepted and html.startswith("<pre") and "<b>&" not in html
    assert "hint(&quot;rms-norm&quot;)" in html
    assert "Hint 1 of 3" in repr(hint("rms-norm"))
    assert "Usual wrong answers" in repr(solution("rms-norm"))
    with pytest.raises(ValueError, match="not a lambda"):
        check("rms-norm", lambda x: x)
    notebook.warm_host(True).close()
    notebook.warm_host.cache_clear()


def test_the_panel_has_a_button_for_every_action():
    pytest.importorskip("ipywidgets")
    from kvpipe_practice import panel

    title, buttons, _ = panel("rms-norm").children
    names = [button.description for button in buttons.children]
    assert names == ["Statement", "Test", "Hint", "Hint now", "Solution"]
    assert "RMSNorm" in title.value
