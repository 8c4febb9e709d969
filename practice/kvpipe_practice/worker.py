"""The answer's side: code that runs in the process which imports and calls the learner's function.

Everything this module needs is bound before the learner's file runs. It knows inputs only, never
an expected value, and sends back data; the verdict is the judge's.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import sys
import types
from typing import Any, BinaryIO

from . import confine, guard, wire

MARKER = b"\x00kvp:%s\x00"
MAX_MESSAGE = 2000
MAX_FRAMES = 24
ANSWER = "answer"


def describe(error: BaseException) -> dict:
    """An exception as data: type, message and the frames of its traceback."""
    frames, step = [], error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        frames.append([code.co_filename, step.tb_lineno, code.co_name])
        step = step.tb_next
    if len(frames) > MAX_FRAMES:
        frames = frames[: MAX_FRAMES // 2] + frames[-MAX_FRAMES // 2 :]
    try:
        message = str(error)[:MAX_MESSAGE]
    except BaseException:
        message = "(its message cannot be shown)"
    kinds = [kind.__name__ for kind in type(error).__mro__[:-1]]
    return {"type": type(error).__name__, "kinds": kinds, "message": message, "frames": frames}


class Answer:
    """One learner's file, loaded, and the channel on which its results go back."""

    def __init__(self, requests: BinaryIO, result_fd: int) -> None:
        self.requests = requests
        self.result_fd = result_fd
        self.function: Any = None

    def run(self) -> None:
        """Serve requests until the judge closes the channel."""
        while (message := wire.read_message(self.requests)) is not None:
            header, block = message
            step = {"hello": self.hello, "load": self.load, "call": self.call}[header["op"]]
            try:
                reply, data = step(header, block)
            except BaseException as error:
                reply, data = {"op": "raised", **describe(error)}, b""
            reply["notes"] = guard.notes()
            self.finish(header["token"], reply, data)

    def finish(self, token: str, reply: dict, data: bytes) -> None:
        """Send one reply, after everything printed so far."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:
                continue
        with contextlib.suppress(OSError):  # the learner may have closed stdout
            write_all(1, MARKER % token.encode())
        write_all(self.result_fd, wire.pack({**reply, "token": token}, data))

    def hello(self, header: dict, block: bytes) -> tuple[dict, bytes]:
        """Say that the imports are done, so that no limit counts them."""
        return {"op": "ready"}, b""

    def load(self, header: dict, block: bytes) -> tuple[dict, bytes]:
        """Confine this process, install the rules, run the learner's file."""
        unloaded = guard.install(header["forbidden"], header["required"])
        walls = confine.confine(header["limits"], unloaded)
        for name in [n for n in sys.modules if n.partition(".")[0] == __package__]:
            del sys.modules[name]
        module = types.ModuleType(ANSWER)
        module.__file__ = header["filename"]
        sys.modules[ANSWER] = module
        code = compile(header["source"], header["filename"], "exec", dont_inherit=True)
        exec(code, module.__dict__)
        self.function = module.__dict__.get(header["function"])
        if not callable(self.function):
            names = [n for n, v in module.__dict__.items() if isinstance(v, types.FunctionType)]
            return {"op": "nofunction", "names": names[:20]}, b""
        return {"op": "loaded", "walls": walls}, b""

    def call(self, header: dict, block: bytes) -> tuple[dict, bytes]:
        """Call the function on decoded inputs; send its value and the inputs if they changed."""
        inputs = wire.decode(header["inputs"], block)
        value = self.function(*inputs)
        encoder = wire.Encoder()
        try:
            reply = {"op": "returned", "value": encoder.encode(value)}
        except wire.WireError as error:
            return {"op": "unsendable", "message": str(error)}, b""
        after = wire.Encoder()
        try:
            tree = after.encode(inputs)
        except wire.WireError:
            return {**reply, "mutated": True}, bytes(encoder.block)
        if tree != header["inputs"] or bytes(after.block) != block:
            reply |= {"mutated": True, "changed": changed(header, block, inputs, encoder)}
        return reply, bytes(encoder.block)


def changed(header: dict, block: bytes, inputs: list, encoder: wire.Encoder) -> list:
    """[position, value now] of every input that is not as it came, as data."""
    found = []
    for i, (before, now) in enumerate(
        zip(wire.decode(header["inputs"], block), inputs, strict=False)
    ):
        one, two = wire.Encoder(), wire.Encoder()
        if (one.encode(before), one.block) != (two.encode(now), two.block):
            found.append([i, encoder.encode(now)])
    return found


def write_all(fd: int, data: bytes) -> None:
    """os.write until everything is out."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def run_answer(request_fd: int, result_fd: int) -> None:
    """Be an answer's process: fresh standard streams, then serve; never returns."""
    code = 1
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        if null > 2:
            os.close(null)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
        for fd, name in ((1, "stdout"), (2, "stderr")):
            raw = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
            stream = io.TextIOWrapper(raw, encoding="utf-8", errors="replace", line_buffering=True)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        if hasattr(faulthandler, "register"):  # where it hangs, for a run that is about to end
            faulthandler.register(signal.SIGUSR2, file=2, all_threads=False)
        Answer(io.BufferedReader(io.FileIO(request_fd)), result_fd).run()
        code = 0
    finally:
        os._exit(code)


def once(with_torch: bool) -> None:
    """A process for one answer: requests on stdin, results on stdout, prints on stderr."""
    request_fd, result_fd = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    if sys.platform == "win32":
        import msvcrt

        for fd in (request_fd, result_fd):
            msvcrt.setmode(fd, os.O_BINARY)
    warm_up(with_torch)
    run_answer(request_fd, result_fd)


def warm_up(with_torch: bool) -> None:
    """Import what answers import; no tensor is made, so that forking stays safe."""
    if with_torch:
        import torch

        torch.set_num_threads(1)
