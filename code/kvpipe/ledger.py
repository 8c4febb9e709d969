"""The ledger: each claim the book builds on, our value, the test that computes it, and a verdict.

`book/ledger.yml` is the data; the book's directive `{ledger}` draws a card for each claim.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

VERDICTS = {
    "reproduced": "Our value agrees with the claim, within the tolerance that the test states.",
    "contradicted": "Our value differs. The card says by how much; the chapter says why.",
    "needs hardware": "Only hardware that this project does not have could check the claim. The "
    "card says what was checked instead, often the arithmetic behind it.",
    "not precise": "The claim leaves out what a check would need: the model, the sizes, or the "
    "definition of the metric.",
}


@dataclass(frozen=True)
class Entry:
    """One claim with its verdict."""

    id: str
    chapter: int
    claim: str  # in our own words
    verdict: str
    ours: str  # our value, or what is missing to have one
    source: str = ""  # key in references.bib; empty for what is repeated without a paper
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
    unknown, missing = row.keys() - known, known - {"source", "test"} - row.keys()
    if unknown or missing:
        raise ValueError(
            f"{row.get('id', row)}: unknown fields {sorted(unknown)}, missing {sorted(missing)}"
        )
    return Entry(**row)


def to_markdown(entries: Sequence[Entry]) -> str:
    """What the verdicts mean, how often each was given, and a card for each claim."""
    counts = Counter(entry.verdict for entry in entries)
    lines = ["| verdict | claims | meaning |", "|---|---:|---|"]
    lines += [f"| {name} | {counts[name]} | {meaning} |" for name, meaning in VERDICTS.items()]
    if not entries:
        return "\n".join([*lines, "", "No claim has been checked yet."])
    for chapter, group in groupby(entries, key=lambda entry: entry.chapter):
        lines += ["", f":::{{rubric}} Chapter {chapter}\n:heading-level: 2\n:::"]
        lines += [_card(entry) for entry in group]
    return "\n".join(lines)


def _card(entry: Entry) -> str:
    """A claim with its source, our value, the verdict and the name of the test."""
    source = f"{{cite}}`{entry.source}`" if entry.source else "[often repeated, no paper]"
    test = f" · computed by `{entry.test.split('::')[-1]}`" if entry.test else ""
    verdict = entry.verdict.replace(" ", "-")
    parts = [
        f"::::{{container}} kv-claim\n:name: claim-{entry.id}",
        f"{_on_one_line(entry.claim)} {source}",
        f"**Here:** {_on_one_line(entry.ours)}",
        f":::{{container}} kv-verdict kv-{verdict}\n**{entry.verdict}**{test}\n:::",
        "::::\n",
    ]
    return "\n\n".join(parts)


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
