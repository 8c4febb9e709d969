"""A run as it goes on: the title at once, a line per finished case, the seconds of the one at work.

Only for terminals; what is piped gets the whole report at the end.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import Progress, TextColumn

from .case import Case
from .judging import Listener
from .report import case_table, title_line
from .results import CaseResult
from .terminal import marks, put


class Live(Listener):
    """Prints while a run goes on; inside its `with` block."""

    def __init__(self, console: Console, title: str, file: str) -> None:
        self.console, self.heading = console, title_line(title, file)
        self.names = 0
        columns = TextColumn("[quiet]{task.description} {task.elapsed:.0f} s")
        self.line = Progress(columns, console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> Live:
        put(self.console, self.heading)
        self.line.start()
        self.task = self.line.add_task("your file is loading ...", total=None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.line.stop()

    def chosen(self, cases: list[Case]) -> None:
        self.names = max(len(case.label) for case in cases)

    def starts(self, case: Case) -> None:
        self.line.reset(self.task, description=f"running {case.name} ...")

    def ended(self, result: CaseResult) -> None:
        put(self.console, case_table([result], marks(self.console), self.console.width, self.names))
