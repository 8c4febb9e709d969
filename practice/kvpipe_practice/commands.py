"""What each command of the judge does. Every function returns the exit code."""

from __future__ import annotations

import argparse
import json
import sys
import time
import zipfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from . import overview, statement
from .hosts import Host, make_host
from .judging import Listener, Submission, judge
from .live import Live
from .problems import Problem, ProblemError, find, load_all
from .progress import N_HINTS, Progress
from .report import print_report
from .results import Report, to_json
from .terminal import marks, put, to_type
from .work import Work, shorter

YES = ("y", "yes")
COPY = "copy" if sys.platform == "win32" else "cp"


@dataclass
class Context:
    """What every command works with."""

    console: Console
    work: Work
    root: Path
    command: str

    def problem(self, slug: str | None) -> Problem:
        if not slug:
            known = ", ".join(problem.slug for problem in self.problems())
            raise ProblemError(f"say which problem; there are: {known}")
        return find(slug, self.root)

    def problems(self) -> list[Problem]:
        return load_all(self.root)

    def progress(self) -> Progress:
        progress = Progress.load(self.work.folder)
        if progress.notice:
            self.console.print(Text(progress.notice, "insight"))
        return progress

    def say(self, *parts: str | tuple[str, str]) -> None:
        commands = any(part[1] == "command" for part in parts if isinstance(part, tuple))
        put(self.console, to_type(*parts) if commands else Text.assemble(*parts))


def show_overview(context: Context, options: argparse.Namespace) -> int:
    """`judge.py` alone, and `list`."""
    problems, progress = context.problems(), context.progress()
    if getattr(options, "json", False):
        print(json.dumps(overview.to_json(problems, progress), indent=2))
        return 0
    console = context.console
    for part in overview.overview(
        problems, progress, marks(console), console.width, context.command
    ):
        put(console, part)
    return 0


def start(context: Context, options: argparse.Namespace) -> int:
    problem, progress = context.problem(options.slug), context.progress()
    copied = context.work.start(problem)
    record = progress.get(problem.slug)
    if not record.started:
        record = replace(record, started=time.time())
    progress.put(problem.slug, record)
    put(context.console, statement.markdown(problem.statement))
    put(context.console, Text(f"taught in: {problem.section}", "quiet"))
    file = context.work.shown(problem)
    context.say("\nnew file: " if copied else "\nyour work, untouched: ", (file, "path"))
    context.say("then: ", (f"{context.command} test {problem.slug}", "command"))
    return 0


def test(context: Context, options: argparse.Namespace) -> int:
    """Judge an answer; exit code 0 only if it is accepted."""
    problem = context.problem(options.slug)
    file = Path(options.file) if options.file else None
    context.work.submission(problem, file)  # complain before anything slow starts
    host = make_host(problem.torch, options.host)
    try:
        options.streamed = context.console.is_terminal and not options.json
        submission = context.work.submission(problem, file)
        with listening(context.console, problem, submission, options.streamed) as listener:
            report = judge(
                problem,
                submission,
                host,
                seed=options.seed,
                only=options.case,
                listener=listener,
            )
    finally:
        host.close()
    if file is None and options.case is None:
        record(context, report)
    if options.json:
        print(json.dumps(to_json(report), indent=2))
    else:
        print_report(
            context.console, report, options.all_failures, context.command, options.streamed
        )
        if report.accepted and file is None:
            show_next(context)
    return 0 if report.accepted else 1


def listening(
    console: Console, problem: Problem, submission: Submission, streamed: bool
) -> AbstractContextManager[Listener]:
    """Who hears how a run goes on: the terminal, or nobody."""
    return Live(console, problem.title, submission.file) if streamed else nullcontext(Listener())


def show_next(context: Context) -> None:
    """What to go on with, as an exact command."""
    problems, progress = context.problems(), context.progress()
    following = overview.next_problem(problems, progress)
    for part in overview.next_step(following, progress, context.command):
        put(context.console, part)


def record(context: Context, report: Report) -> None:
    """Count a full run of the learner's own file; an untouched stub is no attempt."""
    if report.failure and report.failure.kind == "not_started":
        return
    progress = context.progress()
    progress.put(report.slug, progress.get(report.slug).judged(report.accepted, time.time()))


def hint(context: Context, options: argparse.Namespace) -> int:
    """All hints seen so far and the next one, if it is unlocked."""
    problem, progress = context.problem(options.slug), context.progress()
    known = progress.get(problem.slug)
    unlocked = N_HINTS if options.now else known.unlocked_hints(time.time())
    shown = min(known.hints + 1, unlocked)
    context.say((f"taught in: {problem.section}", "quiet"))
    for number in range(1, shown + 1):
        put(context.console, statement.hint(problem, number))
    if shown > known.hints:
        progress.put(problem.slug, replace(known, hints=shown))
    elif shown < N_HINTS:
        known_s = time.time() - known.started if known.started else 0.0
        context.say(
            f"Hint {shown + 1} opens after one more failed test of what you wrote (the stub does "
            f"not count), or in {60 - known_s % 60:.0f} s."
        )
        context.say("at once: ", (f"{context.command} hint {problem.slug} --now", "command"))
        return 1
    if shown == N_HINTS:
        command = f"{context.command} solution {problem.slug}"
        context.say("that was the last hint: ", (command, "command"))
    return 0


def solution(context: Context, options: argparse.Namespace) -> int:
    """After acceptance, or after all hints and a yes."""
    problem, progress = context.problem(options.slug), context.progress()
    known = progress.get(problem.slug)
    if not known.solved and not may_reveal(context, problem, known.hints, options.yes):
        return 1
    progress.put(problem.slug, replace(known, revealed=True))
    for part in statement.solution(problem):
        put(context.console, part)
    return 0


def may_reveal(context: Context, problem: Problem, hints: int, yes: bool) -> bool:
    if hints < N_HINTS:
        context.say(f"{problem.slug} is not solved and {N_HINTS - hints} hints are unread.")
        context.say("next hint: ", (f"{context.command} hint {problem.slug} --now", "command"))
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        context.say("To see the solution of an unsolved problem add ", ("--yes", "command"))
        return False
    answer = input(f"{problem.slug} is not solved. Show the solution? [y/N] ")
    return answer.strip().lower() in YES


def reset(context: Context, options: argparse.Namespace) -> int:
    """Put stubs back; the work is kept as dated backups, and what was solved stays solved."""
    if options.all == bool(options.slug):
        raise ProblemError("say which problem to reset, or --all")
    problems = context.problems() if options.all else [context.problem(options.slug)]
    if options.all:
        problems = [problem for problem in problems if context.work.path(problem).exists()]
    names = f"{len(problems)} answers" if options.all else problems[0].slug
    if not options.yes and not agreed(f"Put fresh stubs in place of {names}?"):
        return 1
    for problem in problems:
        backup = context.work.reset(problem)
        context.say(
            (problem.slug, "title"), ": fresh stub" + (", your work is kept" * bool(backup))
        )
        if backup:
            undo = f"{COPY} {shorter(backup)} {context.work.shown(problem)}"
            context.say("  undo: ", (undo, "command"))
    return 0


def agreed(question: str) -> bool:
    """Ask at a terminal; elsewhere nobody is there to ask, and a backup is kept anyway."""
    if not sys.stdin.isatty():
        return True
    return input(f"{question} Your work is kept as a backup. [y/N] ").strip().lower() in YES


def export(context: Context, options: argparse.Namespace) -> int:
    default = context.work.folder / time.strftime("kvpipe-practice-%Y%m%d.zip")
    target = Path(options.file or default)
    if target.exists():
        raise ProblemError(f"{target} exists; give another name")
    count = context.work.export(target)
    context.say(f"{count} answers and the record are in ", (str(target), "path"))
    return 0


def load(context: Context, options: argparse.Namespace) -> int:
    try:
        answers, backups = context.work.load(Path(options.file), context.problems())
    except zipfile.BadZipFile:
        raise ProblemError(f"{options.file} is no export of the judge: not a zip file") from None
    context.say(f"{len(answers)} answers taken in, the record merged")
    for backup in backups:
        context.say("the different answer that was here is kept in ", (shorter(backup), "path"))
    return 0


def verify(context: Context, options: argparse.Namespace) -> int:
    """Prove that problems work; exit code 0 only if nothing is wrong."""
    from .verify import verify_all

    chosen = [context.problem(slug) for slug in options.slugs] or context.problems()
    complaints = 0
    hosts: dict[bool, Host] = {}
    try:
        for problem, found in verify_all(chosen, hosts, context.root):
            sign = "fail" if found else "pass"
            context.say((f"{marks(context.console)[sign]} {problem}", sign))
            for complaint in found:
                context.say(f"  {complaint}")
            complaints += len(found)
    finally:
        for host in hosts.values():
            host.close()
    context.say(f"{len(chosen)} problems, {complaints} complaints")
    return 1 if complaints else 0
