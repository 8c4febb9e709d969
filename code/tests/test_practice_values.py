"""The judge's values: they travel as data, are compared exactly, and are told in words."""
# ruff: noqa: F401, F811  (pytest finds the imported fixtures by their names)

import io
import json
import math

import pytest
import torch
from practice_bench import answer, host, problem, result_of, run

from kvpipe_practice import results, wire
from kvpipe_practice.case import Tolerance
from kvpipe_practice.compare import compare
from kvpipe_practice.values import describe

pytestmark = pytest.mark.timeout(60)


REL = Tolerance(1e-5, why="a test")


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


def test_the_wrong_part_of_a_result_is_named_as_in_the_statement():
    x = torch.ones(2)
    found = compare((x, x * 2), (x, x), REL).named(("out", "cache"))
    assert found.path == (1,)
    assert found.message == "2 of 2 elements of cache are wrong"
    found = compare({"x": 1, "z": [1, 2]}, {"y": 1, "z": [1, 2]}, None)
    assert found.values == ("missing 'y', unexpected 'x'",)
    assert compare({"z": [1, 2]}, {"z": [1, 3]}, None).path == ("z", 1)


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
    assert compare(wrong, x, REL).lines == ("largest error 0.5, far beyond rounding",)
    wrong[1, 2] = 1.005
    found = compare(wrong, x, REL)
    assert found.message == "1 of 6 elements of your result are wrong"
    assert "[1, 2]: expected 1, got 1.005" in found.values[0]
    assert "0.005" in found.lines[0] and "1e-05" in found.lines[0]
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


def test_a_changed_input_is_named_with_what_became_of_it(problem, host):
    report = run(problem, host, answer("out = honest(x)\nx[0, 0] = 7.0\nreturn out"))
    failure = result_of(report, "second").failure
    assert failure.kind == "mutated" and failure.lines[0] == "x is not as it came"
    assert "before" in failure.lines[1] and "7.0000" in failure.lines[2]
    assert "/=" in failure.lines[3]
    forged = """
    import os, sys, json, struct
    call = sys._getframe(1)
    token = call.f_back.f_locals["header"]["token"]
    changed = [[9, 3], [True, []], ["x"], 4, [0, ["none"]]] * 10**4
    text = json.dumps(dict(op="returned", token=token, mutated=True, changed=changed,
                           value=["none"])).encode()
    os.write(call.f_locals["self"].result_fd, struct.pack("<4sIQ", b"KVP1", len(text), 0) + text)
    os._exit(0)
    """
    assert result_of(run(problem, host, answer(forged)), "second").status == "fail"


def test_one_diagnosis_explains_a_whole_run_or_stands_alone(problem, host):
    report = run(problem, host, problem.wrong[0].source)
    said = {result.failure.misconception for result in report.failed}
    assert said == {problem.wrong[0].message}
    mixed = """
import torch
def soft_rows(x):
    if len(x) == 2:
        return x / x.sum(dim=-1, keepdim=True)
    return torch.log_softmax(x, -1)
"""
    first, *rest = [r.failure.misconception for r in run(problem, host, mixed).failed]
    assert "plain shares" in first and set(rest) == {""}


def test_advice_where_the_judge_has_no_keyboard(problem, host):
    for call, word in (("input()", "input()"), ("breakpoint()", "breakpoint()")):
        failure = result_of(run(problem, host, answer(call)), "second").failure
        assert failure.kind == "exception" and word in failure.lines[0]
