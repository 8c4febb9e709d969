"""The command line of the judge."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from . import problems
from .hosts import make_host
from .judging import Submission, judge
from .results import failure_text, to_json
from .verify import verify


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code is 0 only for success."""
    parser = argparse.ArgumentParser(prog="judge.py")
    commands = parser.add_subparsers(dest="command", required=True)
    test = commands.add_parser("test")
    test.add_argument("slug")
    test.add_argument("--case")
    test.add_argument("--file")
    test.add_argument("--seed", type=int)
    test.add_argument("--json", action="store_true")
    check = commands.add_parser("verify")
    check.add_argument("slugs", nargs="*")
    options = parser.parse_args(arguments)
    return {"test": run_test, "verify": run_verify}[options.command](options)


def run_test(options: argparse.Namespace) -> int:
    problem = problems.find(options.slug)
    path = Path(options.file or problems.PRACTICE / "my" / problem.file_name)
    host = make_host(problem.torch)
    try:
        submission = Submission(path.read_text(encoding="utf-8"), str(path))
        report = judge(problem, submission, host, seed=options.seed, only=options.case)
    finally:
        host.close()
    if options.json:
        print(json.dumps(to_json(report), indent=2))
    else:
        for result in report.results:
            print(result.status, result.case.name, "-", result.case.tests)
            if result.failure:
                print("   ", failure_text(result.failure), result.failure.misconception)
        if report.failure:
            print(failure_text(report.failure))
        print(report.verdict, f"{report.seconds:.2f} s")
    return 0 if report.accepted else 1


def run_verify(options: argparse.Namespace) -> int:
    every = [problems.find(slug) for slug in options.slugs] or problems.load_all()
    bad = 0
    for problem in every:
        host = make_host(problem.torch)
        try:
            complaints = list(verify(problem, host))
        finally:
            host.close()
        print(f"{problem.slug}: {'ok' if not complaints else 'NOT OK'}")
        for complaint in complaints:
            print("   ", complaint)
        bad += bool(complaints)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
