"""The ledger: each claim the book builds on, our value, the test that computes it, and a verdict.

`book/ledger.yml` is the data; the book's directive `{ledger}` draws it as a table.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

VERDICTS = {
    "reproduced": "Our value agrees with the claim, within the tolerance that the test states.",
    "contradicted": "Our value differs. The row says by how much; the chapter says why.",
    "needs hardware": "Only hardware that this project does not have could check the claim. The "
    "row says what was checked instead, often the arithmetic behind it.",
    "not precise": "The claim leaves out what a check would need: the model, the sizes, or the "
    "definition of the metric.",
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
    entries = [_entry(row) for row in yaml.safe_load(path.read_text(encoding="utf-8")) or []]
    repeated = [name for name, count in Counter(entry.id for entry in entries).items() if count > 1]
    if repeated:
        raise ValueError(f"{path.name}: repeated id {', '.join(repeated)}")
    return sorted(entries, key=lambda entry: entry.chapter)


def _entry(row: Mapping[str, Any]) -> Entry:
    known = {field.name for field in fields(Entry)}
    unknown, missing = row.keys() - known, known - {"test"} - row.keys()
    if unknown or missing:
        raise ValueError(
            f"{row.get('id', row)}: unknown fields {sorted(unknown)}, missing {sorted(missing)}"
        )
    return Entry(**row)


def to_markdown(entries: Sequence[Entry]) -> str:
    """What the verdicts mean, how often each was given, and the table of claims."""
    counts = Counter(entry.verdict for entry in entries)
    lines = ["| verdict | claims | meaning |", "|---|---:|---|"]
    lines += [f"| {name} | {counts[name]} | {meaning} |" for name, meaning in VERDICTS.items()]
    if not entries:
        return "\n".join([*lines, "", "No claim has been checked yet."])
    lines += ["", "| chapter | claim | our value | verdict | computed by |", "|" + "---|" * 5]
    return "\n".join([*lines, *(_row(entry) for entry in entries)])


def _row(entry: Entry) -> str:
    claim = f"{entry.claim} {{cite}}`{entry.source}`"
    test = f"`{entry.test}`" if entry.test else "–"
    cells = [str(entry.chapter), claim, entry.ours, entry.verdict, test]
    return "| " + " | ".join(" ".join(c.split()).replace("|", r"\|") for c in cells) + " |"
