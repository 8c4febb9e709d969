"""Where you are: the table of problems, the progress bar and the next step."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from .problems import Problem
from .progress import Progress
from .terminal import to_type

WIDE_COLUMNS = 80
BAR_COLUMNS = 40
STATE_COLUMNS = 34
SECTION_COLUMNS = 110
STATE_MARKS = {"solved": "pass", "tried": "tried", "untouched": "untouched"}
STATE_STYLES = {"solved": "pass", "tried": "insight", "untouched": "quiet"}


def next_problem(problems: list[Problem], progress: Progress) -> Problem | None:
    """The problem worked on last if it is unsolved, else the first unsolved one."""
    unsolved = [p for p in problems if progress.get(p.slug).state != "solved"]
    current = [p for p in unsolved if p.slug == progress.current]
    return next(iter(current or unsolved), None)


def overview(
    problems: list[Problem], progress: Progress, signs: dict[str, str], width: int, command: str
) -> Iterator[RenderableType]:
    widths = [max((len(text(p)) for p in problems), default=0) for text in (slug_of, title_of)]
    for chapter in sorted({problem.chapter for problem in problems}):
        yield Text(f"Chapter {chapter}", "title")
        yield table([p for p in problems if p.chapter == chapter], progress, signs, width, widths)
        yield Text()
    states = [progress.get(p.slug).state for p in problems]
    n_solved = states.count("solved")
    yield bar(n_solved, len(problems), min(width, BAR_COLUMNS), signs)
    left = sum(p.minutes for p in problems if progress.get(p.slug).state != "solved")
    yield Text(f"{n_solved} of {len(problems)} solved, about {left} minutes to go")
    yield from next_step(next_problem(problems, progress), progress, command)


def bar(n_done: int, n_all: int, width: int, signs: dict[str, str]) -> Text:
    """A progress bar that reads without colour too."""
    full = width * n_done // max(n_all, 1)
    return Text.assemble((signs["full"] * full, "pass"), (signs["empty"] * (width - full), "quiet"))


def slug_of(problem: Problem) -> str:
    return problem.slug


def title_of(problem: Problem) -> str:
    return problem.title


def table(
    problems: list[Problem],
    progress: Progress,
    signs: dict[str, str],
    width: int,
    widths: list[int],
) -> Table:
    """One line per problem; narrow terminals keep the sign, the slug and the minutes.

    Slugs are never broken, so that they can be copied; `widths` keeps the chapters in line.
    """
    wide = width >= WIDE_COLUMNS
    result = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    result.add_column(no_wrap=True)
    result.add_column(no_wrap=True, min_width=widths[0])
    if wide:
        result.add_column(min_width=min(widths[1], width - widths[0] - STATE_COLUMNS))
        result.add_column(style="quiet", no_wrap=True)
    result.add_column(justify="right", style="quiet", no_wrap=True)
    for problem in problems:
        state = progress.get(problem.slug).state
        mark = Text(signs[STATE_MARKS[state]], STATE_STYLES[state])
        extra = [problem.title, problem.difficulty] if wide else []
        minutes = f"{problem.minutes} min"
        row = [mark, Text(problem.slug, STATE_STYLES[state]), *extra, minutes]
        if wide:
            row.append(Text(state, STATE_STYLES[state]))
        if width >= SECTION_COLUMNS:
            row.append(Text(problem.section.partition(", ")[2], "quiet"))
        result.add_row(*row)
    return result


def next_step(
    problem: Problem | None, progress: Progress, command: str
) -> Iterator[RenderableType]:
    """The exact command to go on with, or a clear end."""
    if problem is None:
        yield Text("Everything is solved. There is nothing left to do here.", "pass")
        yield to_type("practise once more: ", (f"{command} reset --all", "command"))
        return
    begun = progress.get(problem.slug).started > 0
    verb, word = ("test", "next") if begun else ("start", "next")
    yield Text(f"taught in: {problem.section}", "quiet")
    yield to_type(f"{word}: ", (f"{command} {verb} {problem.slug}", "command"))
    yield to_type("every save judged: ", (f"{command} watch {problem.slug}", "command"))


def to_json(problems: list[Problem], progress: Progress) -> dict:
    """The documented form of the list."""
    return {
        "version": 1,
        "problems": [
            {
                "slug": p.slug,
                "title": p.title,
                "chapter": p.chapter,
                "difficulty": p.difficulty,
                "minutes": p.minutes,
                "torch": p.torch,
                "file": p.file_name,
                "state": progress.get(p.slug).state,
                "attempts": progress.get(p.slug).attempts,
                "hints": progress.get(p.slug).hints,
            }
            for p in problems
        ],
    }
