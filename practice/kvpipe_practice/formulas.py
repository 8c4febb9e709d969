"""Formulas as text: `$\\frac{a}{b}$` reads as (a / b) in a terminal."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from pylatexenc.latex2text import (
    LatexNodes2Text,
    MacroTextSpec,
    get_default_latex_context_db,
)

FUNCTIONS = ("ln", "log", "exp", "cos", "sin", "max", "min")
SPACES = (",", ";", ":", "quad")
ATOM = re.compile(r"[\w.]+")


def grouped(text: str) -> str:
    """In parentheses, unless the text holds together without."""
    text = text.strip()
    return (
        text if ATOM.fullmatch(text) or (text.startswith("√") and one_pair(text)) else f"({text})"
    )


def one_pair(text: str) -> bool:
    """Does the first parenthesis close at the very end?"""
    depth = 0
    for i, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0 and char == ")":
            return i == len(text) - 1
    return False


def fraction(node: Any, l2tobj: LatexNodes2Text) -> str:
    top, bottom = (grouped(l2tobj.node_arg_to_text(node, i)) for i in (0, 1))
    return f"({top} / {bottom}) "


def root(node: Any, l2tobj: LatexNodes2Text) -> str:
    return "√" + grouped(l2tobj.node_arg_to_text(node, 1))


@cache
def converter() -> LatexNodes2Text:
    """Braces of more than one character stay: `x_{i+1}` is not `x_i+1`."""
    macros = [
        MacroTextSpec("frac", fraction),
        MacroTextSpec("sqrt", root),
        MacroTextSpec("bmod", " mod "),
        MacroTextSpec("sum", " ∑"),
        MacroTextSpec("le", " ≤ "),
        MacroTextSpec("qquad", "\n"),
        *(MacroTextSpec(name, f" {name} ") for name in FUNCTIONS),
        *(MacroTextSpec(name, " ") for name in SPACES),
    ]
    context = get_default_latex_context_db()
    context.add_context_category("plain", prepend=True, macros=macros)
    return LatexNodes2Text(
        latex_context=context,
        math_mode="text",
        strict_latex_spaces="based-on-source",
        keep_braced_groups=True,
        keep_braced_groups_minlen=2,
    )


def plain(formula: str) -> str:
    """One formula as lines of text."""
    formula = formula.replace("\\operatorname", "\\text").replace("\n", " ")
    lines = converter().latex_to_text(formula).splitlines()
    tidy = (" ".join(line.split()) for line in lines)
    return "\n".join(re.sub(r"(?<=\()\s|\s(?=[)},])", "", line) for line in tidy if line)
