"""The console everything is printed on: any width, with or without colour, UTF-8 or plain ASCII."""

from __future__ import annotations

import sys
from typing import IO

from rich.console import Console, RenderableType
from rich.text import Text
from rich.theme import Theme

THEME = Theme(
    {
        "pass": "green",
        "fail": "bold red",
        "skip": "yellow",
        "quiet": "dim",
        "path": "cyan",
        "command": "bold cyan",
        "title": "bold",
        "insight": "bold yellow",
        "markdown.code": "cyan",
        "markdown.h1": "bold",
        "markdown.h2": "bold underline",
    }
)
UNICODE_MARKS = {
    **{"pass": "✓", "fail": "✗", "skip": "-", "tried": "…", "untouched": "·", "insight": "→"},
    **{"full": "█", "empty": "░"},
}
ASCII_MARKS = {
    **{"pass": "ok", "fail": "X", "skip": "-", "tried": "~", "untouched": ".", "insight": "->"},
    **{"full": "#", "empty": "."},
}
SPELLINGS = {
    **{
        "×": "x",
        "·": "*",
        "√": "sqrt",
        "∑": "sum",
        "⌊": "floor(",
        "⌋": ")",
        "≤": "<=",
        "≥": ">=",
        "≠": "!=",
        "≈": "~",
        "→": "->",
    },
    **{"−": "-", "–": "-", "—": "-", "…": "...", "•": "*", "‘": "'", "’": "'", "“": '"'},
    **{"”": '"', "ε": "eps", "α": "alpha", "β": "beta", "θ": "theta", "μ": "mu", "σ": "sigma"},
    **{"Σ": "sum", "∞": "inf", "∈": "in", "²": "^2", "³": "^3", "½": "1/2", "✓": "ok"},
    **{"✗": "X", "━": "-", "─": "-", "│": "|", "▌": "|"},
}
ASCII_SPELLINGS = str.maketrans(SPELLINGS)


class AsciiStream:
    """A text stream that spells what its encoding cannot show."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream
        self.encoding = "ascii"

    def write(self, text: str) -> int:
        self.stream.write(text.translate(ASCII_SPELLINGS).encode("ascii", "replace").decode())
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()


def make_console(stream: IO[str] | None = None, **options: object) -> Console:
    """A console on a stream (standard output by default)."""
    stream = stream or sys.stdout
    if not shows_unicode(stream):
        stream = AsciiStream(stream)
    return Console(file=stream, theme=THEME, highlight=False, emoji=False, **options)


class CommandLine(Text):
    """A line with a command in it."""


def to_type(*parts: str | tuple[str, str]) -> CommandLine:
    line = CommandLine()
    for part in parts:
        line.append(*part) if isinstance(part, tuple) else line.append(part)
    return line


def put(console: Console, part: RenderableType) -> None:
    """Print one part; a command is never broken over lines, so that it can be copied.

    What is piped or kept in a file has no spaces at the ends of its lines.
    """
    wrap = isinstance(part, CommandLine)
    if console.is_terminal or console.record:
        console.print(part, soft_wrap=wrap, crop=False)
        return
    with console.capture() as kept:
        console.print(part, soft_wrap=wrap, crop=False)
    lines = kept.get().split("\n")
    console.file.write("\n".join(line.rstrip(" ") for line in lines))


def shows_unicode(stream: IO[str]) -> bool:
    try:
        "✓✗→…×√━".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def marks(console: Console) -> dict[str, str]:
    """The signs for passed, failed and the rest that this console can show."""
    return UNICODE_MARKS if console.encoding.lower().startswith("utf") else ASCII_MARKS
