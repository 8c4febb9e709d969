"""The judge attacked with its source in hand: looking up the answer, leaving traces.

Unless a test says otherwise, the check of the source is off: what holds here are the processes,
the walls around them, and that the verdict is computed elsewhere.
"""
# ruff: noqa: F401, F811  (pytest finds the imported fixtures by their names)

import os

import pytest
from practice_bench import answer, attack, host, problem, run, walled

from kvpipe_practice.hosts import make_host

pytestmark = pytest.mark.timeout(60)


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
