"""The judge attacked with its source in hand: no wrong answer is accepted, each is named plainly.

Unless a test says otherwise, the check of the source is off: what holds here are the processes,
the walls around them, and that the verdict is computed elsewhere.
"""

import os
import subprocess
import sys
import time

import pytest
from practice_bench import answer, make_problem, result_of, run, statuses

from kvpipe_practice import landlock
from kvpipe_practice.hosts import make_host
from kvpipe_practice.runner import resident_bytes

pytestmark = pytest.mark.timeout(60)
linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel walls are Linux's")
walled = pytest.mark.skipif(landlock.version() < 6, reason="needs Landlock 6 (Linux 6.12)")


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    return make_problem(tmp_path_factory.mktemp("problems"))


@pytest.fixture(scope="module")
def host():
    host = make_host(with_torch=True)
    yield host
    host.close()


@pytest.fixture
def attack(problem, host):
    """Judge an answer that misbehaves in the second case; the other cases must still pass."""

    def judge_it(body, at_import="", kind=None, others=("pass", "pass", "pass")):
        report = run(problem, host, answer(body, at_import))
        first, second, *rest = statuses(report)
        assert second == "fail", report
        assert (first, *rest) == others
        assert not report.accepted
        failure = result_of(report, "second").failure
        if kind is not None:
            assert failure.kind == kind, failure
        return failure

    return judge_it


def test_the_right_answer_is_accepted(problem, host):
    assert run(problem, host, answer("pass"), static=True).accepted


# --- ending, hanging, eating -------------------------------------------------------------------


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


def test_an_endless_loop_at_import_is_a_timeout(problem, host):
    report = run(problem, host, answer("pass", "while True: pass"))
    assert report.verdict == "timeout while your file was imported after 1 s"


def test_loops_in_every_case_end_the_run_soon(problem, host):
    started = time.monotonic()
    report = run(problem, host, "def soft_rows(x):\n    while True: pass\n")
    assert statuses(report) == ["fail", "fail", "fail", "skip"]
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


# --- processes and threads ---------------------------------------------------------------------


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


# --- pretending --------------------------------------------------------------------------------


def test_a_printed_verdict_is_only_output(attack):
    failure = attack(
        """
        print('{"op": "returned"}', 'accepted', 'ok', sep='\\n')
        return x
        """,
        kind="value",
    )
    assert failure


def test_an_object_that_claims_equality_is_refused(attack):
    attack(
        """
        class Yes:
            shape, dtype = x.shape, x.dtype
            def __eq__(self, other): return True
            def __getattr__(self, name): return lambda *a, **k: self
        return Yes()
        """,
        kind="type",
    )


def test_a_tensor_subclass_is_refused(attack):
    attack(
        """
        class Always(torch.Tensor):
            @classmethod
            def __torch_function__(cls, *a, **k): return True
        return torch.zeros(3, 4).as_subclass(Always)
        """,
        kind="type",
    )


def test_patched_comparisons_change_nothing(problem, host):
    patches = """
    import builtins, json, math, struct, numpy
    torch.allclose = torch.equal = torch.testing.assert_close = lambda *a, **k: True
    numpy.allclose = numpy.array_equal = lambda *a, **k: True
    torch.Tensor.__eq__ = lambda *a: True
    math.isfinite = lambda *a: True
    json.loads = lambda *a, **k: {"op": "returned"}
    builtins.all = builtins.any = builtins.isinstance = lambda *a: True
    """
    report = run(problem, host, answer("return x", patches))
    assert not report.accepted
    assert result_of(report, "second").status != "pass"


def test_patched_conversions_give_no_pass(problem, host):
    patches = """
    real = torch.Tensor.detach
    torch.Tensor.detach = lambda self: real(self) * 0 + 0.25
    torch.Tensor.numpy = lambda self: None
    """
    assert not run(problem, host, answer("return x", patches)).accepted


def test_an_int_that_lies_is_refused(attack):
    attack("class Any(int):\n    __eq__ = lambda *a: True\nreturn Any(3)", kind="type")


def test_values_that_cannot_be_sent_are_named(attack):
    attack("loop = []; loop.append(loop); return loop", kind="type")
    attack("return torch.zeros(3, 4).to_sparse()", kind="type")
    attack("return (x for _ in range(3))", kind="type")
    attack("return torch.zeros(1).expand(2**27)", kind="type")


def test_wrong_forms_of_a_value_have_their_own_names(attack):
    attack("return None", kind="missing_return")
    attack("return honest(x)[0]", kind="shape")
    attack("return honest(x).double()", kind="dtype")
    attack("return honest(x) * float('nan')", kind="nan")
    attack("return honest(x).tolist()", kind="type")
    attack("y = honest(x); x.add_(1); return y", kind="mutated")


FORGED_FRAME = """
import json, struct
header = json.dumps({"op": "returned", "value": ["none"], "token": "0" * 16}).encode()
frame = struct.pack("<4sIQ", b"KVP1", len(header), 0) + header
"""


@pytest.mark.parametrize(
    "frame",
    (
        "frame = b'accepted'",
        FORGED_FRAME,
        "import struct; frame = struct.pack('<4sIQ', b'KVP1', 2**31, 2**62)",
        "import struct; frame = struct.pack('<4sIQ', b'KVP1', 8, 0) + b'[[[[[[[['",
    ),
)
def test_writing_to_the_result_channel_is_noticed(attack, frame):
    body = """
import os
for fd in range(3, 64):
    try: os.write(fd, frame)
    except OSError: pass
return x
"""
    attack(frame + body, kind="malformed")


def test_a_flood_of_replies_does_not_fill_the_judge(problem, host):
    """Each is well formed and large; the judge stops at the first it did not ask for."""
    body = """
    import os, struct
    header = b'{"op": "returned", "token": "?"}'
    block = bytes(2**25)
    frame = struct.pack("<4sIQ", b"KVP1", len(header), len(block)) + header + block
    while True:
        for fd in range(3, 8):
            try: os.write(fd, frame)
            except OSError: pass
    """
    before = resident_bytes(os.getpid())
    report = run(problem, host, answer(body))
    assert result_of(report, "second").failure.kind == "malformed"
    assert resident_bytes(os.getpid()) - before < 2**28


def test_a_forged_reply_with_the_right_token_is_still_only_a_value(attack):
    """With the caller's frame in hand: the token and the channel, but no expected value."""
    attack(
        """
        import json, os, struct, sys
        call = sys._getframe(1)
        run = call.f_back
        header = {"op": "returned", "token": run.f_locals["header"]["token"], "notes": {},
                  "value": ["list", [["float", "0x1p0"]]]}
        text = json.dumps(header).encode()
        frame = struct.pack("<4sIQ", b"KVP1", len(text), 0) + text
        os.write(call.f_locals["self"].result_fd, frame)
        while True: pass
        """,
        kind="type",
        others=("pass", "fail", "pass"),  # the loop that follows is the next case's timeout
    )


def test_a_thread_of_an_earlier_case_gains_nothing(problem, host):
    """It may fill later replies with rubbish, but a right value it does not have."""
    body = """
    import os, threading
    def write():
        while True:
            for fd in range(3, 16):
                try: os.write(fd, b'KVP1' + bytes(12))
                except OSError: pass
    threading.Thread(target=write, daemon=True).start()
    return x
    """
    assert not run(problem, host, answer(body)).accepted


def test_remembered_outputs_fail_in_the_random_case(problem, host):
    cases = problem.cases(seed=1)
    table = {tuple(c.inputs["x"].shape): c.expected.tolist() for c in cases}
    source = f"import torch\nTABLE = {table}\ndef soft_rows(x):\n"
    source += "    return torch.tensor(TABLE[tuple(x.shape)])\n"
    report = run(problem, host, source, seed=2)
    assert statuses(report) == ["pass", "pass", "pass", "fail"]
    failure = result_of(report, "random").failure
    assert failure.kind == "value"
    assert not any("expected" in line for line in failure.lines)


# --- looking up the answer ---------------------------------------------------------------------

READS = (
    "open({path!r}).read()",
    "import os; os.read(os.open({path!r}, os.O_RDONLY), 10)",
    "import pathlib; pathlib.Path({path!r}).read_text()",
    "import io; io.FileIO({path!r}).read()",
    "import os; os.chdir({folder!r}); open('solution.py').read()",
    "import os; os.symlink({path!r}, 'link'); open('link').read()",
    "import os; os.link({path!r}, 'copy'); open('copy').read()",
    "import shutil; shutil.copy({path!r}, 'copy')",
    "import runpy; runpy.run_path({path!r})",
    "import sys; sys.path.insert(0, {folder!r}); import solution",
    "import linecache; assert linecache.getlines({path!r}), 'nothing'",
)


@pytest.mark.parametrize("read", READS)
def test_the_reference_cannot_be_read(attack, problem, read):
    path = str(problem.folder / "solution.py")
    failure = attack(read.format(path=path, folder=str(problem.folder)))
    assert failure.kind in ("forbidden", "exception"), failure


@walled
def test_the_reference_cannot_be_read_past_the_hook(attack, problem):
    path = str(problem.folder / "solution.py").encode()
    body = f"""
    import ctypes
    assert ctypes.pythonapi.open({path!r}, 0) == -1
    raise ValueError('closed')
    """
    assert "closed" in attack(body, kind="exception").message


@pytest.mark.parametrize(
    "path",
    ("practice/problems/rms-norm/solution.py", "practice/kvpipe_practice/compare.py",
     "code/kvpipe/transformer.py", ".git/HEAD", "code/pyproject.toml"),
)  # fmt: skip
def test_the_repository_is_out_of_reach(attack, path):
    root = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
    if not os.path.isfile(os.path.join(root, path)):
        pytest.skip(f"{path} is not here")
    attack(f"open({os.path.join(root, path)!r}).read()", kind="forbidden")


@pytest.mark.parametrize("module", ("kvpipe", "kvpipe_practice.problems", "transformers"))
def test_modules_with_answers_cannot_be_imported(attack, module):
    attack(f"import {module}", kind="forbidden")
    attack(f"import importlib; importlib.import_module({module!r})", kind="forbidden")


def test_files_outside_the_working_folder_cannot_be_written(attack, problem, tmp_path):
    before = (problem.folder / "cases.py").read_bytes()
    target = str(problem.folder / "cases.py")
    for body in (
        f"open({target!r}, 'w').write('def cases(seed): return []')",
        f"import os; os.remove({target!r})",
        f"open('own', 'w').close()\nimport os; os.rename('own', {target!r})",
        f"open({str(tmp_path / 'note')!r}, 'w').write('remember me')",
    ):
        attack(body, kind="forbidden")
    assert (problem.folder / "cases.py").read_bytes() == before
    assert not (tmp_path / "note").exists()


def test_the_working_folder_may_be_written_and_is_new_each_time(problem, host):
    body = """
    import os
    assert os.listdir('.') == [], os.listdir('.')
    open('note', 'w').write('x')
    """
    for _ in range(2):
        assert run(problem, host, answer(body)).accepted


@walled
def test_the_memory_of_the_parent_is_closed(attack):
    body = "import os; open(f'/proc/{os.getppid()}/mem', 'rb').read(1)"
    assert "PermissionError" in attack(body, kind="exception").message


def test_the_network_is_closed(attack):
    attack(
        "import socket; socket.create_connection(('127.0.0.1', 9), timeout=0.2)", kind="forbidden"
    )


def test_secrets_are_not_inherited(problem, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    host = make_host(with_torch=True)
    try:
        body = "import os; assert 'hunter2' not in str(dict(os.environ)), 'leaked'"
        assert run(problem, host, answer(body)).accepted
    finally:
        host.close()


def test_nothing_is_left_from_an_earlier_run(problem, host):
    poison = """
    import sys, math
    torch.exp = lambda x: x * 0
    torch.Tensor.sum = lambda *a, **k: 1
    sys.modules['kept'] = math
    torch.set_default_dtype(torch.float64)
    """
    assert not run(problem, host, answer("pass", poison)).accepted
    clean = "import sys; assert 'kept' not in sys.modules"
    assert run(problem, host, answer(clean)).accepted


def test_the_expected_value_is_nowhere_in_the_process(problem, host):
    """Not in any frame, and not in what the frames hold."""
    body = """
    import sys
    wanted = honest(x).numpy().tobytes()
    frame, seen, pending = sys._getframe(1), set(), []
    while frame:
        pending += [*frame.f_locals.values(), *frame.f_globals.values()]
        frame = frame.f_back
    while pending and len(seen) < 100000:
        thing = pending.pop()
        if id(thing) in seen: continue
        seen.add(id(thing))
        if isinstance(thing, (bytes, bytearray)): assert wanted not in thing, 'found'
        if isinstance(thing, torch.Tensor) and thing.shape == x.shape and thing is not x:
            assert not torch.allclose(thing, honest(x)), 'found'
        if isinstance(thing, dict): pending += thing.values()
        elif isinstance(thing, (list, tuple, set)): pending += thing
        elif hasattr(thing, '__dict__') and type(thing).__module__.startswith('kvpipe'):
            pending += vars(thing).values()
    """
    report = run(problem, host, answer(body))
    assert report.accepted, report


def test_every_run_draws_another_seed(problem, host):
    assert run(problem, host, answer("pass")).seed != run(problem, host, answer("pass")).seed


# --- forbidden calls ---------------------------------------------------------------------------

ROUTES = (
    "torch.softmax(x, -1)",
    "x.softmax(-1)",
    "torch.nn.functional.softmax(x, -1)",
    "torch.nn.Softmax(-1)(x)",
    "torch.special.softmax(x, -1)",
    "torch.ops.aten.softmax.int(x, -1)",
    "torch.ops.aten._softmax(x, -1, False)",
    "torch._C._VariableFunctions.softmax(x, -1)",
    "torch._C.TensorBase.softmax(x, -1)",
    "getattr(torch, 'soft' + 'max')(x, -1)",
    "eval('torch.soft' + 'max(x, -1)')",
    "torch.jit.trace(lambda y: torch.special.softmax(y, -1), x)(x)",
    "torch.masked.softmax(x, -1)",
    "torch.vmap(lambda row: torch.special.softmax(row, -1))(x)",
    "torch.special.softmax(x.clone().requires_grad_(), -1).detach()",
)


@pytest.mark.parametrize("route", ROUTES)
def test_a_forbidden_call_is_stopped_by_every_route(attack, route):
    failure = attack(f"return {route}", kind="forbidden")
    assert "softmax" in failure.message.lower()


def test_a_swallowed_refusal_still_counts(attack):
    attack("try: torch.softmax(x, -1)\nexcept Exception: pass", kind="forbidden")


@pytest.mark.parametrize(
    "undo",
    (
        "import weakref\nfor f in list(weakref.finalize._registry): f()",
        "import importlib; importlib.reload(torch.nn.functional)",
        "from torch.utils._python_dispatch import _disable_current_modes\n"
        "_disable_current_modes().__enter__()",
        "torch._C._DisableTorchDispatch()",
        "import gc\nfor o in gc.get_objects():\n"
        "    if type(o).__name__ == '_DispatchModule': o.reset()",
    ),
)
def test_the_guard_cannot_be_taken_off(problem, host, undo):
    body = f"{undo}\nreturn torch.ops.aten._softmax(x, -1, False)"
    report = run(problem, host, answer(body))
    assert result_of(report, "second").status == "fail"


@pytest.mark.parametrize(
    ("source", "said"),
    (
        ("import torch\ndef soft_rows(x): return torch.softmax(x, -1)", "torch.softmax (line 2)"),
        ("import torch as t\ndef soft_rows(x): return t.softmax(x, -1)", "torch.softmax (line 2)"),
        ("from torch import softmax as s\ndef soft_rows(x): return s(x, -1)", "torch.softmax"),
        ("import torch.nn.functional as F\ndef soft_rows(x): return F.softmax(x, -1)", "softmax"),
        ("def soft_rows(x): return x.softmax(-1)", "torch.Tensor.softmax (line 1)"),
        ("def soft_rows(x): return getattr(x, 'softmax')(-1)", "torch.Tensor.softmax"),
        ("import torch\ns = torch.softmax\ndef soft_rows(x): return s(x, -1)", "torch.softmax"),
        ("def soft_rows(x): return eval('x')", "call: eval"),
        ("def soft_rows(x):\n import kvpipe\n return x", "import: kvpipe (line 2)"),
        ("import ctypes\ndef soft_rows(x): return x", "import: ctypes (line 1)"),
        ("import sys\ndef soft_rows(x): return sys._getframe(1)", "name: sys._getframe"),
    ),
)
def test_the_source_is_read_before_it_runs(problem, host, source, said):
    report = run(problem, host, source, static=True)
    assert report.failure.kind == "forbidden"
    assert said in report.failure.message
    assert report.results == ()


def test_a_function_of_ones_own_may_have_the_name(problem, host):
    source = "import torch\ndef softmax(x):\n    e = torch.exp(x - x.amax(-1, keepdim=True))\n"
    source += "    return e / e.sum(-1, keepdim=True)\ndef soft_rows(x):\n    return softmax(x)\n"
    assert run(problem, host, source, static=True).accepted


# --- required calls ----------------------------------------------------------------------------


def variant(folder, rules):
    """The same problem with other rules at the end of its cases.py."""
    problem = make_problem(folder)
    path = problem.folder / "cases.py"
    path.write_text(f"{path.read_text(encoding='utf-8')}\n{rules}\n", encoding="utf-8")
    return problem


@pytest.mark.parametrize(
    "call",
    ("getattr(math, 'fs' + 'um')([1.0])", "getattr(numpy, 'ex' + 'p')(1.0)",
     "getattr(torch.nn, 'RMS' + 'Norm')(4)"),
)  # fmt: skip
def test_forbidden_functions_outside_torchs_kernels_are_stopped(tmp_path, host, call):
    problem = variant(tmp_path, 'FORBIDDEN = ("math.fsum", "numpy.exp", "torch.nn.RMSNorm")')
    report = run(problem, host, answer(f"import math, numpy\n{call}"))
    assert result_of(report, "second").failure.kind == "forbidden"
    assert run(problem, host, answer("import math; math.sqrt(2)"), static=True).accepted


def test_a_forbidden_function_in_a_module_nobody_imported_is_stopped(tmp_path, host):
    problem = variant(tmp_path, 'FORBIDDEN = ("json.tool.main",)')
    report = run(problem, host, answer("from json.tool import main"))
    assert result_of(report, "second").failure.kind == "forbidden"


@pytest.fixture(scope="module")
def demanding(tmp_path_factory):
    """The same problem, but it is about torch.logsumexp."""
    return variant(tmp_path_factory.mktemp("demanding"), 'REQUIRED = ("torch.logsumexp",)')


WITH_LSE = "import torch\ndef soft_rows(x):\n    return torch.exp(x - {lse})\n"


def test_a_required_call_that_is_made_is_accepted(demanding, host):
    source = WITH_LSE.format(lse="torch.logsumexp(x, -1, keepdim=True)")
    assert run(demanding, host, source, static=True).accepted


def test_a_required_call_that_is_not_written_is_missing(demanding, host):
    report = run(demanding, host, answer("pass"), static=True)
    assert report.verdict == "missing call: torch.logsumexp is not used in your file"


def test_a_required_call_that_is_never_reached_is_missing(demanding, host):
    source = answer("pass") + "\ndef unused(x):\n    return torch.logsumexp(x, -1)\n"
    report = run(demanding, host, source, static=True)
    assert not report.accepted and report.n_passed == 4
    assert report.verdict == "missing call: torch.logsumexp was never made"
