"""The judge's parts: values as data, comparison, records, commands, reports, the notebook."""

import io
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import pytest
import torch
from practice_bench import SOLUTION, answer, make_problem, result_of, run, statuses

from kvpipe_practice import cli, commands, gather, problems, results, terminal, wire
from kvpipe_practice.case import Tolerance
from kvpipe_practice.compare import compare
from kvpipe_practice.hosts import make_host
from kvpipe_practice.progress import Progress, ProgressError, Record
from kvpipe_practice.report import evidence, print_report
from kvpipe_practice.runner import Process
from kvpipe_practice.values import describe

pytestmark = pytest.mark.timeout(60)
REL = Tolerance(1e-5, why="a test")
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    return make_problem(tmp_path_factory.mktemp("problems"))


@pytest.fixture(scope="module")
def host():
    host = make_host(with_torch=True)
    yield host
    host.close()


# --- values as data ----------------------------------------------------------------------------


def sent(value):
    encoder = wire.Encoder()
    tree = json.loads(json.dumps(encoder.encode(value)))
    return wire.decode(tree, bytes(encoder.block))


@pytest.mark.parametrize("name", wire.TENSOR_DTYPES)
def test_tensors_arrive_bit_by_bit(name):
    x = (torch.arange(30).reshape(2, 3, 5) - 7).to(getattr(torch, name))
    for value in (x, x.transpose(0, 2), x[:, 1], x[..., 2], torch.empty(0, 4, dtype=x.dtype)):
        got = sent(value)
        assert got.dtype == value.dtype
        torch.testing.assert_close(got, value, rtol=0, atol=0)
    assert sent(x.transpose(0, 2)).stride() == x.transpose(0, 2).stride()


def test_plain_values_arrive_unchanged():
    value = {"a": [1, -(2**200), 0.1, True, None], 3: ("é\ud800", {"b": (1.5,)}), (1, 2): -0.0}
    assert sent(value) == value
    assert math.isnan(sent(float("nan")))
    assert sent([math.inf, -math.inf]) == [math.inf, -math.inf]


def test_numpy_arrays_arrive_unchanged():
    import numpy

    for dtype in (">f4", "<f8", "u1", "?", ">i8"):
        x = numpy.arange(12).reshape(3, 4).astype(dtype).T
        assert (sent(x) == x).all()
        assert sent(x).dtype == x.dtype.newbyteorder("=")


@pytest.mark.parametrize(
    "tree",
    (
        [], ["what"], ["int", 3], ["int", "zz"], ["float", "x"], ["list", 3], ["dict", [1]],
        ["dict", [[["list", []], ["none"]]]], ["tensor", "float32", [2], [0], 0, 4],
        ["tensor", "float32", [-1], [0], 0, 4], ["tensor", "object", [1], [0], 0, 4],
        ["tensor", "float32", [1], [1], 0, 4], ["tensor", "float32", [2**40, 2**40], [0, 1], 0, 4],
        ["array", "O", [1], [0], 0, 4], None, 7, {"none": 1},
    ),
)  # fmt: skip
def test_malformed_values_are_refused(tree):
    with pytest.raises(wire.WireError):
        wire.decode(tree, b"\0" * 4)


def test_malformed_messages_are_refused():
    good = wire.pack({"op": "x"}, b"abc")
    assert wire.read_message(io.BytesIO(good)) == ({"op": "x"}, b"abc")
    assert wire.read_message(io.BytesIO(b"")) is None
    deep = b"[" * 100_000
    for bad in (
        good[:5], good[:-1], b"XXXX" + good[4:],
        wire.PREFIX.pack(wire.MAGIC, 2, 0) + b"[]",
        wire.PREFIX.pack(wire.MAGIC, len(deep), 0) + deep,
        wire.PREFIX.pack(wire.MAGIC, 2**31, 2**40),
    ):  # fmt: skip
        with pytest.raises(wire.WireError):
            wire.read_message(io.BytesIO(bad))


JUNK = (
    None,
    7,
    -1.5,
    "x\x1b[2J",
    [],
    [None, 3],
    [["a", "b", "c"]],
    {"a": 1},
    True,
    [["f", 1, "g"]],
)


@pytest.mark.parametrize("op", ("raised", "nofunction", "unsendable", "malformed", "loaded", "?"))
def test_replies_of_the_wrong_form_become_plain_failures(problem, op):
    from kvpipe_practice.judging import Submission
    from kvpipe_practice.runner import Outcome
    from kvpipe_practice.verdicts import failure_of

    submission = Submission("", "f")
    for junk in JUNK:
        header = dict.fromkeys(("type", "kinds", "message", "frames", "names", "notes"), junk)
        failure = failure_of(Outcome(op, header, b"", "", 0.0), problem, submission, "there", 1.0)
        assert failure.kind and "\x1b" not in results.failure_text(failure)


def test_forged_notes_break_nothing(problem, host):
    forge = """
    import os, sys, json, struct
    call = sys._getframe(1)
    token = call.f_back.f_locals["header"]["token"]
    for notes in {junk}:
        text = json.dumps(dict(op="returned", token=token, notes=notes, value=["none"])).encode()
        frame = struct.pack("<4sIQ", b"KVP1", len(text), 0) + text
        os.write(call.f_locals["self"].result_fd, frame)
    os._exit(0)
    """
    for junk in JUNK:
        notes = [junk, {"called": junk, "refused": junk}]
        for note in notes:
            report = run(problem, host, answer(forge.format(junk=[note])))
            assert result_of(report, "second").status == "fail"


# --- comparison --------------------------------------------------------------------------------


def kind(got, expected, tolerance=REL):
    found = compare(got, expected, tolerance)
    return found.kind if found else None


def test_each_difference_has_its_kind():
    x = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    assert kind(x * (1 + 5e-6), x) is None
    assert kind(x * (1 + 5e-5), x) == "value"
    assert kind(x[0], x) == "shape"
    assert kind(x.double(), x) == "dtype"
    assert kind(x * float("nan"), x) == "nan"
    assert kind(x.numpy(), x) == "type"
    assert kind(None, x) == "missing_return"
    assert kind((x, None), (x, x)) == "type"
    assert kind([x, x * 2], (x, x)) == "value"
    assert kind((x,), (x, x)) == "shape"
    assert kind({"a": 1}, {"b": 1}) == "value"
    assert kind(True, 1) == kind(1.0, 1) == kind("1", 1) == kind(1, True) == "type"
    assert kind(1, 1.0) is None
    assert kind(2**53 + 1, 2**53) == "value"
    assert kind(float("nan"), 1.0) == "nan"


def test_integers_and_strings_are_exact():
    x = torch.tensor([2**60, 5])
    assert kind(x, x) is None
    assert kind(x + torch.tensor([1, 0]), x) == "value"
    assert kind("ab", "ab") is None
    assert kind("ab ", "ab") == "value"
    assert kind(0.1 + 0.2, 0.3, None) == "value"


def test_the_tolerance_follows_the_size_of_the_row():
    x = torch.tensor([[1e6, 1e6], [1e-3, 1e-3]])
    wrong = x.clone()
    wrong[1] += 1e-6
    assert kind(wrong, x) == "value"
    assert kind(wrong, x, Tolerance(1e-5, why="a test", per="tensor")) is None
    assert kind(torch.full_like(x, 1e-30), torch.zeros_like(x)) == "value"
    assert kind(-torch.zeros_like(x), torch.zeros_like(x)) is None


def test_infinities_must_agree():
    x = torch.tensor([1.0, -math.inf])
    assert kind(x, x) is None
    assert kind(torch.tensor([1.0, -1e30]), x) == "value"
    assert kind(torch.tensor([math.inf, -math.inf]), x) == "value"


def test_a_tolerance_needs_a_reason_and_a_size():
    for options in ({"rel": 0.1, "why": "x"}, {"rel": 0, "why": "x"}, {"rel": 1e-5, "why": " "}):
        with pytest.raises(ValueError):
            Tolerance(**options)


def test_a_failure_tells_how_many_where_and_how_far():
    x = torch.ones(2, 3)
    wrong = x.clone()
    wrong[1, 2] = 1.5
    found = compare(wrong, x, REL)
    assert found.message == "1 of 6 elements of your result are wrong"
    assert "[1, 2]: expected 1, got 1.5" in found.values[0]
    assert "0.5" in found.lines[0] and "1e-05" in found.lines[0]
    assert "a test" in found.lines[1]


HOSTILE = (
    None, True, 0, -1, 10**5000, [10**5000], {10**5000: 1}, 1e308, float("nan"), -math.inf,
    "", "x" * 10**6, [], (), {}, [[[[]]]], [0] * 200_000, {"a": [float("nan")]},
    torch.zeros(0), torch.zeros(2, 2),
    torch.full((2,), math.inf), torch.zeros(2, dtype=torch.complex64), torch.tensor(1),
    torch.tensor([True, False]), torch.ones(2).bfloat16(), torch.zeros(2).numpy(),
)  # fmt: skip


def test_no_value_can_break_the_comparison_or_the_report():
    for expected in HOSTILE:
        for got in HOSTILE:
            found = compare(got, expected, REL)
            assert found is None or all(isinstance(t, str) for t in (found.message, *found.values))
    for got in HOSTILE:
        assert len(describe(got)) < 2000


def test_large_integers_are_told_apart_in_full():
    found = compare(torch.tensor([1234567891]), torch.tensor([1234567890]), None)
    assert found.values == ("first wrong element [0]: expected 1234567890, got 1234567891",)


def test_an_unimplemented_operation_is_not_an_unwritten_answer(problem, host):
    report = run(problem, host, answer("return torch.zeros(3, 4, device='meta').tolist()"))
    assert result_of(report, "second").failure.kind == "exception"


# --- problems, records, files ------------------------------------------------------------------


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


# --- commands ----------------------------------------------------------------------------------


class Borrowed:
    """The module's warm host, which a command must not close."""

    def __init__(self, host):
        self.open, self.end, self.close = host.open, host.end, lambda: None


@pytest.fixture
def judge(problem, host, tmp_path, capsys, monkeypatch):
    """Run one command on the small problem; gives (exit code, output)."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(commands, "make_host", lambda *options: Borrowed(host))

    def call(*arguments):
        folders = ["--my", str(tmp_path / "my"), "--problems", str(problem.folder.parent)]
        code = cli.main([*folders, *arguments])
        said = capsys.readouterr()
        return code, said.out + said.err

    call.file = tmp_path / "my" / "soft_rows.py"
    return call


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
    assert "wrong answer  0 of 4 cases passed" in text
    assert "your result equals the logarithm of the right one" in text
    assert "3 more failed; --all-failures shows them" in text
    assert judge("test", "soft-rows", "--all-failures")[1].count("elements of your result") == 4

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
    assert code == 1 and "not judged in full: 1 of 4 cases ran" in text
    assert "solved" not in judge()[1].split("1 solved")[0].partition("soft-rows")[2][:40]
    code, text = judge("test", "soft-rows")
    assert code == 0 and "accepted  4 of 4 cases passed" in text
    assert "Everything is solved" in text
    assert "Everything is solved" in judge()[1]


def test_starting_twice_keeps_the_work_and_reset_backs_it_up(judge):
    judge("start", "soft-rows")
    judge.file.write_text("# mine\n")
    assert "your work, untouched" in judge("start", "soft-rows")[1]
    assert judge.file.read_text() == "# mine\n"
    assert "kept in" in judge("reset", "soft-rows")[1]
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


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_ctrl_c_ends_everything(problem, tmp_path):
    (tmp_path / "soft_rows.py").write_text("print('x')\nwhile True: pass\n")
    command = [sys.executable, str(REPOSITORY / "practice" / "judge.py"), "--my", str(tmp_path)]
    command += ["--problems", str(problem.folder.parent), "test", "soft-rows"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for _ in range(200):
        time.sleep(0.05)
        below = subprocess.run(
            ["ps", "--ppid", str(process.pid), "-o", "pid="], capture_output=True, text=True
        ).stdout.split()
        if below:
            break
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=20)
    assert process.returncode == 130 and "stopped" in said
    assert below and not any(os.path.exists(f"/proc/{pid}") for pid in below)


def test_the_thin_entry_runs_from_anywhere(tmp_path):
    command = [sys.executable, str(REPOSITORY / "practice" / "judge.py"), "--my", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "rms-norm" in done.stdout and "next: python " in done.stdout


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


# --- reports -----------------------------------------------------------------------------------


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
    line = re.search(r"case_inputs\(.*\)", shown_case(report, "random-hidden"))[0]
    assert line == 'case_inputs("rms-norm", "random-hidden", seed=11)'
    inputs = case_inputs("rms-norm", "random-hidden", seed=11)
    torch.testing.assert_close(inputs["x"], result_of(report, "random-hidden").case.inputs["x"])


def shown_case(report, name):
    out = io.StringIO()
    console = terminal.make_console(out, width=100)
    console.print(evidence(report, result_of(report, name)))
    assert "expected" not in out.getvalue()
    return out.getvalue()


# --- hosts -------------------------------------------------------------------------------------


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


# --- watch -------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_watch_judges_every_save_and_obeys_keys(problem, tmp_path):
    import pty
    import select

    main, other = pty.openpty()
    command = [sys.executable, str(REPOSITORY / "practice" / "judge.py"), "--my", str(tmp_path)]
    command += ["--problems", str(problem.folder.parent), "watch", "soft-rows"]
    process = subprocess.Popen(
        command, stdin=other, stdout=other, stderr=other, env={**os.environ, "COLUMNS": "100"}
    )
    os.close(other)
    text = ""

    def wait_for(*parts, limit_s=30):
        nonlocal text
        text, deadline = "", time.monotonic() + limit_s
        while not all(part in text for part in parts):
            ready, _, _ = select.select([main], [], [], deadline - time.monotonic())
            assert ready, f"no {parts} in {text!r}"
            text += os.read(main, 65536).decode(errors="replace")

    try:
        wait_for("as it should be", "q quit")
        time.sleep(0.5)
        (tmp_path / "soft_rows.py").write_text("def soft_rows(x):\n    return x\n")
        wait_for("wrong answer", "q quit")
        (tmp_path / "soft_rows.py").write_text(SOLUTION)
        wait_for("accepted", "goes on to the next problem", "q quit")
        os.write(main, b"h")
        wait_for("Hint 1 of 3")
        os.write(main, b"l")
        wait_for("1 of 1 solved")
        os.write(main, b"n")
        wait_for("No other problem is unsolved")
        os.write(main, b"r")
        wait_for("fresh stub")
        wait_for("as it should be")
        os.write(main, b"q")
        assert process.wait(timeout=10) == 0
    finally:
        process.kill()
        process.wait()
        os.close(main)
    assert Progress.load(tmp_path).get("soft-rows").state == "untouched"


# --- notebook ----------------------------------------------------------------------------------

CELLS = """
import math
import torch
from functools import lru_cache as cached
FACTOR = 2
LOWEST = float("-inf")
KIND = torch.float32
class Scale:
    def __init__(self, s): self.s = s
    def __call__(self, x): return shift(x) * self.s
def shift(x): return (x + math.floor(FACTOR)).clamp(min=LOWEST).to(KIND)
@cached
def made(n): return n
def mine(x: torch.Tensor) -> torch.Tensor:
    y = [made(i) for i in range(2)]
    return Scale(len(y))(x)
BIG = torch.zeros(3)
def uses_big(x): return x + BIG
def outer():
    k = 3
    def inner(x): return x + k
    return inner
"""


@pytest.fixture
def cell():
    """Names as a notebook's cell would define them."""
    import linecache

    names = {"__name__": "__main__"}
    linecache.cache["<cell>"] = (len(CELLS), None, CELLS.splitlines(keepends=True), "<cell>")
    exec(compile(CELLS, "<cell>", "exec"), names)
    yield names
    del linecache.cache["<cell>"]


def test_a_notebooks_function_travels_with_what_it_uses(cell):
    source = gather.answer_source(cell["mine"], "wanted")
    alone = {"__name__": "elsewhere"}
    exec(source, alone)
    x = torch.ones(2)
    torch.testing.assert_close(alone["wanted"](x), cell["mine"](x))


@pytest.mark.parametrize(
    ("name", "said"),
    (
        ("uses_big", "uses BIG, a torch.Tensor of the notebook"),
        ("outer()", "uses its k; define it at the top of a cell"),
        ("FACTOR", "not a int"),
        ("(lambda x: x)", "not a lambda"),
    ),
)
def test_what_cannot_travel_is_refused_with_a_way_out(cell, name, said):
    with pytest.raises(gather.GatherError, match=re.escape(said)):
        gather.answer_source(eval(name, cell), "wanted")


def test_check_in_a_notebook_gives_html_and_the_same_verdict(tmp_path, monkeypatch):
    from kvpipe_practice import check, hint, notebook, solution
    from kvpipe_practice.work import Work

    monkeypatch.setattr(notebook, "Work", lambda: Work(tmp_path))
    right = check("rms-norm", problems.find("rms-norm").solution)
    assert right.accepted and "accepted" in repr(right)
    assert Progress.load(tmp_path).get("rms-norm").state == "solved"
    wrong = check("rms-norm", "def rms_norm(x, weight, eps):\n    return '<b>&'\n")
    html = wrong._repr_html_()
    assert not wrong.accepted and html.startswith("<pre") and "<b>&" not in html
    assert "hint(&quot;rms-norm&quot;)" in html
    assert "Hint 1 of 3" in repr(hint("rms-norm"))
    assert "Usual wrong answers" in repr(solution("rms-norm"))
    with pytest.raises(ValueError, match="not a lambda"):
        check("rms-norm", lambda x: x)
    notebook.warm_host(True).close()
    notebook.warm_host.cache_clear()


def test_the_panel_has_a_button_for_every_action():
    pytest.importorskip("ipywidgets")
    from kvpipe_practice import panel

    title, buttons, _ = panel("rms-norm").children
    names = [button.description for button in buttons.children]
    assert names == ["Statement", "Test", "Hint", "Hint now", "Solution"]
    assert "RMSNorm" in title.value
