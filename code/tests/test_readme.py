"""Every command of the README, run in a copy of the repository as a reader would type it.

Commands that would run for minutes, or this test itself, are started in a short form through an
environment variable; the continuous integration script runs `make test` and `make book` whole.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines()]
COMMANDS = list(dict.fromkeys(LINES + re.findall(r"`(make \w+)`", README)))
COMMANDS.sort(key=lambda command: command == "make clean")  # it takes the environment away
INSTALL = "python -m pip install -r requirements.txt"  # run for real by code/bootstrap.py

COLLECT = {"PYTEST_ADDOPTS": "--collect-only"}
SHORT_FORM = {
    "make test": COLLECT,
    "python -m pytest -q --rootdir code code/tests": COLLECT,
    "make bench": {"ARGS": "--quick"},
}
SERVERS = ("make lab", "python -m jupyterlab --notebook-dir=.")
EXPECTED = {
    "make help": "open JupyterLab",
    "make book": "The book is ready",
    'python -m kvpipe "What is the capital of France?"': "Paris",
    "python practice/judge.py": "rms-norm",
}


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """The repository without what git ignores; its `.venv` forwards to this Python."""
    target = tmp_path_factory.mktemp("clone") / "handbook"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    python = target / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return target


def start(command: str, clone: Path, **variables: str) -> subprocess.Popen:
    """Run `command` with the fake `.venv` first in PATH and its set-up step switched off."""
    path = f"{clone / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        command,
        shell=True,
        cwd=clone,
        env=os.environ | {"PATH": path, "PYTHON": "true", "BROWSER": "true"} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def stop(process: subprocess.Popen) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    process.wait(timeout=30)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c in SERVERS])
def test_jupyterlab_of_the_readme_starts(command, clone):
    settings = clone / "jupyter"
    settings.mkdir(exist_ok=True)
    (settings / "jupyter_server_config.json").write_text('{"ServerApp": {"allow_root": true}}')
    process = start(command, clone, JUPYTER_CONFIG_DIR=str(settings))
    try:
        deadline, output = time.monotonic() + 90, ""
        while time.monotonic() < deadline and "?token=" not in output and process.poll() is None:
            output += process.stdout.readline()
        assert "?token=" in output, output
    finally:
        stop(process)


@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in (*SERVERS, INSTALL)])
def test_command_of_the_readme_works(command, clone):
    process = start(command, clone, **SHORT_FORM.get(command, {}))
    try:
        output, _ = process.communicate(timeout=590)
    finally:
        stop(process)
    allowed = (0, 1) if command.startswith("python practice/judge.py test") else (0,)
    assert process.returncode in allowed, f"{command}\n{output[-3000:]}"
    assert EXPECTED.get(command, "") in output


def test_readme_names_only_files_that_exist():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links and [link for link in links if not (ROOT / link).exists()] == []
    tree = re.search(r"## What is where\n+```\n(.*?)```", README, flags=re.DOTALL).group(1)
    stack, missing = [], []
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        stack = [*stack[:depth], line.split()[0]]
        if not (ROOT / "".join(stack)).exists():
            missing.append("".join(stack))
    assert missing == []
