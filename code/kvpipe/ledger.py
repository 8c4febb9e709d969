"""The ledger: each claim the book builds on, our value, the test that computes it, and a verdict.

`book/ledger.yml` is the data; the Sphinx directive `{ledger}` draws it as a table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

VERDICTS = {
    "reproduced": "our value agrees with the claim, within the stated tolerance",
    "contradicted": "our value differs from the claim; the note says how and why",
    "needs hardware": "the claim can be checked only on hardware that this project does not have",
    "not precise": "the claim does not say enough (model, sizes, metric) to be checked",
}


@dataclass(frozen=True)
class Entry:
    """One claim with its verdict."""

    id: str
    chapter: int
    claim: str  # in our own words
    source: str  # key in references.bib
    verdict: str
    ours: str  # our value, or what is missing to have one
    test: str = ""  # path::name of the test that computes it

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.id}: verdict {self.verdict!r} is none of {list(VERDICTS)}")
        if self.verdict in ("reproduced", "contradicted") and not self.test:
            raise ValueError(f"{self.id}: {self.verdict} without the test that computes it")


def read(path: Path) -> list[Entry]:
    """The entries of a ledger file, in chapter order; a wrong or missing field is named."""
    rows = yaml.safe_load(path.read_text(encoding="utf-8")) or []
    entries = [_entry(row) for row in rows]
    repeated = {entry.id for entry in entries if [e.id for e in entries].count(entry.id) > 1}
    if repeated:
        raise ValueError(f"{path.name}: repeated id {', '.join(sorted(repeated))}")
    return sorted(entries, key=lambda entry: entry.chapter)


def _entry(row: Mapping[str, Any]) -> Entry:
    known = {field.name for field in fields(Entry)}
    unknown = row.keys() - known
    missing = known - {"test"} - row.keys()
    if unknown or missing:
        raise ValueError(
            f"{row.get('id', row)}: unknown fields {sorted(unknown)}, missing {sorted(missing)}"
        )
    return Entry(**row)


def to_markdown(entries: Sequence[Entry]) -> str:
    """The table of the ledger page, and a count of verdicts above it."""
    if not entries:
        return "No claim has been checked yet. Each chapter adds its own."
    counts = {name: sum(entry.verdict == name for entry in entries) for name in VERDICTS}
    summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    lines = [f"{len(entries)} claims: {summary}.", ""]
    lines += ["| chapter | claim | source | our value | verdict | computed by |", "|" + "---|" * 6]
    lines += [_row(entry) for entry in entries]
    return "\n".join(lines)


def _row(entry: Entry) -> str:
    test = f"`{entry.test}`" if entry.test else "–"
    cells = [
        str(entry.chapter), entry.claim, f"{{cite}}`{entry.source}`", entry.ours,
        f"**{entry.verdict}**", test,
    ]  # fmt: skip
    return "| " + " | ".join(" ".join(c.split()).replace("|", r"\|") for c in cells) + " |"


def directive() -> type:
    """The Sphinx directive class; built on demand, so that Sphinx is needed only for the book."""
    from sphinx.util.docutils import SphinxDirective

    class Ledger(SphinxDirective):
        required_arguments = 1  # the data file, relative to the page

        def run(self) -> list[Any]:
            name, full = self.env.relfn2path(self.arguments[0])
            self.env.note_dependency(name)
            return self.parse_text_to_nodes(to_markdown(read(Path(full))))

    return Ledger
