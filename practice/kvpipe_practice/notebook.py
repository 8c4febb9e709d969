"""The judge in a notebook: `check`, `hint`, `solution` and a small panel."""

from __future__ import annotations

import atexit
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from io import StringIO
from typing import Any

from rich.console import Console, RenderableType
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from . import statement
from .gather import GatherError, answer_source
from .hosts import Host, make_host
from .judging import Submission, judge
from .problems import find
from .progress import N_HINTS, Progress
from .report import Style, render
from .results import Report
from .terminal import THEME, UNICODE_MARKS, put
from .work import Work

COLUMNS = 96
# middle tones, readable on light and on dark pages; the page's own background shows through
GREY = (118, 118, 118)
HTML_THEME = TerminalTheme(
    GREY,
    GREY,
    [
        *((90, 90, 90), (207, 61, 47), (38, 142, 62), (176, 120, 0)),
        *((56, 108, 210), (158, 76, 176), (0, 133, 150), (128, 128, 128)),
    ],
)
PRE = (
    '<pre style="white-space:pre-wrap;line-height:1.35;font-size:13px;background:none;'
    'border:0">{code}</pre>'
)


class Page:
    """Something to read: rich HTML in a notebook, plain text elsewhere."""

    def __init__(self, *parts: RenderableType) -> None:
        self.parts = parts

    def _console(self) -> Console:
        console = Console(
            file=StringIO(),
            record=True,
            width=COLUMNS,
            theme=THEME,
            highlight=False,
            emoji=False,
            force_jupyter=False,
        )
        for part in self.parts:
            put(console, Text(part) if isinstance(part, str) else part)
        return console

    def _repr_html_(self) -> str:
        console = self._console()
        html = console.export_html(theme=HTML_THEME, code_format=PRE, inline_styles=True)
        return re.sub(r"background-color: #767676(; )?", "", html)

    def __repr__(self) -> str:
        return self._console().export_text().rstrip()


STYLE = Style(UNICODE_MARKS, COLUMNS, lambda verb, slug: f'{verb}("{slug}")', "all_failures=True")


class ReportPage(Page):
    """A judged run; `accepted` and `report` are there for code."""

    def __init__(self, report: Report, all_failures: bool) -> None:
        self.report, self.accepted = report, report.accepted
        super().__init__(*render(report, STYLE, all_failures))


@lru_cache
def warm_host(with_torch: bool) -> Host:
    """One warm process per kind for the life of the kernel."""
    host = make_host(with_torch)
    atexit.register(host.close)
    return host


def check(
    slug: str,
    answer: Callable[..., Any] | str,
    *,
    all_failures: bool = False,
    seed: int | None = None,
) -> ReportPage:
    """Judge a function of this notebook (or source text) outside the kernel; shows the report."""
    problem = find(slug)
    if isinstance(answer, str):
        source, file = answer, "<your text>"
    else:
        try:
            source, file = answer_source(answer, problem.function), f"<{problem.function}>"
        except GatherError as error:
            raise ValueError(str(error)) from None
    report = judge(problem, Submission(source, file), warm_host(problem.torch), seed=seed)
    if not (report.failure and report.failure.kind == "not_started"):
        progress = Progress.load(Work().folder)
        progress.put(slug, progress.get(slug).judged(report.accepted, time.time()))
    return ReportPage(report, all_failures)


def hint(slug: str, *, now: bool = False) -> Page:
    """All hints seen so far and the next one, if it is unlocked (always with `now=True`)."""
    problem, progress = find(slug), Progress.load(Work().folder)
    known = progress.get(problem.slug)
    unlocked = N_HINTS if now else known.unlocked_hints(time.time())
    shown = min(known.hints + 1, unlocked)
    parts = [statement.hint(problem, number) for number in range(1, shown + 1)]
    if shown > known.hints:
        progress.put(problem.slug, replace(known, hints=shown))
    elif shown < N_HINTS:
        more = "opens after one more failed attempt or minute of work"
        parts.append(f'Hint {shown + 1} {more}. At once: hint("{slug}", now=True)')
    return Page(*parts)


def solution(slug: str, *, reveal: bool = False) -> Page:
    """The reference, after acceptance, or after all hints with `reveal=True`."""
    problem, progress = find(slug), Progress.load(Work().folder)
    known = progress.get(problem.slug)
    if not known.solved and known.hints < N_HINTS:
        left = N_HINTS - known.hints
        return Page(f'{slug} is not solved and {left} hints are unread: hint("{slug}", now=True)')
    if not known.solved and not reveal:
        return Page(
            f'{slug} is not solved. To see it all the same: solution("{slug}", reveal=True)'
        )
    progress.put(problem.slug, replace(known, revealed=True))
    return Page(*statement.solution(problem))


def case_inputs(slug: str, case: str, seed: int | None = None) -> dict[str, Any]:
    """The inputs of one case by parameter name, to try a function on them."""
    seed = secrets.randbits(31) if seed is None else seed
    cases = {each.name: each for each in find(slug).cases(seed)}
    if case not in cases:
        raise ValueError(f"{slug} has no case {case!r}; it has: {', '.join(cases)}")
    return cases[case].inputs


def panel(slug: str) -> Any:
    """Buttons for one problem: statement, test of the notebook's function, hint, solution."""
    import ipywidgets

    problem = find(slug)
    out = ipywidgets.Output()

    def test() -> Page:
        function = notebook_names().get(problem.function)
        if function is None:
            return Page(f"Define {problem.function} in a cell, run the cell, then press Test.")
        return check(slug, function)

    actions: dict[str, Callable[[], Page]] = {
        "Statement": lambda: Page(statement.markdown(problem.statement)),
        "Test": test,
        "Hint": lambda: hint(slug),
        "Hint now": lambda: hint(slug, now=True),
        "Solution": lambda: solution(slug, reveal=True),
    }
    buttons = []
    for name, action in actions.items():
        button = ipywidgets.Button(description=name, tooltip=f"{name}: {problem.title}")
        button.on_click(lambda _, action=action: show(out, action))
        buttons.append(button)
    title = ipywidgets.HTML(f"<b>{problem.title}</b>")
    return ipywidgets.VBox([title, ipywidgets.HBox(buttons), out])


def show(out: Any, action: Callable[[], Page]) -> None:
    """Put one page, or the message of what went wrong, into the panel."""
    from IPython.display import display

    with replaced(out):
        try:
            display(action())
        except (ValueError, OSError, RuntimeError) as error:
            print(error)


@contextmanager
def replaced(out: Any) -> Iterator[None]:
    out.clear_output(wait=True)
    with out:
        yield


def notebook_names() -> dict[str, Any]:
    from IPython import get_ipython

    shell = get_ipython()
    return shell.user_ns if shell else {}
