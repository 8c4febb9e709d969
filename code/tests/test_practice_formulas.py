"""Formulas as a terminal shows them: grouped as they were, no LaTeX left."""

import re

import pytest

from kvpipe_practice.formulas import plain
from kvpipe_practice.problems import load_all

FORMULA = re.compile(r"\$\$\s*(.+?)\s*\$\$|(?<!\$)\$([^$\n]+)\$(?!\$)", re.DOTALL)


@pytest.mark.parametrize(
    ("formula", "text"),
    (
        (r"\frac{a + b}{c}", "((a + b) / c)"),
        (r"\sqrt{D}", "√D"),
        (
            r"\frac{x_c}{\sqrt{\frac{1}{C}\sum_{c=1}^{C} x_c^2}}",
            "(x_c / √((1 / C) ∑_{c=1}^C x_c^2))",
        ),
        (r"x_{i+1} \, y_i", "x_{i+1} y_i"),
        (r"0 \le \text{key} \le h \bmod P", "0 ≤ key ≤ h mod P"),
        (r"a = 1 \qquad b = 2", "a = 1\nb = 2"),
        (r"\log \operatorname{softmax}(W x_i)", "log softmax(W x_i)"),
    ),
)
def test_a_formula_keeps_its_grouping(formula, text):
    assert plain(formula) == text


@pytest.mark.parametrize("problem", load_all(), ids=lambda problem: problem.slug)
def test_no_statement_or_hint_leaves_latex(problem):
    for text in (problem.statement, *(body for _, body in problem.hints)):
        for found in FORMULA.finditer(text):
            assert "\\" not in plain(found[1] or found[2])
