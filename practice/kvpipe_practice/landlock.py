"""Landlock: the Linux kernel's own wall around files, signals and TCP, for any user.

Source: https://docs.kernel.org/userspace-api/landlock.html (numbers are the same on every CPU).
"""

from __future__ import annotations

import ctypes
import os
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG, RULE_PATH_BENEATH = 1, 1
PR_SET_NO_NEW_PRIVS = 38

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
REFER, TRUNCATE = 1 << 13, 1 << 14
TCP_BIND_AND_CONNECT = 0b11
SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


class RulesetAttributes(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def version() -> int:
    """The kernel's Landlock version, 0 where there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, _libc().syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION_FLAG))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def readable_paths(protected: list[str]) -> list[str]:
    """The fewest paths that cover the whole file system except the protected ones.

    A link that leads into a protected path, or above one, is left out with it.
    """
    found, pending = [], ["/"]
    while pending:
        folder = pending.pop()
        for entry in os.scandir(folder):
            real = os.path.realpath(entry.path)
            if any(is_within(real, path) for path in protected):
                continue
            if any(is_within(path, real) for path in protected):
                if not entry.is_symlink():
                    pending.append(entry.path)
                continue
            found.append(entry.path)
    return found


def is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def restrict(protected: list[str], writable: str) -> int:
    """Wall in this process for good; the version in force, 0 if the kernel has none.

    Reading is allowed but in the protected paths, writing only in `writable` and to the null
    device, executing programs not at all. Signals and ptrace reach only this process.
    """
    abi = version()
    if abi == 0:
        return 0
    libc = _libc()
    handled = EXECUTE | WRITE_FILE | READ_FILE | READ_DIR | REMOVE_AND_MAKE
    handled |= (REFER if abi >= 2 else 0) | (TRUNCATE if abi >= 3 else 0)
    attributes = RulesetAttributes(
        handled,
        TCP_BIND_AND_CONNECT if abi >= 4 else 0,
        SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS if abi >= 6 else 0,
    )
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = libc.syscall(CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return 0
    for path in readable_paths(protected):
        _allow(libc, ruleset, path, READ_FILE | READ_DIR)
    _allow(libc, ruleset, writable, handled & ~EXECUTE)
    _allow(libc, ruleset, os.devnull, READ_FILE | WRITE_FILE | (handled & TRUNCATE))
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    failed = libc.syscall(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return 0 if failed else abi


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, access: int) -> None:
    """One rule; a path that vanished or cannot be opened stays closed."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(path):
        access &= WRITE_FILE | READ_FILE | TRUNCATE
    rule = PathBeneath(access, fd)
    libc.syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    os.close(fd)
