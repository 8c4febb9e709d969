"""The rules that a committed chapter keeps, as one function: `faults(notebook)`."""

import ast
import functools
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
CODE_CELLS, WORDS = range(25, 46), range(1500, 3501)
MEDIAN_LINES, MAX_LINES, MAX_COLUMNS, MAX_BYTES = 7, 25, 80, 1_000_000
TAGS = {"nbval-ignore-output", "hide-input"}  # the book folds the source of the latter
SECTIONS = [
    "Before you start", "In production code", "How to explain it", "Exercises", "Graded problems",
    "Summary", "References",
]  # fmt: skip
SHOWING = {"print", "show", "figure", "explore", "display"}
UNIX_PATH = r"(?<![\w.:/<])/(?:home|root|work|Users|tmp|usr|opt|var|mnt)/"
ABSOLUTE = re.compile(UNIX_PATH + r"|\b[A-Z]:\\\\?\w")
ADDRESS = re.compile(r"(?:https?|wss?|ftp)://([\w.-]+)")
NAMESPACES = {"www.w3.org"}  # names inside SVG, never requested


def faults(notebook: nbformat.NotebookNode) -> list[str]:
    """Everything that a committed chapter must not be; empty for a good one."""
    rules = (_execution, _outputs, _foreign, _cells, _prose, _names)
    return [fault for rule in rules for fault in rule(notebook)]


def _execution(notebook: nbformat.NotebookNode) -> Iterator[str]:
    code = code_cells(notebook)
    counts = [cell.execution_count for cell in code]
    if None in counts:
        yield f"stripped: cell {counts.index(None) + 1} has no execution count"
    elif counts != list(range(1, len(code) + 1)):
        yield f"out of order: the cells ran as {counts}"
    for number, cell in enumerate(code, 1):
        if _must_show(cell.source) and not cell.outputs:
            yield f"stripped: code cell {number} shows something but has no output"


def _outputs(notebook: nbformat.NotebookNode) -> Iterator[str]:
    for number, cell in enumerate(code_cells(notebook), 1):
        for output in cell.outputs:
            data = output.get("data", {})
            if output.output_type == "error":
                yield f"error: code cell {number} ends with {output.ename}"
            if output.get("name") == "stderr":
                yield f"stderr: code cell {number} warns: {output.text[:80]!r}"
            if any("widget-view" in kind for kind in data):
                yield f"widget: code cell {number} holds a view whose kernel is gone"
            if any(kind.startswith("image/") for kind in data):
                yield f"image: code cell {number} shows a picture without alt text"
            html = data.get("text/html", "")
            if "<svg" in html and not all(
                part in html for part in ('aria-label="', "<figcaption>")
            ):
                yield f"figure: code cell {number} shows a figure without alt text and caption"


def _foreign(notebook: nbformat.NotebookNode) -> Iterator[str]:
    for number, cell in enumerate(notebook.cells, 1):
        outputs = "\n".join(_texts(cell.get("outputs", [])))
        if found := ABSOLUTE.search(cell.source + "\n" + outputs):
            yield f"absolute path: cell {number} contains {found[0]!r}"
        if hosts := set(ADDRESS.findall(outputs)) - NAMESPACES:
            yield f"foreign host: the output of cell {number} names {', '.join(sorted(hosts))}"
        if cell.cell_type == "code":
            if re.search(r"^\s*[!%]", cell.source, flags=re.M):
                yield f"magic: cell {number} starts a line with '!' or '%'"
            if re.search(r"\b(?:import|from) (?:requests|urllib|socket|httpx|http)\b", cell.source):
                yield f"network: cell {number} imports a network module"


def _cells(notebook: nbformat.NotebookNode) -> Iterator[str]:
    code = code_cells(notebook)
    lengths = [sum(bool(line.strip()) for line in cell.source.splitlines()) for cell in code]
    if len(code) not in CODE_CELLS:
        yield f"budget: {len(code)} code cells, not {CODE_CELLS[0]} to {CODE_CELLS[-1]}"
    if lengths and statistics.median(lengths) > MEDIAN_LINES:
        yield f"budget: the median cell has {statistics.median(lengths)} lines, over {MEDIAN_LINES}"
    for number, (cell, length) in enumerate(zip(code, lengths, strict=True), 1):
        if length > MAX_LINES:
            yield f"budget: code cell {number} has {length} lines, over {MAX_LINES}"
        if (widest := max(map(len, cell.source.splitlines()), default=0)) > MAX_COLUMNS:
            yield f"budget: code cell {number} has {widest} columns, over {MAX_COLUMNS}"
        if unknown := set(cell.metadata.get("tags", [])) - TAGS:
            yield f"tags: code cell {number} has {', '.join(sorted(unknown))}"
    if (size := len(nbformat.writes(notebook).encode())) >= MAX_BYTES:
        yield f"budget: {size:,} bytes, the limit is {MAX_BYTES:,}"


def _prose(notebook: nbformat.NotebookNode) -> Iterator[str]:
    text = "\n\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    if (words := _count_words(text)) not in WORDS:
        yield f"budget: {words:,} words, not {WORDS[0]:,} to {WORDS[-1]:,}"
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    headings = re.findall(r"^(#+) (.+)$", text, flags=re.M)
    levels = [len(marks) for marks, _ in headings]
    if levels.count(1) != 1 or levels[0] != 1:
        yield "headings: a chapter has one title, and it comes first"
    for (_, title), before, level in zip(headings[1:], levels, levels[1:], strict=False):
        if level > before + 1:
            yield f"headings: {title!r} skips a level"
    titles = [title for _, title in headings]
    if missing := [section for section in SECTIONS if section not in titles]:
        yield f"headings: no section {', '.join(map(repr, missing))}"
    elif sorted(SECTIONS, key=titles.index) != SECTIONS:
        yield f"headings: the sections {', '.join(SECTIONS)} come in another order"


def _names(notebook: nbformat.NotebookNode) -> Iterator[str]:
    public = _public_names(ROOT / "code/kvpipe")
    for number, cell in enumerate(code_cells(notebook), 1):
        taken = public & _defined_names(_parse(cell.source))
        if taken:
            yield f"names: code cell {number} redefines the module's {', '.join(sorted(taken))}"


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _texts(value: object) -> Iterator[str]:
    """Every string inside outputs, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for part in value.values() for text in _texts(part))
    elif isinstance(value, list):
        yield from (text for part in value for text in _texts(part))


def _must_show(source: str) -> bool:
    """Whether a cell prints at its top level, or ends with an expression that displays."""
    body = _parse(source).body
    calls = [
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for statement in body
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
    ]
    is_value = bool(body) and isinstance(body[-1], ast.Expr)
    return bool(SHOWING & set(calls)) or (is_value and isinstance(body[-1].value, ast.Name))


def _parse(source: str) -> ast.Module:
    """The syntax of a cell; empty where a magic makes it no Python, which `_foreign` reports."""
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


def _count_words(markdown: str) -> int:
    """Words that are read: no code blocks, no displayed formulas, no HTML tags."""
    for pattern in (r"^```.*?^```", r"\$\$.*?\$\$", r"</?\w+[^>]*>"):
        markdown = re.sub(pattern, " ", markdown, flags=re.M | re.S)
    return len(re.findall(r"\S*\w\S*", markdown))


@functools.cache
def _public_names(package: Path) -> set[str]:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in package.rglob("*.py"))
    names = {
        node.name
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    return {name for name in names if not name.startswith("_")}


def _defined_names(tree: ast.Module) -> set[str]:
    """What a cell defines with def, class or a lambda, at its top level, `naive_*` excepted."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("naive_")}
