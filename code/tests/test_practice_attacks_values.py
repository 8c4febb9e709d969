"""The judge attacked with its source in hand: values and replies that pretend.

Unless a test says otherwise, the check of the source is off: what holds here are the processes,
the walls around them, and that the verdict is computed elsewhere.
"""
# ruff: noqa: F401, F811  (pytest finds the imported fixtures by their names)

import os

import pytest
from practice_bench import answer, attack, host, judge, problem, result_of, run, statuses

from kvpipe_practice.runner import resident_bytes

pytestmark = pytest.mark.timeout(60)


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
