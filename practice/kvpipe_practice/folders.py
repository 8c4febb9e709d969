"""What `verify` proves of a problem's folder without running an answer: files, text, signatures."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from . import guard
from .problems import SLUG, Problem, load_problem
from .statement import FENCED, explanation, markdown
from .terminal import make_console

FILES = {"problem.md", "stub.py", "solution.py", "cases.py", "hints.md", "wrong"}
SECTIONS = ("Write", "Example", "Limits")
HINT_TITLES = ["A question", "The idea", "The crucial line"]
IGNORED = {"__pycache__", ".ipynb_checkpoints"}
MAX_SOLUTION_LINES = 60
MIN_WRONG = 3
KINDS = (
    *("value", "shape", "dtype", "nan", "type", "missing_return", "mutated", "exception"),
    *("timeout", "memory", "crash", "output", "forbidden", "required"),
)


def check_root(root: Path) -> Iterator[str]:
    """No stray folders, and one place in the order for every problem."""
    places: dict[tuple[int, int], str] = {}
    for path in sorted(root.iterdir()):
        if path.name in IGNORED:
            continue
        if not (path / "problem.md").exists():
            yield f"{path} is no problem: it has no problem.md"
            continue
        problem = load_problem(path)
        place = (problem.chapter, problem.order)
        if place in places:
            yield f"{problem.slug} and {places[place]} both have chapter and order {place}"
        places[place] = problem.slug


def check_folder(problem: Problem) -> Iterator[str]:
    """Every complaint about one folder."""
    yield from check_files(problem)
    yield from check_statement(problem)
    yield from check_hints(problem)
    yield from check_signatures(problem)
    yield from check_solution_text(problem)
    yield from check_rules(problem)


def check_files(problem: Problem) -> Iterator[str]:
    found = {path.name for path in problem.folder.iterdir()} - IGNORED
    for name in sorted(FILES - found):
        yield f"{name} is missing"
    for name in sorted(found - FILES):
        yield f"{name} is a stray file"
    for path in sorted((problem.folder / "wrong").iterdir()):
        if path.suffix != ".py" and path.name not in IGNORED:
            yield f"wrong/{path.name} is a stray file"
    if len(problem.wrong) < MIN_WRONG:
        yield f"{len(problem.wrong)} wrong answers; at least {MIN_WRONG} are needed"
    messages = [wrong.message for wrong in problem.wrong]
    if len(set(messages)) < len(messages):
        yield "two wrong answers have the same message"
    for wrong in problem.wrong:
        if wrong.kind not in KINDS:
            yield f"wrong/{wrong.path.name}: kind is {wrong.kind!r}, not one of {', '.join(KINDS)}"
    if not SLUG.fullmatch(problem.slug) or re.match(r"\d", problem.slug):
        yield "the slug must be lower case words joined by hyphens, not starting with a number"


def check_statement(problem: Problem) -> Iterator[str]:
    """It has its sections and the signature, and renders wide and narrow."""
    prose = "".join(FENCED.split(problem.statement)[::2])
    titles = re.findall(r"^# +(.+)$", prose, flags=re.MULTILINE)
    if titles != [problem.title]:
        yield f"problem.md must have one # heading, the title {problem.title!r}; it has {titles}"
    sections = re.findall(r"^## +(.+)$", prose, flags=re.MULTILINE)
    for section in SECTIONS:
        if section not in sections:
            yield f"problem.md has no section ## {section}"
    if problem.statement.count("```") % 2:
        yield "problem.md has an unclosed ``` block"
    if re.sub(r"`[^`]*`", "", prose).count("$") % 2:
        yield "problem.md has an odd number of $ signs"
    if f"def {problem.function}(" not in problem.statement:
        yield f"problem.md does not show the signature of {problem.function}"
    for width in (40, 100):
        out = StringIO()
        make_console(out, width=width).print(markdown(problem.statement))
        if problem.title not in out.getvalue():
            yield f"problem.md does not render at {width} columns"


def check_hints(problem: Problem) -> Iterator[str]:
    titles = [title for title, _ in problem.hints]
    if titles != HINT_TITLES:
        yield f"hints.md must have the sections {HINT_TITLES}; it has {titles}"
    for title, body in problem.hints:
        if len(body.split()) < 5:
            yield f"hints.md: {title!r} says too little"


def signature(source: str, function: str) -> str:
    """The parameters and annotations of a function, as text."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            return f"({ast.unparse(node.args)}){returns}"
    return ""


def parameters(source: str, function: str) -> list[str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    return []


def check_signatures(problem: Problem) -> Iterator[str]:
    """Stub, solution, wrong answers and cases agree on the parameters."""
    of_stub = signature(problem.stub, problem.function)
    of_solution = signature(problem.solution, problem.function)
    if not of_stub or of_stub != of_solution:
        yield f"stub has {problem.function}{of_stub}, solution {problem.function}{of_solution}"
    names = parameters(problem.stub, problem.function)
    for wrong in problem.wrong:
        if parameters(wrong.source, problem.function) != names:
            yield f"wrong/{wrong.path.name}: the parameters are not {names}"
    for case in problem.cases(0):
        if list(case.inputs) != names[: len(case.inputs)]:
            yield f"case {case.name}: inputs are {list(case.inputs)}, parameters {names}"
    if "NotImplementedError" not in problem.stub:
        yield "stub.py must raise NotImplementedError"


def check_solution_text(problem: Problem) -> Iterator[str]:
    text, code = explanation(problem.solution)
    if len(text.split()) < 10:
        yield "solution.py must explain itself in its module docstring"
    if len(code.splitlines()) > MAX_SOLUTION_LINES:
        yield f"solution.py has {len(code.splitlines())} lines; at most {MAX_SOLUTION_LINES}"
    if not problem.torch:
        for path in sorted(problem.folder.rglob("*.py")):
            if re.search(r"^\s*(import|from) torch\b", path.read_text("utf-8"), re.MULTILINE):
                yield f"{path.name} imports torch, but the front matter says torch: false"


def check_rules(problem: Problem) -> Iterator[str]:
    """Forbidden and required names exist; the statement tells of the first of each."""
    for name in (*problem.forbidden, *problem.required):
        if "." in name and not guard.exists(name):
            yield f"{name} does not exist, so the rule about it does nothing"
    for names in (problem.forbidden, problem.required):
        if names and names[0].rpartition(".")[2] not in problem.statement:
            yield f"problem.md does not mention the rule about {names[0]}"
