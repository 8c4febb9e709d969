"""What can be said of an answer without running it: is it Python, does it keep the rules?

This catches honest oversights early and by line number. What it cannot see (a name built at run
time) is stopped in the answer's process by `guard` and `confine`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .problems import Problem
from .results import Failure

FOREIGN_MODULES = ("kvpipe", "kvpipe_practice", "transformers")
HIDING_MODULES = ("ctypes", "gc", "importlib", "inspect", "subprocess", "multiprocessing")
HIDING_BUILTINS = ("exec", "eval", "compile", "__import__")
HIDING_ATTRIBUTES = frozenset(
    (
        *("_getframe", "_current_frames", "f_back", "f_locals", "f_globals", "tb_frame"),
        *("__globals__", "__closure__", "__subclasses__", "__builtins__", "__code__"),
    )
)
HIDING_NAMES = ("sys.modules", "sys.settrace", "sys.setprofile", "torch._C", "torch.library")


def check_source(source: str, problem: Problem) -> Failure | None:
    """The first thing that makes a file unacceptable before it runs."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return syntax_failure(error, source)
    names = Names(tree)
    for line, what, why in (
        *foreign(tree, problem),
        *forbidden_calls(tree, names, problem.forbidden),
        *hiding(tree, names),
    ):
        return Failure("forbidden", f"forbidden {what} (line {line})", (why,))
    for name in problem.required:
        if not any(matches(name, found, attribute) for _, found, attribute in names.used):
            why = "this problem is about using it"
            return Failure("required", f"missing call: {name} is not used in your file", (why,))
    return None


def syntax_failure(error: Exception, source: str) -> Failure:
    """The line, the text and a caret, as Python would show them."""
    message = getattr(error, "msg", None) or str(error) or type(error).__name__
    number, column = getattr(error, "lineno", None), getattr(error, "offset", None)
    if not number:
        return Failure("syntax", f"syntax error: {message}")
    lines = source.splitlines()
    text = lines[number - 1] if number <= len(lines) else ""
    shown = text.strip()
    caret = max(0, (column or 1) - 1 - (len(text) - len(text.lstrip())))
    return Failure(
        "syntax",
        f"syntax error in line {number}: {message}",
        (f"  {shown}", "  " + " " * caret + "^"),
    )


class Names:
    """The full names a file uses, followed through imports and plain assignments."""

    def __init__(self, tree: ast.Module) -> None:
        self.aliases: dict[str, str] = {}
        self.defined = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
        for node in ast.walk(tree):
            self._bind(node)
        self.used = list(self._uses(tree))

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                self.aliases[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                self.aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, full = node.targets[0], self.full(node.value)
            if isinstance(target, ast.Name) and full and full != target.id:
                self.aliases.setdefault(target.id, full)

    def full(self, node: ast.expr) -> str:
        """The dotted name of an expression, with aliases resolved; "" if it has none."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self.full(node.value)
            return f"{base}.{node.attr}" if base else ""
        return ""

    def _uses(self, tree: ast.Module) -> Iterator[tuple[int, str, str]]:
        """(line, full name or "", last part) of every name, attribute and literal getattr."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                yield node.lineno, self.full(node), node.id
            elif isinstance(node, ast.Attribute):
                yield node.lineno, self.full(node), node.attr
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    yield node.lineno, f"{node.module}.{alias.name}", alias.name
            elif isinstance(node, ast.Call) and (attribute := literal_getattr(node)):
                base = self.full(node.args[0])
                yield node.lineno, f"{base}.{attribute}" if base else "", attribute


def literal_getattr(node: ast.Call) -> str:
    """The attribute in `getattr(x, "attribute")`; "" for any other call."""
    named = isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) > 1
    second = node.args[1] if named else None
    return str(second.value) if isinstance(second, ast.Constant) else ""


def matches(rule: str, full: str, attribute: str) -> bool:
    """Does a use fall under a rule? By its full name, as a method, or by another way into torch."""
    package, last = rule.partition(".")[0], rule.rpartition(".")[2]
    if full == rule:
        return True
    if attribute != last or "." not in rule:
        return False
    if full.startswith(f"{package}."):
        return True
    return rule == f"torch.Tensor.{last}" and not full.startswith(("math.", "numpy."))


def forbidden_calls(
    tree: ast.Module, names: Names, rules: tuple[str, ...]
) -> Iterator[tuple[int, str, str]]:
    for line, full, attribute in names.used:
        own = full in names.defined or (full.startswith("self.") and attribute in names.defined)
        for rule in rules:
            if not own and matches(rule, full, attribute):
                written = full if full.startswith(f"{rule.partition('.')[0]}.") else rule
                yield (
                    line,
                    f"call: {written}",
                    "write this step yourself; it is what the problem is about",
                )


def foreign(tree: ast.Module, problem: Problem) -> Iterator[tuple[int, str, str]]:
    """Modules that hold the answers, and torch where a problem is without it."""
    for line, module in imports(tree):
        if module.partition(".")[0] == "torch" and not problem.torch:
            yield line, "import: torch", "this problem is plain Python; torch is not available"
        if module.partition(".")[0] in FOREIGN_MODULES:
            yield line, f"import: {module}", "the answer must be your own"


def hiding(tree: ast.Module, names: Names) -> Iterator[tuple[int, str, str]]:
    """Ways to run code, or reach into the process, that no answer needs."""
    why = "no answer needs it, and the judge could not see what it does"
    for line, module in imports(tree):
        if module.partition(".")[0] in HIDING_MODULES:
            yield line, f"import: {module}", why
    for line, full, attribute in names.used:
        if full in HIDING_BUILTINS and full not in names.defined:
            yield line, f"call: {full}", why
        elif attribute in HIDING_ATTRIBUTES or full.startswith(HIDING_NAMES):
            yield line, f"name: {full or attribute}", why


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
