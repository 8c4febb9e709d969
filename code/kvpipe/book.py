"""Builds the book: `python -m kvpipe.book` turns the committed outputs into `_build/html`.

A book whose sources are unchanged is not built again; a changed one is built from nothing, so that
a warning is never hidden by pages of an earlier build.
"""

import argparse
import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import kvpipe

_SOURCES = ("_config.yml", "book/**/*", "notebooks/*.ipynb", "practice/problems/*/problem.md")
_BUILDERS = ("jupyter-book", "sphinx", "sphinx-book-theme", "sphinx-mathjax-offline")


def build(root: Path, *, verbose: bool = False) -> Path:
    """The first page of the book of the repository at `root`, built if it has to be.

    A warning raises `subprocess.CalledProcessError`, after it was printed.
    """
    site = root / "_build/html"
    stamp, current = site / ".sources", fingerprint(root)
    if not (stamp.is_file() and stamp.read_text() == current):
        for left_over in (site, root / "_build/.doctrees"):
            shutil.rmtree(left_over, ignore_errors=True)
        _run_jupyter_book(root, verbose)
        stamp.write_text(current)
    return site / "index.html"


def fingerprint(root: Path) -> str:
    """A name for everything that the built book depends on."""
    package = Path(kvpipe.__file__).parent
    sources = [path for pattern in _SOURCES for path in root.glob(pattern)]
    sources += [package / name for name in ("book.py", "book_pages.py", "ledger.py")]
    digest = hashlib.sha256()
    for path in sorted(path for path in sources if path.is_file()):
        digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    for name in _BUILDERS:
        digest.update(f"{name} {importlib.metadata.version(name)}".encode())
    return digest.hexdigest()


def _run_jupyter_book(root: Path, verbose: bool) -> None:
    command = [
        sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", str(root),
        "--toc", str(root / "book/_toc.yml"), "--config", str(root / "_config.yml"),
        "-W", "-n", "--keep-going", *([] if verbose else ["-q"]),
    ]  # fmt: skip
    subprocess.run(command, check=True, cwd=root, stdout=None if verbose else subprocess.DEVNULL)


def find_root(start: Path) -> Path:
    """The repository that holds `start`: the nearest folder above it with a `_config.yml`."""
    for folder in (start, *start.parents):
        if (folder / "_config.yml").is_file() and (folder / "book/_toc.yml").is_file():
            return folder
    raise ValueError(f"no _config.yml with book/_toc.yml in {start} or above it")


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m kvpipe.book`: build, then say where to look."""
    parser = argparse.ArgumentParser(prog="python -m kvpipe.book", description=main.__doc__)
    parser.add_argument("--verbose", action="store_true", help="print what Jupyter Book prints")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        page = build(find_root(Path.cwd()), verbose=options.verbose)
    except (ValueError, importlib.metadata.PackageNotFoundError) as mistake:
        print(f"{mistake} (is everything in requirements.txt installed?)", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as failure:
        print("The book was not built: see the warnings above.", file=sys.stderr)
        return failure.returncode
    print(f"The book is ready ({time.perf_counter() - started:.0f} s). Open {page.as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
