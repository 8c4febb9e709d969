"""Statements, hints and solutions for the terminal: Markdown, with formulas as plain text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Markdown
from rich.syntax import Syntax
from rich.text import Text

from .formulas import plain
from .problems import Problem

FENCED = re.compile(r"(^```.*?^```)", flags=re.DOTALL | re.MULTILINE)


def markdown(text: str) -> Markdown:
    """Markdown for a terminal; formulas go into code spans, where Markdown changes nothing."""
    parts = FENCED.split(text)
    parts[::2] = [spell_formulas(part) for part in parts[::2]]
    return Statement("".join(parts), code_theme="ansi_dark", hyperlinks=False)


class Code(CodeBlock):
    """Code in full lines: a line broken by the terminal could not be pasted back."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = Syntax(str(self.text).rstrip(), self.lexer_name, theme=self.theme)
        text = code.highlight(code.code)
        text.no_wrap, text.overflow, text.end = True, "ignore", ""
        text.rstrip()
        yield Text()
        yield text
        yield Text()


class Statement(Markdown):
    elements: ClassVar = {**Markdown.elements, "fence": Code, "code_block": Code}


def spell_formulas(text: str) -> str:
    def alone(found: re.Match) -> str:
        return f"\n```text\n{plain(found[1])}\n```\n"

    text = re.sub(r"\$\$\s*(.+?)\s*\$\$", alone, text, flags=re.DOTALL)
    return re.sub(r"(?<!\$)\$([^$\n]+)\$(?!\$)", lambda found: f"`{plain(found[1])}`", text)


def hint(problem: Problem, number: int) -> RenderableType:
    title, body = problem.hints[number - 1]
    return markdown(f"## Hint {number} of {len(problem.hints)}: {title}\n\n{body}\n")


def explanation(source: str) -> tuple[str, str]:
    """A solution's module docstring, and the code after it."""
    tree = ast.parse(source)
    text = ast.get_docstring(tree) or ""
    start = tree.body[0].end_lineno if text else 0
    code = "\n".join(source.splitlines()[start or 0 :]).strip() + "\n"
    return text, code


def solution(problem: Problem) -> Iterator[RenderableType]:
    """The reference, why it is so, and the usual wrong answers with why they fail."""
    text, code = explanation(problem.solution)
    yield Text(f"{problem.title}: a solution", "title")
    yield Syntax(code, "python", theme="ansi_dark", background_color="default", word_wrap=True)
    yield markdown(text)
    yield Text("\nUsual wrong answers", "title")
    for wrong in problem.wrong:
        yield Text.assemble((wrong.misconception, "insight"), f": {wrong.message}")
        yield Text(f"  caught by case {wrong.case}", "quiet")
