"""`verify` proves every problem of the book, and notices every way in which one can be broken."""

import pytest
from practice_bench import make_problem

from kvpipe_practice import problems
from kvpipe_practice.folders import check_root
from kvpipe_practice.hosts import make_host
from kvpipe_practice.problems import load_problem
from kvpipe_practice.verify import verify

pytestmark = pytest.mark.timeout(120)
ALL = problems.load_all()


@pytest.fixture(scope="module")
def hosts():
    made = {}

    def host(with_torch):
        if with_torch not in made:
            made[with_torch] = make_host(with_torch)
        return made[with_torch]

    yield host
    for each in made.values():
        each.close()


@pytest.mark.parametrize("problem", ALL, ids=[problem.slug for problem in ALL])
def test_every_problem_of_the_book_is_proven(problem, hosts):
    assert list(verify(problem, hosts(problem.torch))) == []


def test_the_problems_stand_in_one_order_without_strays():
    assert list(check_root(problems.PROBLEMS)) == []


def test_a_good_problem_has_no_complaint(tmp_path, hosts):
    assert list(verify(make_problem(tmp_path), hosts(True))) == []


LAX_TOLERANCE = "Tolerance(0.05, why='wide')"
BREAKS = {
    "a solution that is wrong": (
        "solution.py", "e / e.sum(dim=-1", "e / e.sum(dim=0", "the solution is not accepted"),
    "a forbidden call in the solution": (
        "solution.py", "e / e.sum(dim=-1, keepdim=True)", "torch.softmax(x, -1)",
        "forbidden call: torch.softmax"),
    "a solution without explanation": (
        "solution.py", "first.\n\nThe shares stay the same, and no exponential overflows.", "1.",
        "explain itself"),
    "a stub with another signature": (
        "stub.py", "x: torch.Tensor", "x: torch.Tensor, dim: int = -1", "stub has soft_rows(x:"),
    "a stub that hangs": (
        "stub.py", 'raise NotImplementedError("write soft_rows here")', "while True: pass",
        "the stub does not fail with the kind message"),
    "a wrong answer that is right": (
        "wrong/log.py", "return torch.log_softmax(x, -1)",
        "return torch.log_softmax(x, -1).exp()", "wrong/log.py is accepted"),
    "a wrong answer caught by another case": (
        "wrong/log.py", "case: first", "case: third", "should fail in third by value"),
    "a wrong answer caught in another way": (
        "wrong/log.py", "return torch.log_softmax(x, -1)", "return None",
        "should fail in first by value"),
    "a wrong answer that looks like another": (
        "wrong/log.py", "return torch.log_softmax(x, -1)",
        "return torch.exp(x) / torch.exp(x).sum(dim=0, keepdim=True)", "taken for another mistake"),
    "a wrong answer without header": ("wrong/log.py", "kind: value", "", "must start with"),
    "a kind that does not exist": ("wrong/log.py", "kind: value", "kind: bad", "not one of"),
    "two hints": ("hints.md", "## The idea", "The idea", "hints.md must have the sections"),
    "an empty hint": (
        "hints.md", "Exponentiate, then divide by the sum of the row.", "Think.", "too little"),
    "a tolerance that is too wide": (
        "cases.py", 'Tolerance(1e-5, why="float32 keeps 7 digits")', LAX_TOLERANCE, "too wide"),
    "floats without a tolerance": (
        "cases.py", 'TOLERANCE = Tolerance(1e-5, why="float32 keeps 7 digits")', "",
        "floating point without a tolerance"),
    "cases that a constant passes": (
        "cases.py", "torch.softmax(x.double(), -1).float()", "torch.zeros_like(x)",
        "always returns zeros would be accepted"),
    "no hidden random case": ("cases.py", "hidden=True", "hidden=False", "no hidden case depends"),
    "an unseeded case": (
        "cases.py", "torch.randn(5, 6, generator=random)", "torch.randn(5, 6)",
        "differs between two runs with the same seed"),
    "sizes that are the same": (
        "cases.py", "torch.randn(5, 6,", "torch.randn(6, 6,", "two sizes of x (6, 6) are the same"),
    "inputs named unlike the parameters": (
        "cases.py", '{"x": x}, torch.softmax(x.double(), -1).float(),\n', 
        '{"y": x}, torch.softmax(x.double(), -1).float(),\n', "inputs are ['y']"),
    "a rule about nothing": (
        "cases.py", '"torch.nn.Softmax")', '"torch.nn.Sofmax")', "torch.nn.Sofmax does not exist"),
    "a rule the statement keeps to itself": (
        "problem.md", "Do not call `torch.softmax`.", "", "does not mention the rule"),
    "a statement without a section": (
        "problem.md", "## Example", "## Sample", "no section ## Example"),
    "another title": ("problem.md", "# Softmax rows", "# Rows", "one # heading"),
    "an unclosed formula": ("problem.md", "e^{x_j}$.", "e^{x_j}.", "odd number of $"),
    "an unclosed block": ("problem.md", "Tensor:\n```", "Tensor:", "unclosed ```"),
    "a front matter that lacks a key": (
        "problem.md", "minutes: 5\n", "", "the front matter lacks minutes"),
    "an unknown difficulty": ("problem.md", "easy", "trivial", "not one of easy, medium, hard"),
    "a time limit that is too short": (
        "problem.md", "limit_s: 1", "limit_s: 0.00001", "is not accepted"),
    "torch where there should be none": (
        "problem.md", "torch: true", "torch: false", "imports torch, but"),
}  # fmt: skip


def complaints(folder, hosts):
    """One after the other, so that a test can stop at the one it is about."""
    try:
        yield from verify(load_problem(folder), hosts(True))
    except problems.ProblemError as error:
        yield str(error)


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_problem_is_noticed(name, tmp_path, hosts):
    file, before, after, said = BREAKS[name]
    path = make_problem(tmp_path).folder / file
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")
    assert any(said in complaint for complaint in complaints(path.parents["/" in file], hosts))


@pytest.mark.parametrize("name", ("notes.txt", "wrong/notes.md", "solution2.py", ".DS_Store"))
def test_stray_files_are_noticed(name, tmp_path, hosts):
    problem = make_problem(tmp_path)
    (problem.folder / name).write_text("")
    assert any(said == f"{name} is a stray file" for said in complaints(problem.folder, hosts))


@pytest.mark.parametrize("name", ("problem.md", "stub.py", "solution.py", "cases.py", "hints.md"))
def test_missing_files_are_noticed(name, tmp_path, hosts):
    problem = make_problem(tmp_path)
    (problem.folder / name).unlink()
    assert any("missing" in said for said in complaints(problem.folder, hosts))


def test_two_wrong_answers_are_not_enough(tmp_path, hosts):
    problem = make_problem(tmp_path)
    (problem.folder / "wrong" / "log.py").unlink()
    assert "2 wrong answers; at least 3 are needed" in list(verify(problem, hosts(True)))


def test_one_place_for_two_problems_is_noticed(tmp_path):
    make_problem(tmp_path)
    make_problem(tmp_path, "hard-rows")
    (tmp_path / "leftover").mkdir()
    said = "\n".join(check_root(tmp_path))
    assert "both have chapter and order (1, 1)" in said
    assert "leftover is no problem" in said
