"""A judged run as something to read: the message first, then the evidence, then what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .case import Case
from .results import CaseResult, Failure, Report, cut
from .terminal import marks, put, to_type
from .values import describe, is_small

NARROW_COLUMNS = 70


@dataclass(frozen=True)
class Style:
    """How a report is written here: signs, width, and how one asks for more."""

    signs: dict[str, str]
    width: int
    command: Callable[[str, str], str]
    more: str


def print_report(console: Console, report: Report, all_failures: bool, command: str) -> None:
    """The whole report in a terminal; by default only the first failure in detail."""
    style = Style(
        marks(console),
        console.width,
        lambda verb, slug: f"{command} {verb} {slug}",
        "--all-failures",
    )
    for part in render(report, style, all_failures):
        put(console, part)


def render(report: Report, style: Style, all_failures: bool) -> Iterator[RenderableType]:
    """Every part of a report, in reading order."""
    signs = style.signs
    yield Text.assemble((report.title, "title"), "  ", (report.file, "path"))
    if report.failure:
        yield from file_failure(report, signs)
    elif report.results:
        yield case_table(report, signs, style.width)
        failed = report.failed
        for result in failed if all_failures else failed[:1]:
            yield from case_failure(report, result, signs)
        if len(failed) > 1 and not all_failures:
            yield Text(f"{len(failed) - 1} more failed; {style.more} shows them", "quiet")
    if report.printed and not report.failure:
        yield from printed(report.printed, "printed while your file was imported")
    yield verdict_line(report, signs)
    yield from next_steps(report, style.command)


def case_table(report: Report, signs: dict[str, str], width: int) -> Table:
    """One line per case: sign, name, what it tests, time."""
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=width >= NARROW_COLUMNS, overflow="fold")
    if width >= NARROW_COLUMNS:
        table.add_column()
        table.add_column(justify="right", no_wrap=True)
    for result in report.results:
        name = result.case.name + (" (hidden)" if result.case.hidden else "")
        row = [Text(signs[result.status], result.status), Text(name)]
        if width >= NARROW_COLUMNS:
            seconds = f"{result.seconds * 1e3:,.0f} ms" if result.status != "skip" else "skipped"
            row += [Text(result.case.tests, "quiet"), Text(seconds, "quiet")]
        table.add_row(*row)
    return table


def case_failure(
    report: Report, result: CaseResult, signs: dict[str, str]
) -> Iterator[RenderableType]:
    """One failing case: what it tests, what is wrong, the recognised mistake, the values."""
    failure = result.failure
    assert failure is not None
    yield Text()
    yield Text.assemble((f"{signs['fail']} {result.case.name}", "fail"), f": {result.case.tests}")
    yield from explain(failure, report, signs)
    yield Padding(evidence(report, result), (0, 0, 0, 2))
    yield from printed(result.printed, "printed")


def file_failure(report: Report, signs: dict[str, str]) -> Iterator[RenderableType]:
    failure = report.failure
    assert failure is not None
    style = "insight" if failure.kind == "not_started" else "fail"
    yield Text()
    yield from explain(failure, report, signs, style)
    yield from printed(report.printed, "printed")


def explain(
    failure: Failure, report: Report, signs: dict[str, str], style: str = "fail"
) -> Iterator[RenderableType]:
    yield Padding(Text(failure.message, style), (0, 0, 0, 2))
    if failure.misconception:
        said = Text(f"{signs['insight']} {failure.misconception}", "insight")
        yield Padding(said, (0, 0, 0, 2))
    for line in failure.lines:
        yield Padding(Text(line), (0, 0, 0, 2))
    if failure.frames:
        yield Padding(traceback(failure, report), (0, 0, 0, 2))


def traceback(failure: Failure, report: Report) -> Text:
    """From the learner's file on; frames of libraries are folded to one line."""
    lines, text, folded = report.source.splitlines(), Text(), []
    for file, number, name in (*failure.frames, ("", 0, "")):
        if file and file != report.file:
            folded.append(library(file))
            continue
        if folded:
            frames = "frame" if len(folded) == 1 else "frames"
            text.append(f"  ... {len(folded)} {frames} in {folded[-1]}\n", "quiet")
            folded = []
        if file:
            source = lines[number - 1].strip() if 0 < number <= len(lines) else ""
            text.append(f"{file}, line {number}, in {name}\n", "path")
            text.append(f"    {source}\n")
    text.rstrip()
    return text


def library(file: str) -> str:
    """The part of a library's path that says which it is."""
    for folder in ("site-packages", "dist-packages", "lib"):
        if f"/{folder}/" in file.replace("\\", "/"):
            return file.replace("\\", "/").rpartition(f"/{folder}/")[2]
    return file


def evidence(report: Report, result: CaseResult) -> RenderableType:
    """The inputs; expected and got unless the case is hidden; how to have them at hand."""
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(style="quiet", no_wrap=True)
    table.add_column(overflow="fold")
    case = result.case
    for name, value in case.inputs.items():
        table.add_row(name, Text(describe(value)))
    if result.failure and result.failure.kind in ("value", "nan", "shape", "dtype", "type"):
        if not case.hidden and case.check is None:
            table.add_row("expected", Text(describe(case.expected)))
        table.add_row("got", Text(describe(result.got)))
    if not all(is_small(value) for value in (*case.inputs.values(), case.expected)):
        table.add_row("to have it", Text(recreate(report, case), "command"))
    return table


def recreate(report: Report, case: Case) -> str:
    call = f'case_inputs("{report.slug}", "{case.name}", seed={report.seed})'
    return f"from kvpipe_practice import case_inputs\ninputs = {call}"


def printed(text: str, title: str) -> Iterator[RenderableType]:
    if text.strip():
        yield Padding(Text(title, "quiet"), (0, 0, 0, 2))
        yield Padding(Text(cut(text.rstrip("\n"))), (0, 0, 0, 4))


def verdict_line(report: Report, signs: dict[str, str]) -> RenderableType:
    style = "pass" if report.accepted else "fail"
    if report.failure and report.failure.kind == "not_started":
        style = "insight"
    sign = signs["pass"] if report.accepted else signs["fail"]
    counts = f"{report.n_passed} of {report.n_cases} cases passed" if report.n_cases else ""
    rest = ", ".join(part for part in (counts, f"{report.seconds:.2f} s") if part)
    return Text.assemble("\n", (f"{sign} {report.verdict}", style), (f"  {rest}", "quiet"))


def next_steps(report: Report, command: Callable[[str, str], str]) -> Iterator[RenderableType]:
    if report.accepted:
        yield to_type("compare: ", (command("solution", report.slug), "command"))
    elif not (report.failure and report.failure.kind in ("not_started", "syntax")):
        yield to_type("stuck? ", (command("hint", report.slug), "command"))
