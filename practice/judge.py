"""The judge of the handbook's exercises: `python practice/judge.py` shows where you are."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

NEEDED = ("kvpipe_practice", "numpy", "pylatexenc", "rich", "watchfiles")


def advice(missing: list[str]) -> str:
    """What to type where this Python lacks something the judge needs."""
    here = Path(__file__).resolve()
    environment = here.parent.parent / ".venv"
    for python in (environment / "bin" / "python", environment / "Scripts" / "python.exe"):
        if python.exists():
            found = min(os.path.relpath(python), str(python), key=len)
            path = min(os.path.relpath(here), str(here), key=len)
            return f"this Python lacks {', '.join(missing)}; run: {found} {path}"
    return f"this Python lacks {', '.join(missing)}; run `make setup` first"


if __name__ == "__main__":
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        sys.exit(advice(missing))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the judge's tensors are small
    from kvpipe_practice.cli import main

    sys.exit(main())
