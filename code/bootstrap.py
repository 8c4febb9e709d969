"""Set the book up on a new machine: a virtual environment in `.venv` with the tested pins.

`python code/bootstrap.py` needs only the standard library, and does nothing when nothing changed.
`--dev` adds what contributors need: ruff and the browser checks.
"""

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PINS = [
    ROOT / "requirements.txt",
    ROOT / "code/constraints.txt",
    ROOT / "code/pyproject.toml",
    ROOT / "practice/pyproject.toml",
]
SUPPORTED = ((3, 11), (3, 13))


def main() -> None:
    check_python()
    wanted = ["-r", "requirements.txt"] + (["-e", "./code[dev]"] if "--dev" in sys.argv else [])
    stamp = VENV / "installed"
    fingerprint = hashlib.sha256(b"".join(p.read_bytes() for p in PINS)).hexdigest()
    done = stamp.read_text().split() if stamp.is_file() else []
    if done[:1] == [fingerprint] and set(wanted) <= set(done):
        return
    print(f"Installing the tested packages into {VENV} (a few minutes, once) ...", flush=True)
    if not python().is_file():
        create_venv()
    command = [str(python()), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*command, *wanted], cwd=ROOT).returncode != 0:
        sys.exit("The installation failed; pip's reason stands above. Run the command again.")
    stamp.write_text(" ".join([fingerprint, *wanted]))


def check_python() -> None:
    (low, high), here = SUPPORTED, sys.version_info[:2]
    if not low <= here <= high:
        sys.exit(
            f"Python {here[0]}.{here[1]} is not supported; use {low[0]}.{low[1]} to "
            f"{high[0]}.{high[1]}, for instance: make PYTHON=python3.11 book"
        )


def create_venv() -> None:
    try:
        venv.create(VENV, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"No virtual environment could be made ({error}); on Debian and Ubuntu install "
                 "the package python3-venv")  # fmt: skip


def python() -> Path:
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


if __name__ == "__main__":
    main()
