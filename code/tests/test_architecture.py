"""The shape of the repository: who may import whom, how long things get, and what is never said."""

import ast
import functools
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "code/kvpipe"

# The modules of each chapter, in the order of the book. A package counts with all it contains.
CHAPTERS = {
    1: ["attention", "cache", "checkpoints", "config", "default_model", "generate", "linear",
        "transformer"],
    2: ["pipeline"],
    3: ["context"],
    4: ["balance"],
    5: ["kv_sharing"],
    6: ["pyramid"],
}  # fmt: skip
# Modules that serve every chapter.
SUPPORT = {
    "__init__", "__main__", "bench", "bench_model", "bench_part", "bench_pipeline", "book",
    "book_pages", "comm", "derivation",
    "evaluate", "hf", "ledger", "measure", "needles", "notebooks", "plots", "plots_balance",
    "plots_context", "plots_kv_sharing", "plots_pipeline", "plots_pyramid", "svg", "texts",
    "widgets",
}  # fmt: skip
# What draws, and who may ask it to.
DRAWING = {module for module in SUPPORT if module.startswith("plots")} | {"widgets"}
# The planner's command line writes its drawing where the user asks for one; the planner draws none.
MAY_DRAW = DRAWING | {"book", "book_pages", "balance.__main__"}
LONGEST_MODULE, LONGEST_FUNCTION = 299, 49  # lines

CHAPTER_OF = {module: n for n, modules in CHAPTERS.items() for module in modules}


def modules() -> dict[str, Path]:
    """'pipeline.ops' -> its file, for every module of the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
        found[name] = path
    return found


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def top(module: str) -> str:
    return module.partition(".")[0]


def imported(syntax: ast.AST, module: str, known: set[str]) -> set[str]:
    """Modules of the package that `module` imports, anywhere in it."""
    names = set()
    package = module.split(".")
    for node in ast.walk(syntax):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(["kvpipe", *package[: -node.level], *base.split(".")]).rstrip(".")
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    inside = {name.removeprefix("kvpipe.") for name in names if name.startswith("kvpipe.")}
    return inside & known


@functools.cache
def imports() -> dict[str, set[str]]:
    found = modules()
    return {name: imported(tree(path), name, set(found)) for name, path in found.items()}


def reached(module: str) -> set[str]:
    """All that `module` imports, directly or through others."""
    seen, waiting = set(), [module]
    while waiting:
        for name in imports()[waiting.pop()] - seen:
            seen.add(name)
            waiting.append(name)
    return seen


def test_every_module_belongs_to_a_chapter_or_serves_all():
    unknown = {top(name) for name in modules()} - set(CHAPTER_OF) - SUPPORT
    assert not unknown, (
        f"{sorted(unknown)} in code/kvpipe is in no chapter; add it to CHAPTERS or SUPPORT in "
        "code/tests/test_architecture.py"
    )
    assert not unknown & {"utils", "common", "helpers"}


def test_a_chapter_uses_only_what_came_before_it():
    for module in modules():
        if (chapter := CHAPTER_OF.get(top(module))) is None:
            continue
        later = {name for name in reached(module) if CHAPTER_OF.get(top(name), 0) > chapter}
        assert not later, f"{module} (chapter {chapter}) reaches later chapters: {sorted(later)}"


def test_only_the_book_draws():
    for module, names in imports().items():
        drawn = {name for name in names if top(name) in DRAWING}
        assert not drawn or {module, top(module)} & MAY_DRAW, f"{module} imports {sorted(drawn)}"


def test_imports_form_no_circle():
    for module in modules():
        assert module not in reached(module), f"{module} imports itself through others"


def test_what_claims_to_need_no_torch_imports_none():
    claims = re.compile(r"no torch|nothing here imports torch", re.IGNORECASE)
    names = [n for n, path in modules().items() if claims.search(ast.get_docstring(tree(path)))]
    assert "config" in names
    script = "import sys\n" + "\n".join(f"import kvpipe.{name}" for name in names)
    script += "\nassert 'torch' not in sys.modules, 'torch was imported'"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, timeout=120)


def test_code_is_still_the_standard_librarys():
    assert not (ROOT / "code/__init__.py").exists()
    script = "import code; print(hasattr(code, 'InteractiveConsole'))"
    for folder in (ROOT, ROOT / "notebooks", ROOT / "code"):
        if folder.is_dir():
            done = subprocess.run(
                [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True
            )
            assert done.stdout == "True\n", f"in {folder.name}: {done.stderr}"


def test_importing_a_module_shows_nothing():
    names = [n for n in modules() if n not in ("__main__", "bench") and not n.startswith("_")]
    script = "\n".join(f"import kvpipe.{name}" for name in names)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


# --- files of Python ---------------------------------------------------------


def sources() -> list[Path]:
    """What is ours and runs: the package, the judge, the set-up; tests are counted apart."""
    judge = ROOT / "practice"
    paths = [*PACKAGE.rglob("*.py"), *(judge / "kvpipe_practice").rglob("*.py")]
    return sorted([*paths, *judge.glob("*.py"), *(ROOT / "code").glob("*.py")])


def functions(syntax: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(syntax):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def too_long(path: Path, longest_module: int | None) -> list[str]:
    """What is longer than it may be, with its length."""
    n_lines = len(path.read_text(encoding="utf-8").splitlines())
    found = [f"{path.name}: {n_lines} lines"] if n_lines > (longest_module or n_lines) else []
    for node in functions(tree(path)):
        if (n := node.end_lineno - node.lineno + 1) > LONGEST_FUNCTION:
            found.append(f"{path.name}: {node.name}, {n} lines")
    return found


def test_modules_and_functions_stay_short():
    tests = sorted((ROOT / "code/tests").glob("*.py"))
    long = [line for path in sources() for line in too_long(path, LONGEST_MODULE)]
    assert long + [line for path in tests for line in too_long(path, None)] == []


def test_every_module_says_what_it_is_and_of_which_chapter():
    for path in [*sources(), *(ROOT / "code/tests").glob("*.py")]:
        first, *_ = (ast.get_docstring(tree(path)) or "").splitlines() or [""]
        assert first.endswith((".", "?", ":")), f"{path.name}: first docstring line is {first!r}"
    for name, path in modules().items():
        if chapter := CHAPTER_OF.get(top(name)):
            said = ast.get_docstring(tree(path)) + ast.get_docstring(tree(modules()[top(name)]))
            assert re.search(rf"chapter {chapter}\b", said, re.I), f"{name}: no chapter {chapter}"


def untyped(syntax: ast.Module) -> list[str]:
    """Public functions and methods with a parameter or result that has no type."""
    public = [node for node in syntax.body if not getattr(node, "name", "_").startswith("_")]
    classes = [node for node in public if isinstance(node, ast.ClassDef)]
    members = [node for owner in classes for node in owner.body]
    found = []
    for node in [*public, *members]:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        bare = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
        # `tokenizer` has a different class for every model of transformers.
        if node.returns is None or set(bare) - {"tokenizer"}:
            found.append(f"{node.name}({', '.join(bare)})")
    return found


def test_public_signatures_of_the_chapters_have_types():
    chapters = {name: path for name, path in modules().items() if top(name) in CHAPTER_OF}
    found = {name: untyped(tree(path)) for name, path in chapters.items()}
    assert {name: names for name, names in found.items() if names} == {}


# --- notebooks ---------------------------------------------------------------


def public_names() -> set[str]:
    """Functions and classes that the package offers."""
    defines = (ast.FunctionDef, ast.ClassDef)
    nodes = itertools.chain.from_iterable(tree(path).body for path in modules().values())
    return {node.name for node in nodes if isinstance(node, defines) and node.name[0] != "_"}


def redefined(notebook: dict, taken: set[str]) -> list[str]:
    """Names of the package that a notebook defines once more."""
    found = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        lines = "".join(cell["source"]).splitlines()
        code = "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!")))
        for node in ast.walk(ast.parse(code)):
            name = getattr(node, "name", None)
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and name in taken:
                found.append(name)
    return [name for name in found if not name.startswith("naive_")]


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda p: p.stem)
def test_notebooks_derive_and_do_not_redefine(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert redefined(notebook, public_names()) == []


# --- every tracked file ------------------------------------------------------


def tracked() -> list[Path]:
    """Files of the repository; of an unpacked archive, all but what is built."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return [p for name in done.stdout.split("\0") if name and (p := ROOT / name).is_file()]
    built = {".venv", "_build", "__pycache__", ".pytest_cache", ".ruff_cache"}
    return [p for p in ROOT.rglob("*") if p.is_file() and not built & set(p.parts)]


PUBLIC_HOSTS = {"pypi.org", "files.pythonhosted.org", "download.pytorch.org", "registry.npmjs.org"}


@functools.cache
def private_strings() -> list[str]:
    """Paths and hosts of this machine that a file could only have by accident."""
    paths = {f"{ROOT}", f"{Path.home()}/", f"{Path(sys.prefix)}"}
    for name, value in os.environ.items():
        if re.search(r"INDEX_URL|FIND_LINKS|REGISTRY", name, re.IGNORECASE):
            for url in value.split():
                host = urlsplit(url).hostname
                paths |= {host or url} - PUBLIC_HOSTS
    return sorted(text for text in paths if len(text) > 4)


@functools.cache
def forbidden(is_test: bool = False) -> re.Pattern:
    """What no file may contain. Written so that this file does not either.

    Tests may hold made-up paths and hosts, to check that such are found.
    """
    marks = "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"])
    everywhere = [rf"\b(?:{marks})\b", *(rf"(?<![\w/.]){re.escape(t)}" for t in private_strings())]
    outside_tests = [
        r"/(?:home|Users)/[a-z]\w*/",
        r"\b[A-Z]:\\+Users\\",
        r"/tmp/ipykernel",
        r"https?://[^\s/\"']+\.(?:internal|local|lan|corp|intra)\b",
        r"\b(?:10\.\d{1,3}|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d{1,3}\.\d{1,3}\b",
    ]
    return re.compile("|".join(everywhere if is_test else everywhere + outside_tests))


def offences(text: str, pattern: re.Pattern) -> list[str]:
    return [match.group() for match in pattern.finditer(text)]


def test_no_file_speaks_of_this_machine_or_of_work_to_come():
    found = {}
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if lines := offences(text, forbidden("tests" in path.parts)):
            found[str(path.relative_to(ROOT))] = lines
    assert found == {}


def test_prose_is_plain():
    pattern = re.compile(r"\b(?:simpl" + r"y|obviousl" + r"y|trivia" + r"lly)\b", re.IGNORECASE)
    kinds = {".md", ".py", ".ipynb", ".yml"}
    files = [path for path in tracked() if path.suffix in kinds]
    found = {p.name: offences(p.read_text(encoding="utf-8"), pattern) for p in files}
    assert {name: words for name, words in found.items() if words} == {}


# --- the checks themselves ---------------------------------------------------


def test_the_checks_notice_what_they_are_for(tmp_path):
    known = {"plots", "pipeline", "pipeline.ops", "cache"}
    code = "def f():\n    from kvpipe.pipeline import ops\nimport kvpipe.cache\nfrom . import plots"
    expected = {"pipeline", "pipeline.ops", "cache", "plots"}
    assert imported(ast.parse(code), "svg", known) == expected
    relative = ast.parse("from .ops import Op")
    assert imported(relative, "pipeline.schedules", known) == {"pipeline.ops"}

    long = tmp_path / "long.py"
    long.write_text("def f():\n" + "    x = 1\n" * 49)
    assert too_long(long, 49) == ["long.py: 50 lines", "long.py: f, 50 lines"]
    assert too_long(long, 50) == ["long.py: f, 50 lines"]

    code = "def f(x): ...\nclass C:\n    def g(self, y: int): ..."
    assert untyped(ast.parse(code)) == ["f(x)", "g()"]
    cell = {"cell_type": "code", "source": ["%matplotlib inline\n", "def rotate(x): ...\n"]}
    assert redefined({"cells": [cell]}, {"rotate"}) == ["rotate"]
    assert redefined({"cells": [cell]}, {"rotary"}) == []

    for text in ("# TO" + "DO: later", "/home/ada/x", f"{ROOT}/code", "192.168.1.7"):
        assert offences(text, forbidden()), text
    assert not offences("torch 2.13.0.1, https://pypi.org, code/kvpipe, a mastodon", forbidden())
