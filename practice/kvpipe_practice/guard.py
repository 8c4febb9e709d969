"""Forbidden and required calls at run time, inside an answer's process.

A forbidden function raises, by whatever name it is reached: its attribute is replaced, and the
kernels that torch would dispatch to are replaced too, which also stops `torch.ops` and `torch._C`.
No original is kept anywhere, so there is none to find. What was tried is noted for the judge.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

KERNEL_KEYS = ("CPU", "AutogradCPU", "CompositeImplicitAutograd")
# torch reaches some operations by kernels of another name
MORE_KERNELS = {
    "scaled_dot_product_attention": "scaled_dot_product_|_flash_attention|_efficient_attention"
    "|_native_multi_head_attention|_triton_scaled_dot",
}


class ForbiddenCall(PermissionError):
    """Something the judge or this problem does not allow."""


class Notes:
    """What the answer tried that is forbidden, and which required calls it made."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.called: set[str] = set()


_notes = Notes()


def notes() -> dict:
    """What was noted since the last time, as data."""
    refused, _notes.refused = _notes.refused[:5], []
    return {"refused": refused, "called": sorted(_notes.called)}


def refuse(what: str) -> None:
    """Note and raise."""
    _notes.refused.append(what)
    raise ForbiddenCall(f"forbidden: {what}")


def install(forbidden: list[str], required: list[str]) -> list[str]:
    """Replace forbidden functions and count required ones; the modules still to be kept out.

    A forbidden function in a module that nobody has imported yet is kept out with its module.
    """
    unloaded = []
    for name in forbidden:
        owner, attribute = resolve(name)
        if owner is not None:
            replace_attribute(owner, attribute, raiser(name))
        elif "." in name and name.rpartition(".")[0] not in sys.modules:
            unloaded.append(name.rpartition(".")[0])
    if forbidden and "torch" in sys.modules:
        replace_kernels(forbidden)
    for name in required:
        owner, attribute = resolve(name)
        if owner is not None:
            setattr(owner, attribute, counting(name, getattr(owner, attribute)))
    return unloaded


def resolve(name: str) -> tuple[Any, str]:
    """The module or class that holds a full name, and the last part; (None, "") if there is none.

    Built-in functions are left alone: libraries need them, so they are only checked in the source.
    """
    *path, attribute = name.split(".")
    if not path:
        return None, ""
    owner = importlib.import_module(path[0])
    for part in path[1:]:
        owner = getattr(owner, part, None)
    return (owner, attribute) if hasattr(owner, attribute) else (None, "")


def exists(name: str) -> bool:
    """Does a full name lead anywhere, if its module is imported?"""
    if resolve(name)[0] is not None:
        return True
    module, _, attribute = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), attribute)
    except ImportError:
        return False


def raiser(name: str) -> Callable[..., None]:
    def forbidden(*args: Any, **kwargs: Any) -> None:
        refuse(f"call: {name}")

    return forbidden


def counting(name: str, function: Callable) -> Callable:
    called = _notes.called

    def required(*args: Any, **kwargs: Any) -> Any:
        called.add(name)
        return function(*args, **kwargs)

    return required


def replace_attribute(owner: Any, attribute: str, stand_in: Callable) -> None:
    """Put the stand-in in place of a function; of a class, of its constructor."""
    target = getattr(owner, attribute)
    if isinstance(target, type):
        target.__init__ = stand_in
    else:
        setattr(owner, attribute, stand_in)


def replace_kernels(forbidden: list[str]) -> None:
    """Make torch's dispatcher raise for every kernel of the forbidden operations."""
    import torch

    every = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")]
    library = torch._C._dispatch_library("IMPL", "aten", "", __file__, 0)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))  # for good, and found by nobody
    done: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that kernels are overridden, as they must be
        for name in forbidden:
            if not name.startswith(("torch.", "aten.")):
                continue
            pattern = kernel_pattern(name.rpartition(".")[2])
            for kernel in every:
                operation = kernel.removeprefix("aten::")
                if operation not in done and pattern.match(operation):
                    done.add(operation)
                    for key in KERNEL_KEYS:
                        library.impl(operation, key, raiser(name), False)


def kernel_pattern(base: str) -> re.Pattern:
    """Kernel names of a function: `softmax` is also `_softmax`, `special_softmax`, ..."""
    own = rf"_*(?:(?:special|fused|safe|native|masked)_)*{re.escape(base)}_?(?:$|\.|_backward)"
    more = MORE_KERNELS.get(base)
    return re.compile(f"{own}|_*(?:{more})" if more else own)
