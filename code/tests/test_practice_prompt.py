"""The judge at the prompt: slips, folders, pipes, and statements that can be copied."""
# ruff: noqa: F401, F811  (pytest finds the imported fixtures by their names)

import subprocess
import sys

import pytest
from practice_bench import REPOSITORY, host, judge, problem

from kvpipe_practice import cli
from kvpipe_practice.work import shorter

pytestmark = pytest.mark.timeout(60)


def test_slips_at_the_prompt_get_the_right_words(judge, tmp_path, capsys):
    assert "did you mean test?" in judge("tset", "soft-rows")[1]
    assert "as in: test soft-rows" in judge("soft-rows")[1]
    for command in ("start", "test", "hint", "solution"):
        code, text = judge(command)
        assert code == 2 and "there are: soft-rows" in text
    (tmp_path / "plain.txt").write_text("no zip")
    code, text = judge("import", str(tmp_path / "plain.txt"))
    assert code == 2 and "plain.txt is no export" in text and "Errno" not in text
    code, text = judge("import", str(tmp_path / "nowhere"))
    assert code == 2 and "nowhere: No such file" in text and "Errno" not in text
    assert cli.main(["--my", str(tmp_path / "plain.txt"), "list"]) == 2
    assert "is a file" in capsys.readouterr().err


def test_the_folder_may_follow_the_command_and_suggestions_keep_it(
    judge, problem, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(REPOSITORY)
    folder = tmp_path / "elsewhere"
    root = ["--problems", str(problem.folder.parent)]
    assert cli.main([*root, "start", "soft-rows", "--my", str(folder)]) == 0
    assert f"--my {shorter(folder)} test soft-rows" in capsys.readouterr().out
    assert (folder / "soft_rows.py").exists()
    assert cli.main([*root, "export", "--my", str(folder)]) == 0
    assert len(list(folder.glob("kvpipe-practice-*.zip"))) == 1


def test_code_in_a_statement_is_never_broken(monkeypatch, judge):
    monkeypatch.setenv("COLUMNS", "30")
    text = judge("start", "soft-rows")[1]
    assert "\ndef soft_rows(x: torch.Tensor) -> torch.Tensor:\n" in text
    assert "\\frac" not in text and "taught in: Chapter 1" in text
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.skipif(sys.platform == "win32", reason="needs sh")
def test_a_closed_pipe_is_no_error(tmp_path):
    line = f"{sys.executable} {REPOSITORY / 'practice' / 'judge.py'} --my {tmp_path} list | head -1"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=30)
    assert done.stderr == "" and done.stdout == "Chapter 1\n"
