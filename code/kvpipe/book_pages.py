"""The Sphinx extension of the book: no request to other hosts, pages made from data, links.

It copies MathJax out of an installed package into the site, draws the ledger and the table of
problems, heads each problem with what its front matter says, lists the papers by author and year,
and switches the "edit" and "report" links on when `_config.yml` sets `repository.url`.
"""

import importlib.metadata
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pybtex.plugin
import yaml
from pybtex.database import Entry, Person
from pybtex.richtext import Text
from pybtex.style.formatting.unsrt import Style as Unsorted
from pybtex.style.labels import BaseLabelStyle
from pybtex.style.template import FieldIsMissing, node, sentence

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


def problem_order(folder: Path) -> dict[str, dict[str, Any]]:
    """Front matter of each problem below `folder` by its slug, in the order of the book."""
    matters = {path.parent.name: _front_matter(path) for path in folder.glob("*/problem.md")}
    return dict(sorted(matters.items(), key=lambda m: (m[1]["chapter"], m[1]["order"])))


def _front_matter(path: Path) -> dict[str, Any]:
    """The metadata between the two `---` lines at the top of a page."""
    return yaml.safe_load(path.read_text(encoding="utf-8").split("---", 2)[1])


def problem_table(folder: Path, link_to: str) -> str:
    """The practice problems by chapter, from the front matter of each `problem.md`."""
    lines = ["| chapter | problem | level | minutes |", "|---:|---|---|---:|"]
    for slug, about in problem_order(folder).items():
        title = f"[{about['title']}]({link_to}/{slug}/problem.md)"
        lines.append(
            f"| {about['chapter']} | {title} | {about['difficulty']} | {about['minutes']} |"
        )
    return "\n".join(lines)


def head_problem(text: str, slug: str, pages: Sequence[str]) -> str:
    """A problem's page with its level, minutes, section and first command below the title.

    The section is a link where its chapter is among the `pages` of the book; a section that its
    chapter does not have is a warning of the build.
    """
    about = yaml.safe_load(text.split("---", 2)[1])
    facts = f"{about['difficulty'].capitalize()} · {about['minutes']} minutes"
    number, _, section = about["section"].removeprefix("Chapter ").partition(", ")
    chapter = next((page for page in pages if page.startswith(f"notebooks/0{number}_")), None)
    where = about["section"]
    if chapter:
        anchor = re.sub(r"[^\w\- ]", "", section.lower()).replace(" ", "-")
        where = f"[{where}](../../../{chapter}.ipynb#{anchor})"
    head = (
        f":::{{container}} kv-about\n{facts} · {where}\n:::\n\n"
        f"```console\n$ python practice/judge.py start {slug}\n```\n"
    )
    return re.sub(r"^# .*\n", lambda title: f"{title[0]}\n{head}", text, count=1, flags=re.M)


def _head_problems(app: Any, page: str, source: list[str]) -> None:
    if match := re.fullmatch(r"practice/problems/([^/]+)/problem", page):
        source[0] = head_problem(source[0], match[1], sorted(app.env.found_docs))


def _is_rest(person: Person) -> bool:
    """Whether this is the `others` of "and others"."""
    return str(person) == "others"


class AuthorYearLabels(BaseLabelStyle):
    """Labels of the list of papers, the same words that the text cites: Vaswani et al., 2017."""

    def format_labels(self, entries: Sequence[Entry]) -> Iterator[str]:
        labels = [self.label(entry) for entry in entries]
        if repeated := sorted({label for label in labels if labels.count(label) > 1}):
            raise ValueError(
                f"references.bib: {'; '.join(repeated)} names two papers: tell them apart by a "
                "letter after the year, as in year = {2023a}"
            )
        return iter(labels)

    def sorting_key(self, entry: Entry) -> tuple[str, str]:
        """Papers stand in the order of their labels, as a reader looks them up."""
        return self.label(entry).casefold(), entry.key

    def label(self, entry: Entry) -> str:
        """Last names, at most two, and the year."""
        persons = entry.persons["author"]
        if len(persons) == 2 and _is_rest(persons[1]):
            raise ValueError(f"{entry.key}: name two authors or more before `and others`")
        last = [str(Text.from_latex(" ".join(p.prelast_names + p.last_names))) for p in persons]
        names = f"{last[0]} et al." if len(last) > 2 else " and ".join(last)
        return f"{names}, {entry.fields['year']}"


@node
def _authors(children: Sequence[Any], data: dict[str, Any]) -> Text:
    """All authors that an entry names; `and others` becomes "et al."."""
    style, persons = data["style"], data["entry"].persons.get("author")
    if not persons:
        raise FieldIsMissing("author", data["entry"])
    names = [style.format_name(p).format_data(data) for p in persons if not _is_rest(p)]
    if len(names) < len(persons):
        return Text(", ").join([*names, "et al."])
    return Text(", ").join([*names[:-2], Text(" and ").join(names[-2:])])


class AuthorYear(Unsorted):
    """The list of papers, by author and year."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.label_style = AuthorYearLabels()
        self.format_labels = self.label_style.format_labels
        self.sort = lambda entries: sorted(entries, key=self.label_style.sorting_key)

    def format_names(self, role: str, as_sentence: bool = True) -> Any:
        if role != "author":
            return super().format_names(role, as_sentence)
        return sentence[_authors] if as_sentence else _authors


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
    app.connect("source-read", _head_problems)
    pybtex.plugin.register_plugin("pybtex.style.formatting", "author_year", AuthorYear)
    app.add_directive("problems", _table_directive(problem_table))
    app.add_directive(
        "ledger", _table_directive(lambda path, _: ledger.to_markdown(ledger.read(path)))
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _add_mathjax(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        copy_mathjax(mathjax_folder(), Path(app.outdir) / "_static/mathjax")
