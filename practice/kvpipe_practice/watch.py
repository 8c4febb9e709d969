"""Judge on every save. A key goes on to the next problem; nothing else ever does."""

from __future__ import annotations

import queue
import threading
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.rule import Rule
from rich.text import Text
from watchfiles import watch as watch_files

from . import commands, keys, overview, statement
from .hosts import Host, make_host
from .judging import judge
from .problems import Problem, ProblemError
from .report import print_report
from .runner import Stopped

if TYPE_CHECKING:
    from .commands import Context

SETTLE_MS = 30
ECHO_S = 1.0
PATIENCE_S = 1.0
KEYS = "Enter test   n next   h hint   l list   r reset   q quit"


def watch(context: Context, slug: str | None, method: str | None) -> int:
    """Until `q` or Ctrl-C; the exit code is 0."""
    problem = context.problem(slug) if slug else None
    if problem is None:
        problem = overview.next_problem(context.problems(), context.progress())
    if problem is None:
        raise ProblemError("everything is solved; name a problem to watch it all the same")
    session = Session(context, method)
    try:
        session.run(problem)
    except KeyboardInterrupt:
        context.say("stopped")
    finally:
        session.close()
    return 0


class Session:
    """One watch session: the events, the warm hosts, the problem in hand."""

    def __init__(self, context: Context, method: str | None) -> None:
        self.context, self.method = context, method
        self.events: queue.Queue[tuple[str, float]] = queue.Queue()
        self.hosts: dict[bool, Host] = {}
        self.stop = threading.Event()
        self.judged_at, self.judged_source = 0.0, ""

    def host(self, problem: Problem) -> Host:
        if problem.torch not in self.hosts:
            self.hosts[problem.torch] = make_host(problem.torch, self.method)
        return self.hosts[problem.torch]

    def run(self, problem: Problem) -> None:
        """Judge, wait for a save or a key, and so on."""
        self.context.work.folder.mkdir(parents=True, exist_ok=True)
        self.problem = problem
        threading.Thread(target=self.watch_folder, daemon=True).start()
        with keys.reading(lambda key: self.events.put((key, time.monotonic()))) as has_keys:
            self.has_keys = has_keys
            self.begin(problem)
            while (event := self.next_event()) != "q":
                self.handle(event)

    def watch_folder(self) -> None:
        """A `save` event for every change of the file in hand."""
        for changes in watch_files(
            self.context.work.folder, stop_event=self.stop, step=SETTLE_MS, recursive=False
        ):
            names = {Path(path).name for _, path in changes}
            if self.problem.file_name in names:
                self.events.put(("save", time.monotonic()))

    def next_event(self) -> str:
        while True:
            event, at = self.events.get()
            if event == "save" and self.unchanged() and at - self.judged_at < ECHO_S:
                continue  # the judge's own write of the stub, seen late
            # keys pressed while a run was under way belong to what was on screen before it
            if event == "save" or event == "q" or at >= self.judged_at:
                return event

    def interrupted(self) -> bool:
        """Did a new save or `q` arrive during a run, or, where it takes long, any key?"""
        with self.events.mutex:
            waiting = list(self.events.queue)
        for event, at in waiting:
            if event == "q" or (event == "save" and not self.unchanged()):
                return True
            if event != "save" and at > self.began_at + PATIENCE_S:
                return True
        return False

    def unchanged(self) -> bool:
        """Is the file what was judged last?"""
        try:
            return self.context.work.submission(self.problem).source == self.judged_source
        except (ProblemError, OSError):
            return False

    def begin(self, problem: Problem) -> None:
        self.problem = problem
        if self.context.work.start(problem):
            file = self.context.work.shown(problem)
            commands.put(self.context.console, statement.markdown(problem.statement))
            self.context.say("\nnew file: ", (file, "path"))
        self.judge()
        # the first save should not have to wait for the imports of the cases
        threading.Thread(target=lambda: (self.host(problem), problem.module), daemon=True).start()

    def handle(self, event: str) -> None:
        """One save or key."""
        context, slug = self.context, self.problem.slug
        if event in ("save", "\n", "\r", " ", "t"):
            self.judge()
        elif event == "h":
            commands.hint(context, Namespace(slug=slug, now=False))
        elif event == "l":
            commands.show_overview(context, Namespace())
        elif event == "r":
            context.say(f"Put the stub of {slug} back? Your answer is kept as a backup. y/n")
            if self.events.get()[0] == "y":
                commands.reset(context, Namespace(slug=slug, all=False, yes=True))
        elif event == "n":
            self.go_on()
        if event in ("h", "l", "r"):
            self.key_bar()

    def go_on(self) -> None:
        """The first unsolved problem after this one, else the first unsolved of all."""
        problems, progress = self.context.problems(), self.context.progress()
        slugs = [problem.slug for problem in problems]
        here = slugs.index(self.problem.slug) if self.problem.slug in slugs else -1
        for problem in problems[here + 1 :] + problems[: max(here, 0)]:
            if progress.get(problem.slug).state != "solved":
                self.begin(problem)
                return
        self.context.say("No other problem is unsolved.")

    def judge(self) -> None:
        """One run, reported under a rule with the time."""
        context, console = self.context, self.context.console
        console.print(Rule(Text(f"{self.problem.slug}  {time.strftime('%H:%M:%S')}")))
        try:
            submission = context.work.submission(self.problem)
            self.judged_source = submission.source
            self.began_at = time.monotonic()
            streamed = console.is_terminal
            with commands.listening(console, self.problem, submission, streamed) as listener:
                report = judge(
                    self.problem,
                    submission,
                    self.host(self.problem),
                    listener=listener,
                    stop=self.interrupted,
                )
        except Stopped:
            self.judged_at = self.began_at + PATIENCE_S  # the key or save that stopped it counts
            context.say(("stopped", "insight"))
            return  # what stopped it is next
        except (ProblemError, OSError) as error:
            context.say((str(error), "fail"))
        else:
            commands.record(context, report)
            print_report(console, report, False, context.command, streamed, self.named_keys())
            if report.accepted and self.has_keys:
                context.say(("n", "command"), " goes on to the next problem")
        self.judged_at = time.monotonic()
        self.key_bar()

    def named_keys(self) -> dict[str, str]:
        """Commands that are a key here: nobody needs another terminal for them."""
        return {"hint": "press h"} if self.has_keys else {}

    def key_bar(self) -> None:
        self.context.say((KEYS if self.has_keys else "waiting for a save; Ctrl-C ends", "quiet"))

    def close(self) -> None:
        self.stop.set()
        for host in self.hosts.values():
            host.close()
