"""The warm process: imports torch once, then forks a fresh process for every judged answer.

It never runs a tensor operation or learner's code. As the subreaper of everything an answer
starts, it ends all of it, also what left the process group.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time

from . import worker

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
NATURAL_END_S = 1.0


def prctl(option: int, value: int) -> None:
    """One prctl call; where the system lacks it, nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def serve(socket_fd: int, with_torch: bool) -> None:
    """Answer `run` and `end` requests until the judge is gone."""
    channel = socket.socket(fileno=socket_fd)
    worker.warm_up(with_torch)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    send(channel, {"ready": True})
    pid = 0
    while True:
        data, fds, _, _ = socket.recv_fds(channel, 4096, 3)
        request = json.loads(data) if data else None
        if pid:
            status = end(pid, bool(request and request.get("expect_dead")))
            pid = 0
            if request and request["op"] == "end":
                send(channel, {"status": status})
        if request is None:
            os._exit(0)
        if request["op"] == "run":
            pid = start(channel, fds)
            send(channel, {"pid": pid})


def send(channel: socket.socket, message: dict) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


def start(channel: socket.socket, fds: list[int]) -> int:
    """Fork; the child becomes the answer's process on the three descriptors."""
    pid = os.fork()
    if pid:
        for fd in fds:
            os.close(fd)
        return pid
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        channel.close()
        request_fd, result_fd, output_fd = fds
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        os.close(output_fd)
        worker.run_answer(request_fd, result_fd)
    finally:
        os._exit(1)


def end(pid: int, expect_dead: bool) -> int:
    """Kill the answer and all its descendants; its wait status, natural if it ended by itself."""
    give_up = time.monotonic() + (NATURAL_END_S if expect_dead else 0)
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while os.waitid(os.P_PID, pid, flags) is None and time.monotonic() < give_up:
        time.sleep(0.002)
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    _, status = os.waitpid(pid, 0)
    reap_descendants()
    return status


def reap_descendants() -> None:
    """Kill what was handed to this process when its parents ended, until nothing is left."""
    while True:
        for child in children():
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.001)
        except ChildProcessError:
            return


def children() -> list[int]:
    """The processes whose parent is this one."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            if parent == os.getpid():
                found.append(int(entry))
    return found
