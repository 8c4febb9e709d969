"""Single keys from a terminal, without Enter; nothing where standard input is no terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

POLL_S = 0.1


@contextmanager
def reading(on_key: Callable[[str], None]) -> Iterator[bool]:
    """Call `on_key` for every key pressed inside the block; yields whether keys can be read."""
    if not sys.stdin.isatty():
        yield False
        return
    stop = threading.Event()
    read = windows_reader if sys.platform == "win32" else posix_reader
    with raw_terminal():
        thread = threading.Thread(target=read, args=(on_key, stop), daemon=True)
        thread.start()
        try:
            yield True
        finally:
            stop.set()
            thread.join(timeout=2 * POLL_S)


@contextmanager
def raw_terminal() -> Iterator[None]:
    """Keys without Enter and without echo, Ctrl-C as ever; the old state comes back afterwards."""
    if sys.platform == "win32":
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def posix_reader(on_key: Callable[[str], None], stop: threading.Event) -> None:
    import os
    import select

    while not stop.is_set():
        ready, _, _ = select.select([sys.stdin], [], [], POLL_S)
        if ready:
            data = os.read(sys.stdin.fileno(), 32).decode("utf-8", "ignore")
            if not data:
                return
            for key in data:
                on_key(key.lower())


def windows_reader(on_key: Callable[[str], None], stop: threading.Event) -> None:
    import msvcrt

    while not stop.wait(POLL_S):
        while msvcrt.kbhit():
            on_key(msvcrt.getwch().lower())
