"""The command line of the judge."""

from __future__ import annotations

import argparse
import os
import sys
import zipfile
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from rich.text import Text

from . import commands
from .hosts import HostError
from .problems import PROBLEMS, ProblemError
from .terminal import make_console
from .work import Work

COMMANDS = (
    *("start", "test", "watch", "hint", "solution", "reset", "list", "export", "import"),
    *("doctor", "verify"),
)
Command = Callable[[commands.Context, argparse.Namespace], int]


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code is 0 only for success."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if advice := unknown_command(arguments):
        make_console(sys.stderr).print(Text(advice, "fail"))
        return 2
    options = parser().parse_args(arguments)
    console = make_console()
    work = Work(Path(options.my)) if options.my else Work()
    problems = Path(options.problems or PROBLEMS)
    context = commands.Context(console, work, problems, work.judge_command())
    try:
        if work.folder.exists() and not work.folder.is_dir():
            raise ProblemError(f"{work.folder} is a file; --my takes a folder")
        return options.run(context, options)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        make_console(sys.stderr).print(Text(text, "fail"))
        return 2
    except (ProblemError, HostError, ValueError, zipfile.BadZipFile) as error:
        make_console(sys.stderr).print(Text(str(error), "fail"))
        return 2
    except KeyboardInterrupt:
        console.print(Text("stopped", "insight"))
        return 130


def unknown_command(arguments: list[str]) -> str:
    """What to type instead, if the first word is no command."""
    words = iter(arguments)
    for word in words:
        if word in ("--my", "--problems"):
            next(words, None)
        elif not word.startswith("-"):
            break
    else:
        return ""
    if word in COMMANDS:
        return ""
    close = get_close_matches(word, COMMANDS, n=1)
    if close:
        return f"there is no command {word!r}; did you mean {close[0]}?"
    return f"there is no command {word!r}; a problem comes after one, as in: test {word}"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="judge.py", description="Graded exercises of the handbook. Alone: where you are."
    )
    top.add_argument("--my", metavar="DIR", help="your answers, if not in practice/my")
    top.add_argument("--problems", metavar="DIR", help="problems, if not practice/problems")
    top.set_defaults(run=commands.show_overview)
    table = top.add_subparsers(metavar="COMMAND")

    def add(name: str, run: Command, text: str, slug: bool = False) -> argparse.ArgumentParser:
        command = table.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument("--my", metavar="DIR", default=argparse.SUPPRESS, help="see above")
        if slug:
            command.add_argument("slug", nargs="?")
        return command

    add("start", commands.start, "copy the stub and show the statement", True)
    add_test(add("test", commands.test, "judge your answer; exit code 0 only if accepted", True))
    watch = add("watch", run_watch, "judge on every save", True)
    watch.add_argument("--host", choices=("fork", "spawn"), help=argparse.SUPPRESS)
    hint = add("hint", commands.hint, "the next of three hints", True)
    hint.add_argument("--now", action="store_true", help="without waiting")
    solution = add("solution", commands.solution, "the reference, after solving or all hints", True)
    solution.add_argument("--yes", action="store_true", help="do not ask")
    reset = add("reset", commands.reset, "a fresh stub; your work is kept as a backup", True)
    reset.add_argument("--all", action="store_true", help="every problem")
    reset.add_argument("--yes", action="store_true", help="do not ask")
    listing = add("list", commands.show_overview, "the table of problems")
    listing.add_argument("--json", action="store_true", help="for programs")
    export = add("export", commands.export, "your answers and record as one file")
    export.add_argument("file", nargs="?")
    load = add("import", commands.load, "take in an exported file")
    load.add_argument("file")
    add("doctor", run_doctor, "check this machine and say what to do")
    verify = add("verify", commands.verify, "for authors: prove that problems work")
    verify.add_argument("slugs", nargs="*")
    return top


def add_test(test: argparse.ArgumentParser) -> None:
    test.add_argument("--case", metavar="NAME", help="one case only (never accepts)")
    test.add_argument("--all-failures", action="store_true", help="every failure in detail")
    test.add_argument("--file", metavar="PATH", help="another file than yours")
    test.add_argument("--seed", type=int, help="draw the random cases of an earlier run again")
    test.add_argument("--json", action="store_true", help="for programs")
    test.add_argument("--host", choices=("fork", "spawn"), help=argparse.SUPPRESS)


def run_watch(context: commands.Context, options: argparse.Namespace) -> int:
    from .watch import watch

    return watch(context, options.slug, options.host)


def run_doctor(context: commands.Context, options: argparse.Namespace) -> int:
    from .doctor import doctor

    return doctor(context)


if __name__ == "__main__":
    sys.exit(main())
