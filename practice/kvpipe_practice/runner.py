"""One judged run: sends inputs to the answer's process, takes back data, keeps every limit."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import wire
from .hosts import START_LIMIT_S, Child, Host, HostError
from .results import clean

OUTPUT_LIMIT_BYTES = 2**20
OUTPUT_SETTLE_S = 0.2
MEMORY_POLL_S = 0.2
MAX_EVENTS = 2
STOP_POLL_S = 0.05
SNAPSHOT_S = 0.3
STACK = b"Stack (most recent call first):\n"
FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')
ENDS = ("timeout", "dead", "output", "memory", "malformed")


@dataclass(frozen=True)
class Outcome:
    """What came back from one request.

    `kind` is the reply's own (`loaded`, `nofunction`, `returned`, `raised`, `unsendable`) or
    `timeout`, `dead`, `output` (printed too much), `memory` or `malformed`.
    """

    kind: str
    header: dict
    block: bytes
    printed: str
    seconds: float
    exit_code: int | None = None
    hung: tuple[tuple[str, int, str], ...] = ()


class Stopped(Exception):
    """The run is no longer wanted; its process has ended."""


class Output:
    """What the answer prints, read all the time so that it never blocks, kept up to a limit."""

    def __init__(self, stream: Any, overflow: Any) -> None:
        self.stream, self.overflow = stream, overflow
        self.held = bytearray()
        self.changed = threading.Condition()
        self.ended = False
        threading.Thread(target=self._pump, daemon=True).start()

    def _pump(self) -> None:
        total = 0
        try:
            while chunk := self.stream.read(65536):
                with self.changed:
                    total += len(chunk)
                    if len(self.held) <= OUTPUT_LIMIT_BYTES:
                        self.held += chunk
                        if len(self.held) > OUTPUT_LIMIT_BYTES:
                            self.overflow()
                    self.changed.notify_all()
        except (OSError, ValueError):
            pass
        self.stream.close()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def take(self, marker: bytes) -> str:
        """The text up to the marker, or all there is if it does not come in time."""

        def arrived() -> bool:
            return marker in self.held or self.ended

        with self.changed:
            self.changed.wait_for(arrived, OUTPUT_SETTLE_S)
            text, _, rest = bytes(self.held).partition(marker)
            self.held[:] = rest
        return clean(text.decode("utf-8", "replace").replace("\r\n", "\n"))

    def stack(self) -> tuple[tuple[str, int, str], ...]:
        """Cut the stack that was asked for out of the text; its frames, the innermost first."""
        with self.changed:
            self.changed.wait_for(lambda: STACK in self.held or self.ended, SNAPSHOT_S)
        time.sleep(STOP_POLL_S)  # the rest of it
        with self.changed:
            text, found, frames = bytes(self.held).rpartition(STACK)
            if not found:
                return ()
            self.held[:] = text
        lines = map(FRAME.fullmatch, clean(frames.decode("utf-8", "replace")).splitlines())
        return tuple((line[1], int(line[2]), line[3]) for line in lines if line)


class Process:
    """The judge's end of one answer's process."""

    def __init__(self, host: Host, polled: int = 0, stop: Callable[[], bool] | None = None) -> None:
        self.host, self.polled, self.stop = host, polled, stop
        self.folder = tempfile.mkdtemp(prefix="kvpipe-answer-")
        try:
            self.child: Child = host.open(self.folder)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        # bounded: an answer that writes replies without end must not fill the judge's memory
        self.events: queue.Queue = queue.Queue(maxsize=MAX_EVENTS)
        self.outbox: queue.Queue = queue.Queue()
        self.output = Output(self.child.output, self._overflow)
        self.threads = [
            threading.Thread(target=step, daemon=True) for step in (self._read, self._write)
        ]
        for thread in self.threads:
            thread.start()
        self.exit_code: int | None = None
        if self.exchange({"op": "hello"}, b"", START_LIMIT_S).kind != "ready":
            raise HostError("the process for the answer did not start; run `judge.py doctor`")
        if polled:
            self.polled += resident_bytes(self.child.pid)

    def _overflow(self) -> None:
        with contextlib.suppress(queue.Full):  # replies nobody asked for end the run as well
            self.events.put_nowait(("output", {}, b""))

    def _read(self) -> None:
        try:
            while (message := wire.read_message(self.child.results)) is not None:
                self.events.put(("reply", *message))
            self.events.put(("dead", {}, b""))
        except wire.WireError as error:
            self.events.put(("malformed", {"message": str(error)}, b""))
        except (OSError, ValueError):
            self.events.put(("dead", {}, b""))

    def _write(self) -> None:
        while (data := self.outbox.get()) is not None:
            try:
                view = memoryview(data)
                while view:
                    view = view[self.child.requests.write(view) :]
            except (OSError, ValueError):
                return

    def exchange(self, request: dict, block: bytes, limit_s: float) -> Outcome:
        """Send one request and wait for its reply; after anything but a reply the process ends."""
        token = secrets.token_hex(8)
        started = time.perf_counter()
        self.outbox.put(wire.pack({**request, "token": token}, block))
        kind, header, data = self._wait(started + limit_s)
        seconds = time.perf_counter() - started
        if kind == "reply":
            if header.get("token") == token and isinstance(header.get("op"), str):
                kind = header["op"]
            else:
                kind, header = "malformed", {"message": "a message that answers no request"}
        hung = self.snapshot() if kind == "timeout" else ()
        if kind in ENDS:
            self.end(expect_dead=kind == "dead")
        printed = self.output.take(b"\x00kvp:" + token.encode() + b"\x00")
        return Outcome(kind, header, data, printed, seconds, self.exit_code, hung)

    def _wait(self, deadline: float) -> tuple[str, dict, bytes]:
        """The next event, or `timeout`, or `memory` where this process has to watch it."""
        poll_s = STOP_POLL_S if self.stop else MEMORY_POLL_S if self.polled else math.inf
        while (left := deadline - time.perf_counter()) > 0:
            try:
                return self.events.get(timeout=min(left, poll_s))
            except queue.Empty:
                if self.stop and self.stop():
                    self.end()
                    raise Stopped from None
                if self.polled and resident_bytes(self.child.pid) > self.polled:
                    return "memory", {}, b""
        return "timeout", {}, b""

    def snapshot(self) -> tuple[tuple[str, int, str], ...]:
        """Where the answer is right now, as it tells: for the reader, never for a verdict."""
        if not hasattr(signal, "SIGUSR2"):
            return ()
        with contextlib.suppress(OSError):
            os.kill(self.child.pid, signal.SIGUSR2)
        return self.output.stack()

    @property
    def alive(self) -> bool:
        return self.exit_code is None

    def end(self, expect_dead: bool = False) -> None:
        """End the process and everything it started; remove its folder."""
        if not self.alive:
            return
        self.exit_code = self.host.end(self.child, expect_dead)
        self.outbox.put(None)
        with contextlib.suppress(queue.Empty):
            while True:
                self.events.get_nowait()
        for thread in self.threads:
            thread.join(timeout=0.5)
        for stream in (self.child.requests, self.child.results):
            try:
                stream.close()
            except OSError:
                continue
        shutil.rmtree(self.folder, ignore_errors=True)


def resident_bytes(pid: int) -> int:
    """The memory a process holds, from `ps`; 0 if it cannot be told."""
    try:
        listed = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, timeout=2
        )
        return int(listed.stdout) * 1024
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return 0
