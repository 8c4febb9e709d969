"""The judge at the prompt: records, files, every command, and what programs read."""
# ruff: noqa: F401, F811  (pytest finds the imported fixtures by their names)

import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from practice_bench import REPOSITORY, SOLUTION, Borrowed, host, judge, problem, run

from kvpipe_practice import cli, hosts, problems, terminal
from kvpipe_practice.progress import Progress, ProgressError, Record
from kvpipe_practice.report import print_report

pytestmark = pytest.mark.timeout(60)


def test_a_slug_is_found_in_every_spelling_and_guessed(problem):
    root = problem.folder.parent
    for name in ("soft-rows", "soft_rows", "my/soft_rows.py", "Soft-Rows"):
        assert problems.find(name, root).slug == "soft-rows"
    with pytest.raises(problems.ProblemError, match="did you mean soft-rows"):
        problems.find("soft-row", root)
    with pytest.raises(problems.ProblemError, match="there is no problem"):
        problems.find("../../etc", root)


def test_records_survive_and_never_lose_a_solution(tmp_path):
    progress = Progress.load(tmp_path)
    progress.put("a", progress.get("a").judged(True, 100.0))
    progress.put("a", progress.get("a").judged(False, 200.0))
    again = Progress.load(tmp_path)
    assert again.current == "a"
    assert again.get("a") == Record(started=100, solved=100, attempts=2, failed=1)
    assert again.get("a").state == "solved"
    other = Progress.load(tmp_path)
    other.put("b", Record(attempts=1))
    again.put("c", Record(attempts=1))
    assert set(Progress.load(tmp_path).records) == {"a", "b", "c"}
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]
    if os.name == "posix":
        assert (tmp_path / "progress.json").stat().st_mode & 0o777 == 0o644


def test_a_broken_record_is_kept_aside_and_a_newer_one_refused(tmp_path):
    path = tmp_path / "progress.json"
    path.write_text("{broken")
    progress = Progress.load(tmp_path)
    assert progress.records == {} and "kept as" in progress.notice
    assert len(list(tmp_path.glob("progress-unreadable-*.json"))) == 1
    path.write_text('{"version": 99, "problems": {}}')
    with pytest.raises(ProgressError, match="version 99"):
        Progress.load(tmp_path)


def test_hints_open_by_attempts_and_by_minutes():
    assert Record().unlocked_hints(now=1e9) == 0
    assert Record(started=1000, failed=1).unlocked_hints(now=1030) == 1
    assert Record(started=1000, failed=1).unlocked_hints(now=1061) == 2
    assert Record(started=1000).unlocked_hints(now=1e9) == 3


def test_the_way_of_a_learner(judge):
    code, text = judge()
    assert code == 0 and "0 of 1 solved" in text and "start soft-rows" in text
    code, text = judge("test", "soft-rows")
    assert code == 2 and "start soft-rows" in text
    code, text = judge("start", "soft-rows")
    assert code == 0 and "Each row becomes positive" in text and str(judge.file.name) in text
    code, text = judge("test", "soft-rows")
    assert code == 1 and "this failure is as it should be" in text and "open " in text
    assert "not started" in text
    assert judge("hint", "soft-rows")[0] == 1

    judge.file.write_text("import torch\ndef soft_rows(x):\n    return torch.log_softmax(x, -1)\n")
    code, text = judge("test", "soft-rows")
    assert code == 1
    assert "wrong answer in first: 6 of 6 elements of your result are wrong" in text
    assert "0 of 4 cases passed" in text
    assert "your result equals the logarithm of the right one" in text
    assert "3 more failed; --all-failures shows them" in text
    assert judge("test", "soft-rows", "--all-failures")[1].count("elements of your result") == 5

    code, text = judge("hint", "soft-rows")
    assert code == 0 and "Hint 1 of 3: A question" in text and "Hint 2" not in text
    assert judge("solution", "soft-rows")[0] == 1
    assert judge("hint", "soft-rows", "--now")[0] == judge("hint", "soft-rows", "--now")[0] == 0
    code, text = judge("solution", "soft-rows")
    assert code == 1 and "--yes" in text
    code, text = judge("solution", "soft-rows", "--yes")
    assert code == 0 and "Usual wrong answers" in text and "normalised over columns" in text

    judge.file.write_text(SOLUTION)
    code, text = judge("test", "soft-rows", "--case", "first")
    assert code == 1 and "first passed; to be accepted all cases must run" in text
    assert "stuck?" not in text
    assert "solved" not in judge()[1].split("1 solved")[0].partition("soft-rows")[2][:40]
    code, text = judge("test", "soft-rows")
    assert code == 0 and "accepted  4 of 4 cases passed" in text
    assert "Everything is solved" in text
    assert "Everything is solved" in judge()[1]


def test_reset_asks_at_a_terminal_and_what_was_solved_stays_solved(judge, monkeypatch):
    judge("start", "soft-rows")
    judge.file.write_text(SOLUTION)
    assert judge("test", "soft-rows")[0] == 0
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert judge("reset", "soft-rows")[0] == 1 and judge("reset", "--all")[0] == 1
    assert judge.file.read_text() == SOLUTION
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert judge("reset", "soft-rows")[0] == 0
    assert judge.file.read_text() != SOLUTION
    assert Progress.load(judge.file.parent).get("soft-rows").state == "solved"


def test_a_python_without_the_packages_is_told_which_to_use(tmp_path):
    command = [sys.executable, "-I", "-S", str(REPOSITORY / "practice" / "judge.py"), "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=30)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "rich" in done.stderr and ("judge.py" in done.stderr or "make setup" in done.stderr)


def test_prints_of_an_accepted_answer_are_shown(judge):
    judge("start", "soft-rows")
    judge.file.write_text(SOLUTION.replace("    e =", "    print('seen', len(x))\n    e ="))
    code, text = judge("test", "soft-rows")
    assert code == 0 and "printed in case first" in text and "seen 2" in text
    assert "3 more cases printed" in text


def test_starting_twice_keeps_the_work_and_reset_backs_it_up(judge):
    judge("start", "soft-rows")
    judge.file.write_text("# mine\n")
    assert "your work, untouched" in judge("start", "soft-rows")[1]
    assert judge.file.read_text() == "# mine\n"
    undo = judge("reset", "soft-rows")[1].partition("undo: ")[2].split()
    assert undo[0] in ("cp", "copy") and Path(undo[1]).read_text() == "# mine\n"
    assert Path(undo[2]).resolve() == judge.file.resolve()
    assert "NotImplementedError" in judge.file.read_text()
    judge.file.write_text("# mine again\n")
    assert judge("reset", "--all")[0] == 0
    kept = [path.read_text() for path in (judge.file.parent / "backup").iterdir()]
    assert set(kept) == {"# mine again\n", "# mine\n"}
    assert judge("reset")[0] == 2


def test_export_and_import_move_everything_and_lose_nothing(judge, problem, tmp_path, capsys):
    judge("start", "soft-rows")
    judge.file.write_text(SOLUTION)
    assert judge("test", "soft-rows")[0] == 0
    target = tmp_path / "all.zip"
    assert judge("export", str(target))[0] == 0
    assert judge("export", str(target))[0] == 2
    there = tmp_path / "there"
    there.mkdir()
    (there / "soft_rows.py").write_text("# other work\n")
    folders = ["--my", str(there), "--problems", str(problem.folder.parent)]
    assert cli.main([*folders, "import", str(target)]) == 0
    assert (there / "soft_rows.py").read_text() == SOLUTION
    assert [p.read_text() for p in (there / "backup").iterdir()] == ["# other work\n"]
    assert Progress.load(there).get("soft-rows").state == "solved"


@pytest.mark.parametrize("name", ("../evil.py", "/tmp/evil.py", "a/b.py", "..\\evil.py"))
def test_an_export_with_strange_paths_is_refused(judge, tmp_path, name):
    target = tmp_path / "bad.zip"
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("progress.json", '{"version": 1, "problems": {}}')
        archive.writestr(name, "evil")
    assert judge("import", str(target))[0] == 2
    assert not list(tmp_path.rglob("evil.py"))


def test_json_is_stable_and_nothing_else_is_printed(judge):
    judge("start", "soft-rows")
    judge.file.write_text("def soft_rows(x):\n    print('seen')\n    return x\n")
    code, text = judge("test", "soft-rows", "--json", "--seed", "5")
    said = json.loads(text)
    assert code == 1
    assert list(said) == [
        *("version", "slug", "status", "verdict", "message", "kind", "seed", "passed", "cases"),
        *("seconds", "tests"),
    ]
    assert (said["version"], said["status"], said["verdict"]) == (1, "fail", "wrong answer")
    assert (said["seed"], said["passed"], said["cases"]) == (5, 0, 4)
    first = said["tests"][0]
    assert list(first) == [
        *("name", "status", "kind", "message", "misconception", "output", "tests", "hidden"),
        "seconds",
    ]
    assert first["output"] == "seen\n"
    assert "expected" in first["message"] and "expected" not in said["tests"][3]["message"]
    judge.file.write_text("def soft_rows(x:\n")
    assert json.loads(judge("test", "soft-rows", "--json")[1])["status"] == "error"
    listed = json.loads(judge("list", "--json")[1])
    assert listed["version"] == 1 and listed["problems"][0]["state"] == "tried"


def test_mistakes_at_the_prompt_are_answered_in_one_line(judge):
    for arguments in (("test", "soft-row"), ("test", "soft-rows", "--file", "nowhere.py")):
        code, text = judge(*arguments)
        assert code == 2 and len(text.splitlines()) <= 2, text
    judge("start", "soft-rows")
    judge.file.write_text(SOLUTION)
    code, text = judge("test", "soft-rows", "--case", "nope")
    assert code == 2 and "it has: first, second" in text


def test_verify_says_what_it_proved(judge, host, monkeypatch):
    from kvpipe_practice import verify

    monkeypatch.setattr(verify, "make_host", lambda *options: Borrowed(host))
    assert judge("verify") == (0, "✓ soft-rows\n1 problems, 0 complaints\n")


def test_the_doctor_finds_this_machine_ready(judge, host, monkeypatch):
    from kvpipe_practice import doctor

    monkeypatch.setattr(doctor, "make_host", lambda *options: Borrowed(host))
    code, text = judge("doctor")
    assert code == 0 and "Ready." in text
    for name in ("Python", "torch", "your folder", "answers with torch", "model", "terminal"):
        assert name in text
    if sys.platform == "linux":
        assert "limit AS" in text and "audit hook" in text
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    code, text = judge("doctor")
    assert code == 1 and "use Python 3.10 or newer" in text


def children(pid: int) -> list[int]:
    listed = ["ps", "--ppid", str(pid), "-o", "pid="]
    return [int(n) for n in subprocess.run(listed, capture_output=True, text=True).stdout.split()]


@pytest.mark.timeout(120)
@pytest.mark.skipif(sys.platform != "linux", reason="sends a signal, counts processes by ps")
def test_ctrl_c_ends_everything(problem, tmp_path):
    (tmp_path / "soft_rows.py").write_text("print('x')\nwhile True: pass\n")
    command = [sys.executable, str(REPOSITORY / "practice" / "judge.py"), "--my", str(tmp_path)]
    command += ["--problems", str(problem.folder.parent), "test", "soft-rows"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60  # two imports of torch, on a machine that may be busy
    worker, answer = [], []
    while not answer and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
        worker = children(process.pid)
        answer = [pid for parent in worker for pid in children(parent)]
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 130 and "stopped" in said
    assert worker and answer
    left = [pid for pid in worker + answer if os.path.exists(f"/proc/{pid}")]
    assert not left, subprocess.run(["ps", "-fp", *map(str, left)], capture_output=True).stdout


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_ctrl_c_while_the_worker_starts_leaves_no_process(monkeypatch):
    started = []

    class Interrupted(subprocess.Popen):
        """A process whose number its parent never gets to see, unless Ctrl-C has to wait."""

        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self.pid)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(hosts.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        hosts.ForkHost(with_torch=False)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_thin_entry_runs_from_anywhere(tmp_path):
    command = [sys.executable, str(REPOSITORY / "practice" / "judge.py"), "--my", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "rms-norm" in done.stdout and "next: " in done.stdout
    assert sys.executable in done.stdout or "next: python" in done.stdout


def test_a_plain_terminal_gets_plain_text(judge, problem):
    judge("start", "soft-rows")
    judge.file.write_text("def soft_rows(x):\n    return x.log()\n")
    options = ["--my", str(judge.file.parent), "--problems", str(problem.folder.parent)]
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "practice" / "judge.py"), *options, "test", "soft-rows"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "40", "NO_COLOR": "1"},
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    text = done.stdout.decode("ascii")
    assert "\x1b" not in text and "X first" in text and "NaN" in text


@pytest.mark.parametrize("encoding", ("utf-8", "ascii", "latin-1", "cp1252"))
@pytest.mark.parametrize("columns", (40, 100))
def test_reports_fit_any_terminal(problem, host, encoding, columns):
    source = "def soft_rows(x):\n    print('×ψ\\x1b[2J' * 9)\n    return x.log()\n"
    report = run(problem, host, source)
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    print_report(terminal.make_console(stream, width=columns), report, True, "python judge.py")
    stream.flush()
    text = raw.getvalue().decode(encoding)
    assert "\x1b" not in text
    assert ("✗" in text) == (encoding == "utf-8")
    assert "NaN" in text
    assert "python judge.py hint soft-rows" in text.splitlines()[-1]
    assert max(len(line) for line in text.splitlines()[:-1]) <= columns
