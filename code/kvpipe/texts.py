"""English text that is on every machine with Python, in parts that never meet. Support module.

Three kinds: the reference manual inside `pydoc_data.topics`, the docstrings of the standard
library, and the docstrings of packages this book needs anyway. A document (a topic, a source file)
belongs to the part "test" or to the part "train" by a checksum of its name, so that text used to
fit something is never the text that judges it, on whatever machine.
"""

from __future__ import annotations

import ast
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

KINDS = ("manual", "docstrings", "packages")
PARTS = ("train", "test")
PACKAGES = ("torch", "numpy", "matplotlib", "huggingface_hub")
# Tests, tables and vendored copies, little of it prose; then what not every Python has.
SKIPPED = {"test", "tests", "site-packages", "_vendor", "pydoc_data", "ensurepip"}
SKIPPED |= {"idlelib", "tkinter", "turtledemo", "lib2to3", "distutils"}
TEST_SHARE = 5  # one document in so many belongs to the part "test"


def documents(kind: str, part: str = "test") -> Iterator[str]:
    """The documents of one kind and part, in an order fixed by their names.

    Source files are read only as they are asked for. Raises ValueError for an unknown kind or part.
    """
    for name, given, allowed in (("kind", kind, KINDS), ("part", part, PARTS)):
        if given not in allowed:
            raise ValueError(f"{name} {given!r} is unknown; choose one of {', '.join(allowed)}")
    sources = _topics() if kind == "manual" else _files(kind)
    for name in sorted(sources, key=_checksum):
        is_test = _checksum(name) % TEST_SHARE == 0
        if is_test == (part == "test") and (text := _text(sources[name])):
            yield text


def text_tokens(tokenizer, kind: str, part: str = "test", n_tokens: int = 8192) -> Tensor:
    """The first `n_tokens` token ids of the documents in a row: (n_tokens,).

    Raises ValueError if the text of that kind and part is shorter.
    """
    ids: list[int] = []
    for text in documents(kind, part):
        ids += tokenizer(text + "\n\n", add_special_tokens=False).input_ids
        if len(ids) >= n_tokens:
            return torch.tensor(ids[:n_tokens])
    raise ValueError(
        f"the {part} part of the kind {kind!r} has {len(ids)} tokens, {n_tokens} are asked for; "
        "ask for fewer or take a second kind"
    )


def _checksum(name: str) -> int:
    return zlib.crc32(name.encode())


def _topics() -> dict[str, str]:
    from pydoc_data.topics import topics

    return dict(topics)


def _files(kind: str) -> dict[str, Path]:
    """Source files by the name they have below their root, the same on every machine."""
    if kind == "docstrings":
        root, tops = Path(sysconfig.get_path("stdlib")), [""]
    else:
        root, tops = Path(torch.__file__).parents[1], PACKAGES
    found = {}
    for path in (path for top in tops for path in (root / top).rglob("*.py")):
        name = path.relative_to(root)
        if not SKIPPED & set(name.parts):
            found[name.as_posix()] = path
    return found


def _text(source: str | Path) -> str:
    return source if isinstance(source, str) else _docstrings(source)


def _docstrings(path: Path) -> str:
    """All docstrings of a file that are more than a line; none if it is not today's Python."""
    try:
        nodes = ast.walk(ast.parse(path.read_bytes()))
    except (SyntaxError, ValueError, OSError):
        return ""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = (ast.get_docstring(node) for node in nodes if isinstance(node, kinds))
    return "\n\n".join(text for text in texts if text and "\n" in text)
