"""Problems with many right answers: the case's own check judges, whatever an answer returns."""

from importlib import util

import pytest

from kvpipe_practice.case import Case
from kvpipe_practice.compare import examine
from kvpipe_practice.problems import load_problem

SLUG = "deadlock-free-exchange"


def even(got):
    """A check: an even number is right; what it says has a first line and evidence."""
    return "" if got % 2 == 0 else f"{got} is odd\nits half is {got / 2}"


@pytest.fixture
def case():
    return Case("even", "any even number", {"n": 1}, 4, check=even)


@pytest.fixture(scope="module")
def exchange(root):
    problem = load_problem(root / "practice/problems" / SLUG)
    return {each.name: each for each in problem.cases(0)}


@pytest.fixture(scope="module")
def answer(root):
    """answer(name): the function of solution.py or of a wrong answer."""

    def load(name):
        path = root / "practice/problems" / SLUG / f"{name}.py"
        spec = util.spec_from_file_location(name.replace("/", "_"), path)
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.exchange_order

    return load


def test_every_right_answer_is_right_not_only_the_expected_one(case):
    assert examine(4, case, None) is None
    assert examine(10, case, None) is None


def test_a_check_says_what_is_wrong_in_one_line_and_shows_evidence(case):
    found = examine(3, case, None)
    assert (found.kind, found.message, found.lines) == ("value", "3 is odd", ("its half is 1.5",))


def test_a_missing_return_is_named_before_the_check_sees_it(case):
    assert examine(None, case, None).kind == "missing_return"


ODD = {"text": "3", "list": [], "dict": {}, "nan": float("nan"), "vast": 10**5000 + 1}


@pytest.mark.parametrize("got", ODD.values(), ids=ODD)
def test_no_value_breaks_the_judge_through_a_check(case, got):
    assert examine(got, case, None) is not None


def test_a_case_without_check_knows_one_answer():
    case = Case("four", "four", {"n": 1}, 4)
    assert examine(4, case, None) is None
    assert examine(10, case, None).kind == "value"


@pytest.mark.parametrize("name", ["1f1b", "irregular", "random-hidden-2"])
def test_the_exchange_accepts_two_different_programs(exchange, answer, name):
    case = exchange[name]
    ours = answer("solution")(case.inputs["order"])
    assert ours != case.expected
    assert examine(ours, case, None) is examine(case.expected, case, None) is None


def test_a_deadlock_is_drawn_as_it_happened(exchange, answer):
    case = exchange["example"]
    found = examine(answer("wrong/just_in_time")(case.inputs["order"]), case, None)
    assert found.message == "deadlock: no rank can go on"
    assert found.lines == (
        "rank 0 waits in send F 1 for rank 1 to receive",
        "rank 1 waits in send B 0 for rank 0 to receive",
        "",
        "time  rank 0       rank 1",
        "   0  F 0          .",
        "   1  send F 0     recv F 0",
        "   2  F 1          F 0",
        "   3  .            B 0",
        "next  send F 1 ?   send B 0 ?",
    )


def test_what_the_handbook_calls_safe_the_exchange_accepts(exchange):
    """The runtime's own program of every schedule that both know."""
    from kvpipe.pipeline.exchange import program
    from kvpipe.pipeline.ops import Op, Schedule

    for case in exchange.values():
        order = case.inputs["order"]
        ops = tuple(tuple(Op(*op, r) for op in rank) for r, rank in enumerate(order))
        schedule = Schedule("given", 1 + max(m for _, m in order[0]), tuple(range(len(ops))), ops)
        got = [[instruction(each) for each in rank] for rank in program(schedule)]
        assert examine(got, case, None) is None, case.name


def instruction(each):
    """One instruction of the runtime in the problem's words."""
    if hasattr(each, "kind"):
        return each.kind, each.microbatch
    verb = {"Send": "send", "Recv": "recv"}[type(each).__name__]
    return verb, "F" if each.op.kind == "F" else "B", each.op.microbatch
