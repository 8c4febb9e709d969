"""Builds the book, and the Sphinx extension that keeps it free of requests to other hosts.

`python -m kvpipe.book` builds `_build/html` from the committed outputs. The extension copies
MathJax out of an installed package into the site, draws the tables of claims and of problems,
and switches the "edit" and "report" links on when `repository.url` is set in `_config.yml`.
"""

import argparse
import importlib.metadata
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from kvpipe import ledger

MATHJAX_PACKAGE = "sphinx-mathjax-offline"  # MathJax 3.2.2, the files of its npm release
MATHJAX_ENTRY = "mathjax/tex-svg.js"  # draws formulas as SVG: one file, no fonts to load
_MATHJAX_PARTS = ("tex-svg.js", "input/tex/extensions", "a11y", "sre")


def build(root: Path, *, quiet: bool = False) -> Path:
    """Build the book of the repository at `root`; a warning fails. Returns the page to open."""
    command = [
        sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", str(root),
        "--toc", str(root / "book/_toc.yml"), "--config", str(root / "_config.yml"),
        "-W", "-n", "--keep-going", *(["-q"] if quiet else []),
    ]  # fmt: skip
    subprocess.run(command, check=True, cwd=root)
    return root / "_build/html/index.html"


def find_root(start: Path) -> Path:
    """The repository that holds `start`: the nearest folder above it with a `_config.yml`."""
    for folder in (start, *start.parents):
        if (folder / "_config.yml").is_file() and (folder / "book/_toc.yml").is_file():
            return folder
    raise ValueError(
        f"no _config.yml with book/_toc.yml in {start} or above: run in the repository"
    )


def mathjax_folder() -> Path:
    """Where the installed package keeps the MathJax files."""
    try:
        package = importlib.metadata.distribution(MATHJAX_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ValueError(
            f"{MATHJAX_PACKAGE} is not installed: pip install -r requirements.txt"
        ) from None
    return Path(str(package.locate_file(f"{MATHJAX_PACKAGE}/static/mathjax")))


def copy_mathjax(source: Path, target: Path) -> None:
    """Copy the parts of MathJax that the pages load, now or on demand."""
    for part in _MATHJAX_PARTS:
        if (source / part).is_dir():
            shutil.copytree(source / part, target / part, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / part, target / part)


def link_repository(theme_options: dict[str, Any]) -> None:
    """Switch the repository's links on where its address is known."""
    is_known = bool(theme_options.get("repository_url"))
    for button in ("use_edit_page_button", "use_issues_button", "use_repository_button"):
        theme_options[button] = is_known


def problem_table(folder: Path, link_to: str) -> str:
    """The practice problems by chapter, from the front matter of each `problem.md`."""
    matters = {path.parent.name: _front_matter(path) for path in folder.glob("*/problem.md")}
    lines = ["| chapter | problem | level | minutes |", "|---:|---|---|---:|"]
    for slug, about in sorted(matters.items(), key=lambda m: (m[1]["chapter"], m[1]["order"])):
        title = f"[{about['title']}]({link_to}/{slug}/problem.md)"
        lines.append(
            f"| {about['chapter']} | {title} | {about['difficulty']} | {about['minutes']} |"
        )
    return "\n".join(lines)


def _front_matter(path: Path) -> dict[str, Any]:
    """The metadata between the two `---` lines at the top of a page."""
    return yaml.safe_load(path.read_text(encoding="utf-8").split("---", 2)[1])


def _table_directive(to_markdown: Callable[[Path, str], str]) -> type:
    """A Sphinx directive with one argument, a path relative to the page, that becomes a table."""
    from sphinx.util.docutils import SphinxDirective

    class Table(SphinxDirective):
        required_arguments = 1

        def run(self) -> list[Any]:
            self.env.note_reread()
            path = Path(self.env.relfn2path(self.arguments[0])[1])
            return self.parse_text_to_nodes(to_markdown(path, self.arguments[0]))

    return Table


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this: the module is an extension."""
    app.config.mathjax_path = MATHJAX_ENTRY
    app.connect("config-inited", lambda _, config: link_repository(config.html_theme_options))
    app.connect("build-finished", _add_mathjax)
    app.add_directive("problems", _table_directive(problem_table))
    app.add_directive(
        "ledger", _table_directive(lambda path, _: ledger.to_markdown(ledger.read(path)))
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _add_mathjax(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        copy_mathjax(mathjax_folder(), Path(app.outdir) / "_static/mathjax")


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m kvpipe.book`: build, then say where to look."""
    parser = argparse.ArgumentParser(prog="python -m kvpipe.book", description=main.__doc__)
    parser.add_argument("--quiet", action="store_true", help="print warnings and the result only")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        page = build(find_root(Path.cwd()), quiet=options.quiet)
    except ValueError as mistake:
        print(mistake, file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as failure:
        print("The book was not built: see the warnings above.", file=sys.stderr)
        return failure.returncode
    print(f"The book is built ({time.perf_counter() - started:.0f} s). Open {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
