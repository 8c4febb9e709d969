"""The judge attacked with its source in hand: endings, endless things, processes, threads.

Unless a test says otherwise, the check of the source is off: what holds here are the processes,
the walls around them, and that the verdict is computed elsewhere.
"""
# ruff: noqa: F401, F811  (pytest finds the imported fixtures by their names)

import subprocess
import sys
import time

import pytest
from practice_bench import answer, attack, host, linux, problem, result_of, run, statuses, walled

from kvpipe_practice.hosts import make_host

pytestmark = pytest.mark.timeout(60)


def test_os_exit_zero_is_a_crash(attack):
    failure = attack("import os; os._exit(0)", kind="crash")
    assert "exit code 0 in case second" in failure.message


def test_sys_exit_in_the_function_is_named(attack):
    assert "sys.exit" in attack("import sys; sys.exit(0)", kind="exit").message


def test_sys_exit_at_import_is_named(problem, host):
    report = run(problem, host, answer("pass", "import sys; sys.exit(0)"))
    assert report.failure.kind == "exit"
    assert set(statuses(report)) == {"skip"}


def test_os_exit_at_import_is_a_crash(problem, host):
    report = run(problem, host, answer("pass", "import os; os._exit(0)"))
    assert report.failure.kind == "crash"
    assert report.n_passed == 0


def test_an_endless_loop_is_a_timeout_in_its_case(attack):
    failure = attack("while True: pass", kind="timeout")
    assert failure.message == "timeout in case second after 1 s"
    assert failure.lines[0].startswith("stopped in my/soft_rows.py, line ")
    assert failure.lines[0].endswith(": while True: pass")


def test_a_made_up_stack_changes_no_verdict(attack):
    forged = 'Stack (most recent call first):\n  File "my/soft_rows.py", line 1 in x'
    failure = attack(f"print({forged!r}, flush=True)\nwhile True: pass", kind="timeout")
    assert failure.lines[0].endswith("while True: pass")
    attack(
        f"import os, signal; print({forged!r}, flush=True); os.kill(os.getpid(), signal.SIGUSR2)\n"
        "return x",
        kind="value",
    )


def test_an_endless_loop_at_import_is_a_timeout(problem, host):
    report = run(problem, host, answer("pass", "while True: pass"))
    assert report.verdict == "timeout while your file was imported after 1 s"


def test_loops_in_every_case_end_the_run_soon(problem, host):
    started = time.monotonic()
    report = run(problem, host, "def soft_rows(x):\n    while True: pass\n")
    assert statuses(report) == ["fail", "fail", "skip", "skip"]
    assert result_of(report, "third").failure.message == "not run: two cases timed out already"
    assert time.monotonic() - started < 10


def test_catching_everything_and_looping_is_a_timeout(attack):
    attack(
        """
        while True:
            try:
                while True: pass
            except BaseException:
                continue
        """,
        kind="timeout",
    )


def test_ignoring_signals_is_a_timeout(attack):
    attack(
        """
        import signal
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGHUP):
            signal.signal(number, lambda *rest: None)
        while True: pass
        """,
        kind="timeout",
    )


def test_stopping_oneself_is_a_timeout(attack):
    attack("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", kind="timeout")


def test_a_memory_bomb_is_out_of_memory(attack):
    attack("x = bytearray(8 * 2**30)", kind="memory")
    attack("hoard = [bytes(2**20) for _ in range(2**14)]", kind="memory")
    assert "out of memory in case second" in attack("torch.ones(2**31)", kind="memory").message


@linux
def test_the_memory_limit_cannot_be_lifted(attack):
    failure = attack(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))
        hoard = bytearray(4 * 2**30)
        """
    )
    assert failure.kind in ("forbidden", "memory")


def test_gigabytes_of_output_are_cut_off(attack):
    attack("while True: print('accepted ' * 10000)", kind="output")
    attack("import os\nwhile True: os.write(2, b'x' * 65536)", kind="output")


def test_deep_recursion_is_an_error_or_a_crash(attack):
    deep = "def deep(n): return deep(n + 1)\ndeep(0)"
    assert "RecursionError" in attack(deep, kind="exception").message
    endless = "import sys; sys.setrecursionlimit(10**9)\n" + deep
    assert attack(endless).kind in ("memory", "crash", "timeout")


def test_a_segmentation_fault_is_named_by_its_signal(attack):
    failure = attack("import os; os.kill(os.getpid(), 11)", kind="crash")
    assert "crashed (signal 11) in case second" in failure.message


def test_a_bad_pointer_is_a_crash(attack):
    attack("import ctypes; ctypes.string_at(1)", kind="crash")


def test_closing_every_descriptor_is_a_crash(attack):
    attack("import os; os.closerange(0, 256)", kind="crash")


def test_closing_standard_output_changes_nothing(problem, host):
    for body in ("import sys; sys.stdout.close()", "import os; os.close(1); os.close(2)"):
        assert run(problem, host, answer(body)).accepted
        wrong = answer(f"{body}\nreturn x")
        assert result_of(run(problem, host, wrong), "second").failure.kind == "value"


def processes_of_this_test(host) -> int:
    """Processes below the warm one."""
    listed = subprocess.run(
        ["ps", "--ppid", str(host.process.pid), "-o", "pid="], capture_output=True, text=True
    )
    return len(listed.stdout.split())


def test_threads_left_running_do_not_disturb_later_cases(problem, host):
    body = """
    import threading, time
    def spin():
        while True: time.sleep(0.001)
    for _ in range(4): threading.Thread(target=spin, daemon=False).start()
    """
    assert run(problem, host, answer(body)).accepted


@linux
def test_no_process_can_be_started(attack, host):
    for body in (
        "import os; os.fork()",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1)'])",
        "import os; os.system('true')",
        "import multiprocessing; multiprocessing.Process(target=print).start()",
    ):
        attack(body, kind="forbidden")
    assert processes_of_this_test(host) == 0


@linux
def test_a_fork_bomb_by_system_call_starts_nothing(attack, host):
    body = """
    import ctypes
    libc = ctypes.CDLL.__new__(ctypes.CDLL)
    fork = ctypes.pythonapi.fork
    made = [fork() for _ in range(20)]
    assert 0 not in made and all(pid == -1 for pid in made), made
    raise ValueError('no process was made')
    """
    failure = attack(body, kind="exception")
    assert "no process was made" in failure.message
    assert processes_of_this_test(host) == 0


@linux
def test_descendants_that_left_the_group_are_ended():
    """Without the walls: a daemon of a daemon, in a session of its own, ends with the run."""
    code = """
import os, sys, time
from kvpipe_practice import forkhost
forkhost.prctl(forkhost.PR_SET_CHILD_SUBREAPER, 1)
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
            time.sleep(60)
        os._exit(0)
    time.sleep(60)
grandchild = int(os.read(read, 20))
forkhost.end(pid, False)
try:
    os.kill(grandchild, 0)
except ProcessLookupError:
    print("ended")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "ended", done.stderr


@walled
def test_the_warm_process_and_the_judge_cannot_be_killed(attack):
    """By way of the C library, past the audit hook."""
    body = """
    import ctypes, os
    assert ctypes.pythonapi.kill(os.getppid(), 9) == -1
    raise ValueError('the parent lives')
    """
    assert "the parent lives" in attack(body, kind="exception").message


@linux
def test_killing_its_own_group_ends_only_the_answer(attack, host):
    before = host.process.pid
    failure = attack("import os; os.kill(0, 9)", kind="crash")
    assert "crashed (signal 9)" in failure.message
    assert host.process.pid == before and host.process.poll() is None


def test_killing_the_parent_is_refused(attack):
    attack("import os; os.kill(os.getppid(), 9)", kind="forbidden")


@linux
def test_a_killed_warm_process_is_replaced(problem):
    host = make_host(with_torch=True)
    try:
        assert run(problem, host, answer("pass")).accepted
        host.process.kill()
        host.process.wait()
        assert run(problem, host, answer("pass")).accepted
    finally:
        host.close()
