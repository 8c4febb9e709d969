"""From a function in a notebook to a file that stands alone.

The answer's process knows nothing of the notebook. So the function's source is taken together
with the imports, constants and helpers it uses; what cannot be taken along is refused by name.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import math
import textwrap
import types
from collections.abc import Callable
from typing import Any

PLAIN = (bool, int, float, str, bytes, type(None))


class GatherError(ValueError):
    """A function that cannot be judged as it stands, with the way out."""


def answer_source(function: Callable[..., Any], wanted: str) -> str:
    """Source that defines the function under the wanted name, and all it needs."""
    plain = inspect.unwrap(function) if callable(function) else function
    if not isinstance(plain, types.FunctionType) or plain.__name__ == "<lambda>":
        raise GatherError(f"check needs a function written with `def`, not {describe(function)}")
    parts = Parts()
    parts.add_function(plain.__name__, plain)
    if plain.__name__ != wanted:
        parts.definitions.append(f"{wanted} = {plain.__name__}")
    return "\n\n\n".join(("\n".join(parts.imports), *parts.definitions)).strip() + "\n"


def describe(thing: Any) -> str:
    if isinstance(thing, types.FunctionType):
        return "a lambda"
    return f"a {type(thing).__name__}"


class Parts:
    """Imports and definitions gathered so far, in an order in which they can run."""

    def __init__(self) -> None:
        self.imports: list[str] = []
        self.definitions: list[str] = []
        self.done: dict[str, Any] = {}

    def add_function(self, name: str, function: types.FunctionType) -> None:
        """A function of the notebook, after everything it uses."""
        if function.__closure__:
            free = ", ".join(function.__code__.co_freevars)
            raise GatherError(
                f"{name} is defined inside another function and uses its {free}; "
                "define it at the top of a cell"
            )
        self.done[name] = function
        source = source_of(name, function)
        self.add_names(source, function.__globals__, name)
        self.definitions.append(source)

    def add_names(self, source: str, names: dict[str, Any], user: str) -> None:
        """Whatever the source reads from the notebook's names."""
        for name in free_names(source):
            if name in names:
                self.add(name, names[name], user)
            elif not hasattr(builtins, name):
                raise GatherError(f"{user} uses {name}, which is not defined in the notebook")

    def add(self, name: str, value: Any, user: str) -> None:
        """One name: an import, a constant, a helper, or a refusal."""
        if name in self.done:
            return
        plain = inspect.unwrap(value) if callable(value) else value  # decorators stay with it
        if isinstance(value, types.ModuleType):
            self.add_import(name, value, f"import {value.__name__} as {name}")
        elif isinstance(plain, types.FunctionType) and of_notebook(plain):
            self.add_function(plain.__name__, plain)
            if plain.__name__ != name:
                self.definitions.append(f"{name} = {plain.__name__}")
        elif isinstance(value, type) and of_notebook(value):
            self.add_class(name, value)
        elif importable(value):
            origin = f"from {value.__module__} import {value.__qualname__} as {name}"
            self.add_import(name, value, origin)
        elif type(value) is float and not math.isfinite(value):
            self.done[name] = value
            self.definitions.append(f"{name} = float('{value}')")
        elif is_plain(value):
            self.done[name] = value
            self.definitions.append(f"{name} = {value!r}")
        elif type(value).__module__ == "torch" and repr(value).startswith("torch."):
            self.add_import(name, value, f"import torch; {name} = {value!r}")
        else:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise GatherError(
                f"{user} uses {name}, a {kind} of the notebook, which cannot be taken along; "
                f"create it inside {user} or pass it as a parameter"
            )

    def add_import(self, name: str, value: Any, line: str) -> None:
        self.done[name] = value
        self.imports.append(line)

    def add_class(self, name: str, value: type) -> None:
        self.done[name] = value
        source = class_source(value)
        methods = [m for m in vars(value).values() if isinstance(m, types.FunctionType)]
        self.add_names(source, methods[0].__globals__, name)
        self.definitions.append(source)


def of_notebook(value: Any) -> bool:
    return value.__module__ == "__main__"


def importable(value: Any) -> bool:
    """Can another process find the value under its own module and name?"""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not name or "." in name or module == "__main__":
        return False
    try:
        return getattr(__import__(module, fromlist=[name]), name, None) is value
    except ImportError:
        return False


def is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(is_plain(k) and is_plain(v) for k, v in value.items())
    return type(value) in PLAIN and not (type(value) is float and not math.isfinite(value))


def source_of(name: str, function: types.FunctionType) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function)).strip()
    except (OSError, TypeError):
        raise GatherError(
            f"the source of {name} cannot be found; define it with `def` in a cell and run the cell"
        ) from None


def class_source(value: type) -> str:
    """A class of the notebook, found by its methods' cell."""
    methods = [m for m in vars(value).values() if isinstance(m, types.FunctionType)]
    for method in methods:
        text = "".join(linecache.getlines(method.__code__.co_filename))
        if not text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.name == value.__name__:
                start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                lines = text.splitlines()[start - 1 : node.end_lineno]
                return textwrap.dedent("\n".join(lines))
    raise GatherError(f"the source of class {value.__name__} cannot be found; use a function")


def free_names(source: str) -> list[str]:
    """The names a definition reads and does not bind anywhere in itself."""
    tree = ast.parse(source)
    read, bound = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                read.append(node.id)
            else:
                bound.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return list(dict.fromkeys(name for name in read if name not in bound))
