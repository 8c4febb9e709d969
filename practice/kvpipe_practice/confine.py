"""The walls of an answer's process, put up after its imports and before the learner's file runs.

Three rings, each good on its own: limits of the system, an audit hook that names what is refused
(everywhere), and Landlock with seccomp (Linux), which hold whatever the code in the process does.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable

from . import guard, landlock, seccomp

FOREIGN_MODULES = frozenset({"kvpipe", "kvpipe_practice", "transformers"})
STARTS_PROCESS = (
    *("os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec", "os.system"),
    *("os.startfile", "os.startfile/2", "subprocess.Popen", "pty.spawn"),
)
CHANGES_FILES = (
    *("os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.truncate", "os.utime"),
    *("shutil.rmtree", "os.setxattr", "os.mkfifo", "os.mknod"),
)
MOVES_FILES = ("os.rename", "os.link", "shutil.move")
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FILE_BYTES = 64 * 2**20
OPEN_FILES = 256


def confine(limits: dict, closed_modules: list[str]) -> list[str]:
    """Put up every wall this system has; their names."""
    folder = os.path.realpath(limits["folder"])
    os.chdir(folder)
    tempfile.tempdir = folder
    os.environ.update(dict.fromkeys(("HOME", "TMPDIR", "TEMP", "TMP"), folder))
    sys.path[:] = [
        path for path in sys.path if os.path.realpath(path) not in limits["unimportable"]
    ]
    walls = limit_resources(limits["memory_bytes"], limits["cpu_s"])
    if version := landlock.restrict(limits["protected"], folder):
        walls.append(f"landlock {version}")
    if seccomp.restrict():
        walls.append("seccomp")
    sys.addaudithook(make_hook(limits["protected"], folder, closed_modules))
    return [*walls, "audit hook"]


def limit_resources(memory_bytes: int, cpu_s: int) -> list[str]:
    """Limits of the operating system; Windows has none of these."""
    try:
        import resource
    except ImportError:
        return []
    wanted = {"CORE": 0, "CPU": cpu_s, "FSIZE": FILE_BYTES, "NOFILE": OPEN_FILES}
    if sys.platform == "linux":
        wanted["AS"] = address_space_bytes() + memory_bytes
    else:
        wanted["NPROC"] = 1  # no new process from here; threads do not count outside Linux
    names = []
    for name, value in wanted.items():
        _, hard = resource.getrlimit(number := getattr(resource, f"RLIMIT_{name}"))
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
        names.append(f"limit {name}")
    return names


def address_space_bytes() -> int:
    """What this process has mapped already: the memory limit counts from here."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


Check = Callable[..., None]


def make_hook(
    protected: list[str], folder: str, closed_modules: list[str]
) -> Callable[[str, tuple], None]:
    """An audit hook that refuses and notes; once added it cannot be removed.

    Its checks are closures over functions of the time before the learner's file: no name leads to
    them that the file could bind anew.
    """
    find = {**path_checks(protected, folder), **other_checks(closed_modules)}.get

    def hook(event: str, arguments: tuple) -> None:
        if (check := find(event)) is not None:
            check(*arguments)

    return hook


def path_checks(protected: list[str], folder: str) -> dict[str, Check]:
    """Events that name files: writing only in the folder, reading not in what is protected."""
    real, decode, within, refuse = os.path.realpath, os.fsdecode, landlock.is_within, guard.refuse
    null = os.devnull

    def place(path: object) -> str:
        return real(decode(path)) if isinstance(path, str | bytes | os.PathLike) else ""

    def write(path: object, *rest: object) -> None:
        where = place(path)
        if where and not within(where, folder) and where != null:
            refuse(f"writing {where}")

    def move(path: object, to: object, *rest: object) -> None:
        write(path)
        write(to)

    def check_open(path: object, mode: object, flags: object, *rest: object) -> None:
        if isinstance(flags, int) and flags & WRITE_FLAGS:
            write(path)
        where = place(path)
        if any(within(where, wall) for wall in protected):
            refuse(f"reading {where}")

    return {
        "open": check_open,
        "os.symlink": lambda path, to, *rest: write(to),
        **dict.fromkeys(CHANGES_FILES, write),
        **dict.fromkeys(MOVES_FILES, move),
    }


def other_checks(closed_modules: list[str]) -> dict[str, Check]:
    """Events about modules, processes, the network and limits."""
    refuse, own_pid = guard.refuse, os.getpid()

    def load(name: str, *rest: object) -> None:
        if name.partition(".")[0] in FOREIGN_MODULES or name in closed_modules:
            refuse(f"import {name}")

    def kill(pid: int, *rest: object) -> None:
        if pid not in (own_pid, 0):
            refuse("sending signals to other processes")

    def always(what: str) -> Check:
        return lambda *rest: refuse(what)

    return {
        "import": load,
        **dict.fromkeys(("os.kill", "os.killpg"), kill),
        "ctypes.dlopen": always("loading a library with ctypes"),
        **dict.fromkeys(("socket.connect", "socket.bind"), always("using the network")),
        **dict.fromkeys(("resource.setrlimit", "resource.prlimit"), always("changing the limits")),
        **dict.fromkeys(STARTS_PROCESS, always("starting a process")),
    }
