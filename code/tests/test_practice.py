"""The judge at work: reports, processes, speed, watch mode."""
# ruff: noqa: F401, F811  (pytest finds the imported fixtures by their names)

import io
import os
import re
import select
import statistics
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from practice_bench import (
    REPOSITORY,
    SOLUTION,
    answer,
    host,
    judge,
    problem,
    result_of,
    run,
    statuses,
)

from kvpipe_practice import problems, results, terminal
from kvpipe_practice.hosts import make_host
from kvpipe_practice.progress import Progress
from kvpipe_practice.report import case_failure, print_report
from kvpipe_practice.runner import Process

pytestmark = pytest.mark.timeout(60)


def shown(report, columns=100):
    out = io.StringIO()
    print_report(terminal.make_console(out, width=columns), report, False, "judge.py")
    return out.getvalue()


def test_a_traceback_starts_in_the_learners_file_and_folds_the_rest(problem, host):
    source = """
    import torch
    def helper(x):
        return torch.nn.functional.embedding(x, x)
    def soft_rows(x):
        return helper(x)
    """
    report = run(problem, host, textwrap.dedent(source))
    text = shown(report)
    message = text.index("RuntimeError: Expected tensor")
    assert message < text.index("my/soft_rows.py, line 6, in soft_rows")
    assert "return torch.nn.functional.embedding(x, x)" in text
    assert "... 1 frame in torch/nn/functional.py" in text
    assert "kvpipe_practice" not in text.partition("stuck?")[0]


def test_what_was_printed_is_shown_and_cut(problem, host):
    report = run(problem, host, answer("print('y' * 700)\nreturn x"))
    text = shown(report)
    assert "y" * 90 in text and "500 of 700 characters shown" in text
    assert results.cut("z" * 500) == "z" * 500


def test_output_belongs_to_its_case(problem, host):
    report = run(problem, host, "def soft_rows(x):\n    print(tuple(x.shape), flush=False)\n")
    printed = [result.printed.strip() for result in report.results]
    assert printed == ["(2, 3)", "(3, 4)", "(4, 5)", "(5, 6)"]


def test_a_syntax_error_shows_line_and_caret(problem, host):
    report = run(problem, host, "import torch\ndef soft_rows(x):\n    retrun x\n", static=True)
    assert report.verdict == "syntax error"
    assert report.failure.message.startswith("syntax error in line 3")
    assert "retrun x" in report.failure.lines[0] and "^" in report.failure.lines[1]


def test_a_missing_function_is_named_with_what_is_there(problem, host):
    report = run(problem, host, "def softrows(x):\n    return x\n")
    assert "has no function soft_rows; it defines softrows" in report.failure.message


def test_large_inputs_come_with_a_way_to_have_them(host):
    from kvpipe_practice import case_inputs

    problem = problems.find("rms-norm")
    source = problem.stub.replace('raise NotImplementedError("write rms_norm here")', "return x")
    report = run(problem, host, source, seed=11)
    lines = shown_case(report, "random-hidden").splitlines()
    line = lines[
        lines.index("  to have these inputs, in a Python shell and not in your answer:") + 1
    ]
    names = {}
    exec(line, names)  # as it is copied: one line that starts at the margin
    inputs = case_inputs("rms-norm", "random-hidden", seed=11)
    torch.testing.assert_close(names["inputs"]["x"], inputs["x"])
    torch.testing.assert_close(inputs["x"], result_of(report, "random-hidden").case.inputs["x"])


def shown_case(report, name):
    out = io.StringIO()
    console = terminal.make_console(out, width=100)
    result = result_of(report, name)
    for part in case_failure(report, result, terminal.UNICODE_MARKS):
        terminal.put(console, part)
    assert "expected" not in out.getvalue()
    return out.getvalue()


def test_answers_in_fresh_interpreters_are_judged_alike(problem):
    """The way of macOS and Windows, on this machine: no fork."""
    host = make_host(with_torch=True, method="spawn")
    try:
        assert run(problem, host, SOLUTION).accepted
        report = run(problem, host, answer("import os; os._exit(0)"))
        assert statuses(report) == ["pass", "fail", "pass", "pass"]
        assert result_of(report, "second").failure.kind == "crash"
        report = run(problem, host, answer("print('late'); while True: pass".replace("; ", "\n")))
        assert result_of(report, "second").failure.kind == "timeout"
        assert result_of(report, "second").printed == "late\n"
        report = run(problem, host, answer("torch.softmax(x, -1)"))
        assert result_of(report, "second").failure.kind == "forbidden"
    finally:
        host.close()


def test_a_host_that_cannot_start_says_why(monkeypatch, problem, tmp_path):
    from kvpipe_practice import hosts

    monkeypatch.setattr(hosts, "command", lambda body: [sys.executable, "-c", "import nowhere"])
    host = make_host(with_torch=False, method="fork")
    with pytest.raises(hosts.HostError, match="No module named 'nowhere'"):
        run(problem, host, SOLUTION)


@pytest.mark.skipif(sys.platform == "win32", reason="needs ps")
def test_memory_is_watched_where_the_system_sets_no_limit(host):
    process = Process(host, polled=1)
    load = {
        "op": "load", "source": "import time; time.sleep(20)", "filename": "a.py",
        "function": "f", "forbidden": [], "required": [],
        "limits": {"folder": process.folder, "memory_bytes": 2**30, "cpu_s": 60,
                   "protected": [], "unimportable": []},
    }  # fmt: skip
    assert process.exchange(load, b"", 20).kind == "memory"
    assert not process.alive and not os.path.exists(process.folder)


def test_a_warm_judgement_takes_less_than_half_a_second(problem, host):
    run(problem, host, SOLUTION)
    seconds = [run(problem, host, SOLUTION, static=True).seconds for _ in range(7)]
    assert statistics.median(seconds) < 0.5, seconds


def test_nothing_is_left_behind(problem, tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    host = make_host(with_torch=True)
    pid = host.process.pid
    run(problem, host, answer("while True: pass"))
    host.close()
    assert list(tmp_path.iterdir()) == []
    if sys.platform == "linux":
        assert not os.path.exists(f"/proc/{pid}")


def watched(problem, tmp_path):
    """`judge.py watch` on a pseudo-terminal: process, our end, a wait for what it prints."""
    import pty

    main, other = pty.openpty()
    command = [sys.executable, str(REPOSITORY / "practice" / "judge.py"), "--my", str(tmp_path)]
    command += ["--problems", str(problem.folder.parent), "watch", "soft-rows"]
    variables = {**os.environ, "COLUMNS": "100"}
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=variables)
    os.close(other)

    def wait_for(*parts, limit_s=30):
        text, deadline = "", time.monotonic() + limit_s
        while not all(part in text for part in parts):
            ready, _, _ = select.select([main], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no {parts} in {text!r}"
            text += os.read(main, 65536).decode(errors="replace")

    return process, main, wait_for


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_watch_judges_every_save_and_obeys_keys(problem, tmp_path):
    process, main, wait_for = watched(problem, tmp_path)
    try:
        wait_for("as it should be", "q quit")
        assert not select.select([main], [], [], 0.8)[0], (
            "the judge's own write of the stub is no save"
        )
        (tmp_path / "soft_rows.py").write_text("def soft_rows(x):\n    return x\n")
        wait_for("wrong answer", "press h", "q quit")
        (tmp_path / "soft_rows.py").write_text(SOLUTION)
        wait_for("accepted", "goes on to the next problem", "q quit")
        os.write(main, b"h")
        wait_for("Hint 1 of 3")
        os.write(main, b"l")
        wait_for("1 of 1 solved")
        os.write(main, b"n")
        wait_for("No other problem is unsolved")
        os.write(main, b"r")
        wait_for("y/n")
        os.write(main, b"n")
        wait_for("q quit")
        (tmp_path / "soft_rows.py").write_text("import time\ntime.sleep(0.9)\n" + SOLUTION)
        wait_for("your file is loading")
        (tmp_path / "soft_rows.py").write_text(SOLUTION)
        wait_for("stopped", "accepted", "q quit")
        os.write(main, b"r")
        wait_for("y/n")
        os.write(main, b"y")
        wait_for("fresh stub", "undo: ")
        wait_for("as it should be")
        os.write(main, b"q")
        assert process.wait(timeout=10) == 0
    finally:
        process.kill()
        process.wait()
        os.close(main)
    assert Progress.load(tmp_path).get("soft-rows").state == "solved"
