"""Seccomp: refuse new processes, and calls that reach into others, while threads stay allowed.

A filter is a small program for the kernel's packet filter, run before every system call.
Source: https://www.kernel.org/doc/html/latest/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2
LOAD, JUMP_EQUAL, JUMP_ABOVE, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
ALLOW, REFUSE_EPERM, REFUSE_ENOSYS = 0x7FFF0000, 0x00050001, 0x00050000 | 38
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, THIRD_ARGUMENT = 0, 4, 16, 32
CLONE_THREAD = 0x00010000
X32_BIT = 0x40000000

# Per CPU: audit number, then system calls: refused, clone, clone3, prlimit64.
# Refused are fork, vfork, execve, execveat, ptrace, process_vm_readv, process_vm_writev,
# setrlimit, unshare, setns, bpf, io_uring_setup and pidfd_getfd, where the CPU has them.
CPUS = {
    "x86_64": (
        *(0xC000003E, (57, 58, 59, 322, 101, 310, 311, 160, 272, 308, 321, 425, 438)),
        *(56, 435, 302),
    ),
    "aarch64": (
        *(0xC00000B7, (221, 281, 117, 270, 271, 164, 97, 268, 280, 425, 438)),
        *(220, 435, 261),
    ),
}


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def program(machine: str) -> bytes:
    """The filter of one CPU as the kernel reads it."""
    audit, refused, clone, clone3, prlimit = CPUS[machine]
    steps = [
        instruction(LOAD, ARCHITECTURE),
        instruction(JUMP_EQUAL, audit, 1, 0),
        instruction(RETURN, REFUSE_EPERM),
        instruction(LOAD, NUMBER),
        instruction(JUMP_ABOVE, X32_BIT - 1, 0, 1),
        instruction(RETURN, REFUSE_EPERM),
    ]
    for number in refused:
        steps += [instruction(JUMP_EQUAL, number, 0, 1), instruction(RETURN, REFUSE_EPERM)]
    # glibc falls back from clone3 to clone, whose flags the filter can see
    steps += [instruction(JUMP_EQUAL, clone3, 0, 1), instruction(RETURN, REFUSE_ENOSYS)]
    steps += [
        instruction(JUMP_EQUAL, clone, 0, 4),
        instruction(LOAD, FIRST_ARGUMENT),
        instruction(JUMP_ANY_BIT, CLONE_THREAD, 1, 0),
        instruction(RETURN, REFUSE_EPERM),
        instruction(RETURN, ALLOW),
    ]
    # reading a limit stays allowed: the new limit's address is zero
    steps += [
        instruction(JUMP_EQUAL, prlimit, 0, 5),
        instruction(LOAD, THIRD_ARGUMENT),
        instruction(JUMP_EQUAL, 0, 0, 2),
        instruction(LOAD, THIRD_ARGUMENT + 4),
        instruction(JUMP_EQUAL, 0, 1, 0),
        instruction(RETURN, REFUSE_EPERM),
        instruction(RETURN, ALLOW),
    ]
    return b"".join(steps)


def restrict() -> bool:
    """Install the filter in this process for good; whether it is in force."""
    if sys.platform != "linux" or platform.machine() not in CPUS:
        return False
    code = program(platform.machine())
    filter_program = Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return libc.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(filter_program), 0, 0) == 0
