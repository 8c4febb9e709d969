"""Where answers' processes come from: forked by a warm process, or started afresh."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, Protocol

from . import problems

KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SYSTEMROOT", "LD_LIBRARY_PATH")
START_LIMIT_S = 120


class HostError(RuntimeError):
    """The judge cannot start the process in which answers run."""


@dataclass
class Child:
    """One answer's process, seen from the judge: three streams and its number."""

    requests: BinaryIO
    results: BinaryIO
    output: BinaryIO
    pid: int


class Host(Protocol):
    """Starts answers' processes and ends them."""

    def open(self, folder: str) -> Child: ...

    def end(self, child: Child, expect_dead: bool) -> int:
        """End the process and its descendants; its exit code, negative for a signal."""

    def close(self) -> None: ...


def make_host(with_torch: bool, method: str | None = None) -> Host:
    """A forking host on Linux, elsewhere one that starts each process afresh.

    Forking a process that has loaded torch is only safe where its libraries allow it; macOS's do
    not promise that, and Windows has no fork.
    """
    method = method or ("fork" if sys.platform == "linux" else "spawn")
    return ForkHost(with_torch) if method == "fork" else SpawnHost(with_torch)


def environment(folder: str) -> dict[str, str]:
    """What an answer's process inherits: the language, the search path, nothing private."""
    kept = {key: os.environ[key] for key in KEPT_VARIABLES if key in os.environ}
    homes = dict.fromkeys(("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP"), folder)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**kept, **homes, **threads, "PYTHONDONTWRITEBYTECODE": "1"}


def command(body: str) -> list[str]:
    """Python running one line of this package, with this process's import path."""
    paths = [str(problems.PRACTICE), *(path for path in sys.path if path)]
    setup = f"import sys; sys.path[:] = {paths!r}; "
    return [sys.executable, "-E", "-s", "-c", setup + body]


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let Ctrl-C wait until the block is over: who starts a process gets to know its number."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Ctrl-C never comes here
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


class ForkHost:
    """One warm process that forks; started when the host is made, ready when first used."""

    def __init__(self, with_torch: bool) -> None:
        self.with_torch = with_torch
        self.process: subprocess.Popen | None = None
        try:
            self._start()
        except KeyboardInterrupt:
            self.close()
            raise

    def _start(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="kvpipe-host-")
        ours, theirs = socket.socketpair()
        ours.settimeout(START_LIMIT_S)
        self.channel, self.lines = ours, ours.makefile("rb")
        self.ready = False
        body = (
            "from kvpipe_practice import forkhost; "
            f"forkhost.serve({theirs.fileno()}, {self.with_torch})"
        )
        self.errors: IO[bytes] = open(Path(self.folder.name) / "errors", "w+b")  # noqa: SIM115
        with undisturbed():
            self.process = subprocess.Popen(
                command(body),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                pass_fds=(theirs.fileno(),),
                cwd=self.folder.name,
                env=environment(self.folder.name),
                start_new_session=True,
            )
        theirs.close()

    def _receive(self) -> dict:
        try:
            line = self.lines.readline()
        except OSError:
            line = b""
        if line:
            return json.loads(line)
        self.errors.seek(0)
        last = self.errors.read().decode(errors="replace").strip().splitlines()[-1:]
        self.close()
        raise HostError(f"the judge's worker ended: {''.join(last) or 'killed'}")

    def open(self, folder: str) -> Child:
        """Fork a process for one answer."""
        if self.process is None or self.process.poll() is not None:
            self.close()
            self._start()
        if not self.ready:
            self.ready = bool(self._receive())
        request_read, request_write = os.pipe()
        result_read, result_write = os.pipe()
        output_read, output_write = os.pipe()
        theirs = [request_read, result_write, output_write]
        try:
            message = json.dumps({"op": "run"}).encode()
            socket.send_fds(self.channel, [message], theirs)
        finally:
            for fd in theirs:
                os.close(fd)
        pid = self._receive()["pid"]
        return Child(
            open(request_write, "wb", buffering=0),
            open(result_read, "rb"),
            open(output_read, "rb", buffering=0),
            pid,
        )

    def end(self, child: Child, expect_dead: bool) -> int:
        """End one answer; where the warm process itself was killed, end the group directly."""
        try:
            message = json.dumps({"op": "end", "expect_dead": expect_dead}).encode()
            self.channel.sendall(message)
            return os.waitstatus_to_exitcode(self._receive()["status"])
        except (OSError, HostError):
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            return -signal.SIGKILL

    def close(self) -> None:
        """End the warm process."""
        if self.process is None:
            return
        self.lines.close()
        self.channel.close()
        if not self.ready:
            self.process.kill()  # still importing; it has started nothing
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None
        self.errors.close()
        self.folder.cleanup()


class SpawnHost:
    """A fresh interpreter per answer; when one ends the next is started, to be warm when needed."""

    def __init__(self, with_torch: bool) -> None:
        self.with_torch = with_torch
        self.folder = tempfile.TemporaryDirectory(prefix="kvpipe-host-")
        self.processes: dict[int, subprocess.Popen] = {}
        self.next: subprocess.Popen | None = self._start()

    def _start(self) -> subprocess.Popen:
        body = f"from kvpipe_practice import worker; worker.once({self.with_torch})"
        return subprocess.Popen(
            command(body),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=self.folder.name,
            env=environment(self.folder.name),
            start_new_session=True,
        )

    def open(self, folder: str) -> Child:
        """Hand out the process started ahead, or a new one."""
        process, self.next = self.next, None
        if process is None or process.poll() is not None:
            process = self._start()
        self.processes[process.pid] = process
        results = io.BufferedReader(process.stdout)
        return Child(process.stdin, results, process.stderr, process.pid)

    def end(self, child: Child, expect_dead: bool) -> int:
        """End one answer and its process group (on Windows its process tree)."""
        process = self.processes.pop(child.pid)
        if expect_dead:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
        kill_group(process)
        code = process.wait()
        if self.next is None:
            self.next = self._start()
        return code

    def close(self) -> None:
        """End everything that is left."""
        for process in (*self.processes.values(), self.next):
            if process is not None:
                kill_group(process)
                process.wait()
        self.processes, self.next = {}, None
        self.folder.cleanup()


def kill_group(process: subprocess.Popen) -> None:
    """Kill a process and its group."""
    if sys.platform == "win32":
        tree = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
        subprocess.run(tree, capture_output=True, check=False)
        return
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
