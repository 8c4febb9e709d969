"""A judged run as something to read: the message first, then the evidence, then what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .case import Case
from .compare import is_array
from .results import CaseResult, Failure, Report, cut
from .terminal import marks, put, to_type
from .values import describe, in_short, is_small

NARROW_COLUMNS = 70
MAX_INPUT_LINES = 24


@dataclass(frozen=True)
class Style:
    """How a report is written here: signs, width, and how one asks for more."""

    signs: dict[str, str]
    width: int
    command: Callable[[str, str], str]
    more: str


def print_report(
    console: Console,
    report: Report,
    all_failures: bool,
    command: str,
    streamed: bool = False,
    keys: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """The whole report in a terminal; by default only the first failure in detail.

    With `streamed` the title and the lines of the cases are on the screen already; `keys` says
    which commands are keys here.
    """
    style = Style(
        marks(console),
        console.width,
        lambda verb, slug: keys.get(verb, f"{command} {verb} {slug}"),
        "--all-failures",
    )
    for part in render(report, style, all_failures, streamed):
        put(console, part)


def title_line(title: str, file: str) -> Text:
    return Text.assemble((title, "title"), "  ", (file, "path"))


def render(
    report: Report, style: Style, all_failures: bool, streamed: bool = False
) -> Iterator[RenderableType]:
    """Every part of a report, in reading order."""
    signs = style.signs
    if not streamed:
        yield title_line(report.title, report.file)
    if report.failure:
        yield from file_failure(report, signs)
    elif report.results:
        if not streamed:
            yield case_table(report.results, signs, style.width)
        failed = report.failed
        for result in failed if all_failures else failed[:1]:
            yield from case_failure(report, result, signs)
        if len(failed) > 1 and not all_failures:
            yield Text(f"{len(failed) - 1} more failed; {style.more} shows them", "quiet")
    prints = [result for result in report.results if result.printed.strip()]
    if prints and not report.failure and not report.failed:
        yield from printed(prints[0].printed, f"printed in case {prints[0].case.name}")
        if len(prints) > 1:
            yield Text(f"  {len(prints) - 1} more cases printed; --case NAME shows one", "quiet")
    if report.printed and not report.failure:
        yield from printed(report.printed, "printed while your file was imported")
    yield verdict_line(report, signs)
    yield from next_steps(report, style.command)


def case_table(
    results: Sequence[CaseResult], signs: dict[str, str], width: int, names: int = 0
) -> Table:
    """One line per case: sign, name (`names` wide at least), time, what it tests."""
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, min_width=max(len(signs[s]) for s in ("pass", "fail", "skip")))
    wide_names = names if width >= NARROW_COLUMNS else None
    table.add_column(no_wrap=width >= NARROW_COLUMNS, overflow="fold", min_width=wide_names)
    if width >= NARROW_COLUMNS:
        table.add_column(justify="right", no_wrap=True, min_width=9)
        table.add_column()
    for result in results:
        row = [Text(signs[result.status], result.status), Text(result.case.label)]
        if width >= NARROW_COLUMNS:
            seconds = f"{result.seconds * 1e3:,.0f} ms" if result.status != "skip" else "not run"
            row += [Text(seconds, "quiet"), Text(result.case.tests, "quiet")]
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
    yield Padding(evidence(result), (0, 0, 0, 2))
    if not all(is_small(value) for value in (*result.case.inputs.values(), result.case.expected)):
        yield Text("  to have these inputs, in a Python shell and not in your answer:", "quiet")
        yield to_type((recreate(report, result.case), "command"))
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


def evidence(result: CaseResult) -> RenderableType:
    """The inputs; expected and got unless the case is hidden; of several parts the wrong one."""
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(style="quiet", no_wrap=True)
    table.add_column(overflow="fold")
    case = result.case
    described = {name: describe(value) for name, value in case.inputs.items()}
    too_long = sum(text.count("\n") + 1 for text in described.values()) > MAX_INPUT_LINES
    for name, text in described.items():
        short = too_long and is_array(case.inputs[name])
        table.add_row(name, Text(in_short(case.inputs[name]) if short else text))
    if result.failure and result.failure.kind in ("value", "nan", "shape", "dtype", "type"):
        whole = is_small(case.expected) and is_small(result.got) and not holds_arrays(case.expected)
        path = () if whole else result.failure.path
        if not case.hidden and case.check is None:
            table.add_row("expected", Text(describe(part(case.expected, path))))
        table.add_row("got", Text(describe(part(result.got, path))))
    return table


def holds_arrays(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(map(is_array, value))


def part(value: Any, path: tuple) -> Any:
    for key in path:
        value = value[key]
    return value


def recreate(report: Report, case: Case) -> str:
    call = f'case_inputs("{report.slug}", "{case.name}", seed={report.seed})'
    return f"from kvpipe_practice import case_inputs; inputs = {call}"


def printed(text: str, title: str) -> Iterator[RenderableType]:
    if text.strip():
        yield Padding(Text(title, "quiet"), (0, 0, 0, 2))
        yield Padding(Text(cut(text.rstrip("\n"))), (0, 0, 0, 4))


def verdict_line(report: Report, signs: dict[str, str]) -> RenderableType:
    if one_case_passed(report):
        passed = f"{signs['pass']} {report.results[0].case.name} passed"
        return Text.assemble(
            "\n", (passed, "pass"), ("; to be accepted all cases must run", "quiet")
        )
    style = "pass" if report.accepted else "fail"
    if report.failure and report.failure.kind == "not_started":
        style = "insight"
    sign = signs["pass"] if report.accepted else signs["fail"]
    n_run = len(report.results) or report.n_cases
    counts = f"{report.n_passed} of {n_run} cases passed" if report.n_cases else ""
    rest = ", ".join(part for part in (counts, f"{report.seconds:.2f} s") if part)
    repeated = report.failure is not None and report.verdict == report.failure.message
    said = "not accepted" if repeated else report.verdict  # the sentence stands just above
    return Text.assemble(
        "\n", (f"{sign} {said}{key_sentence(report)}", style), (f"  {rest}", "quiet")
    )


def one_case_passed(report: Report) -> bool:
    """With --case: right as far as it goes."""
    return not report.accepted and report.first_failure is None and bool(report.results)


def key_sentence(report: Report) -> str:
    """What is wrong, once more, where a reader's eye ends."""
    found = report.first_failure
    if found is None or found.kind in ("not_started", "skipped") or report.verdict in found.message:
        return ""
    case = next((f" in {r.case.name}" for r in report.results if r.failure is found), "")
    first = found.message.partition("\n")[0]
    return f"{case}: {first}"


def next_steps(report: Report, command: Callable[[str, str], str]) -> Iterator[RenderableType]:
    if one_case_passed(report):
        yield to_type("all cases: ", (command("test", report.slug), "command"))
    elif report.accepted:
        yield to_type("compare: ", (command("solution", report.slug), "command"))
    elif not (report.failure and report.failure.kind in ("not_started", "syntax")):
        yield to_type("stuck? ", (command("hint", report.slug), "command"))
