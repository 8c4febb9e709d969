"""The Sphinx extension of the book: no request to other hosts, tables made from data, links.

It copies MathJax out of an installed package into the site, draws the tables of claims and of
problems, and switches the "edit" and "report" links on when `_config.yml` sets `repository.url`.
"""

import importlib.metadata
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from kvpipe import ledger

MATHJAX_PACKAGE = "sphinx-mathjax-offline"  # MathJax 3.2.2, the files of its npm release
MATHJAX_ENTRY = "mathjax/tex-svg.js"  # draws formulas as SVG: one file, no fonts to load
_MATHJAX_PARTS = ("tex-svg.js", "input/tex/extensions", "a11y", "sre")


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
