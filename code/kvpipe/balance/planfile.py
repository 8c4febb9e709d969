"""A sharing plan as data and as a file: versioned, validated, written atomically. Chapter 4.

The file is what chapter 5's converter reads: which layer reads whose keys and values, for which
model, and why.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from kvpipe.balance.architecture import architecture_of, read_object
from kvpipe.balance.costs import Conventions, number
from kvpipe.balance.stages import fir
from kvpipe.config import Config

FORMAT, VERSION = "kvpipe-sharing-plan", 1


@dataclass(frozen=True)
class Conversion:
    """One step of a plan, in the order of conversion."""

    layer: int
    source: int  # whose keys and values it will read
    stage: int
    largest: float  # load of the largest stage after this step
    fir: float  # after this step
    reason: str


@dataclass(frozen=True)
class Plan:
    """Which layers read whose keys and values, and what that does to the stages."""

    model: str
    fingerprint: str  # of the model's sizes; empty where only costs were given
    n_tokens: int
    conventions: Conventions
    unit: str  # of all loads
    method: str
    same_stage: bool  # only sources on the layer's own stage
    sizes: tuple[int, ...]  # layers per chunk
    placement: tuple[int, ...]  # chunk -> stage
    kv_source: tuple[int, ...]  # layer -> the layer whose keys and values it reads
    loads_before: tuple[float, ...]  # per stage
    loads_after: tuple[float, ...]
    conversions: tuple[Conversion, ...]
    schedule: str
    n_microbatches: int
    time_change: float  # predicted, of an iteration; -0.1 is 10 % less
    mfu_recomputed_change: float
    mfu_fixed_change: float

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def shared(self) -> tuple[int, ...]:
        """The converted layers, in model order."""
        return tuple(layer for layer, source in enumerate(self.kv_source) if source != layer)

    @property
    def fir_before(self) -> float:
        return fir(self.loads_before)

    @property
    def fir_after(self) -> float:
        return fir(self.loads_after)

    def check_model(self, config: Config) -> None:
        """Raises ValueError unless the plan was made for a model of exactly these sizes."""
        if len(self.kv_source) != config.n_layers:
            raise ValueError(
                f"the plan is for {len(self.kv_source)} layers ({self.model}), the model has "
                f"{config.n_layers}"
            )
        found = architecture_of(config).fingerprint
        if self.fingerprint and self.fingerprint != found:
            raise ValueError(
                f"the plan was made for {self.model} (sizes {self.fingerprint}), the model's sizes "
                f"are {found}; make a plan from this model's config.json"
            )


def to_dict(plan: Plan) -> dict:
    """The content of a plan file."""
    return {"format": FORMAT, "version": VERSION, **asdict(plan)}


def from_dict(content: Mapping) -> Plan:
    """A validated plan; ValueError says what is wrong with the content."""
    if content.get("format") != FORMAT:
        raise ValueError(f"format is {content.get('format')!r}, expected {FORMAT!r}")
    if content.get("version") != VERSION:
        raise ValueError(
            f"the plan has version {content.get('version')!r}; this program reads {VERSION}"
        )
    rest = {name: value for name, value in content.items() if name not in ("format", "version")}
    _same_fields(rest, Plan, "the plan")
    try:
        _same_fields(rest["conventions"], Conventions, "conventions")
        for row in rest["conversions"]:
            _same_fields(row, Conversion, "a conversion")
        rest["conventions"] = Conventions(**rest["conventions"])
        rest["conversions"] = tuple(Conversion(**row) for row in rest["conversions"])
        lists = ("sizes", "placement", "kv_source", "loads_before", "loads_after")
        return Plan(**rest | {name: tuple(rest[name]) for name in lists})
    except TypeError as error:
        raise ValueError(f"the plan has a value of the wrong type ({error})") from error


def save(plan: Plan, path: str | Path) -> None:
    """Write the plan; another reader sees the old file or the new one, never half of one."""
    text = json.dumps(to_dict(plan), indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"))


def load(path: str | Path) -> Plan:
    """Read and validate a plan file. Raises ValueError for whatever is wrong with it."""
    try:
        return from_dict(read_object(Path(path)))
    except ValueError as error:
        raise ValueError(f"{path} is no usable plan: {error}") from error


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a new file beside `path`, then put it in its place in one step."""
    path = Path(path)
    check_folder(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    try:
        write(Path(name))
        os.replace(name, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


def check_folder(path: Path) -> None:
    """Raises ValueError where no file can be put at `path`."""
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is not a folder; nothing can be written there")
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file")


def _same_fields(row: object, kind: type, what: str) -> None:
    if not isinstance(row, Mapping):
        raise ValueError(f"{what} is {row!r}, expected an object")
    names = {field.name for field in fields(kind)}
    if row.keys() != names:
        missing, unknown = sorted(names - row.keys()), sorted(row.keys() - names)
        raise ValueError(f"{what} misses {missing} and has unknown {unknown}")


def _validate(plan: Plan) -> None:
    n = len(plan.kv_source)
    counts = (*plan.sizes, *plan.placement, *plan.kv_source, plan.n_tokens, plan.n_microbatches)
    _claim(all(type(c) is int and c >= 0 for c in counts), "a count is no whole number")
    _claim(min(plan.sizes, default=0) >= 1, f"sizes {plan.sizes} hold an empty stage")
    _claim(sum(plan.sizes) == n, f"{sum(plan.sizes)} layers in the stages, {n} in kv_source")
    _claim(len(plan.sizes) == len(plan.placement), "one stage per chunk is needed in placement")
    n_stages = max(plan.placement) + 1
    _claim(set(plan.placement) == set(range(n_stages)), f"placement {plan.placement} skips a stage")
    for layer, source in enumerate(plan.kv_source):
        _claim(
            source <= layer and plan.kv_source[source] == source,
            f"layer {layer} reads layer {source}, which must be an earlier layer that computes "
            "its own keys and values",
        )
    _validate_sources(plan)
    for name in ("loads_before", "loads_after"):
        loads = getattr(plan, name)
        _claim(len(loads) == n_stages, f"{name} has {len(loads)} entries for {n_stages} stages")
        for stage, load in enumerate(loads):
            number(load, f"{name} of stage {stage}")
    pairs = zip(plan.loads_before, plan.loads_after, strict=True)
    _claim(all(a <= b * (1 + 1e-9) for b, a in pairs), "a stage got heavier by sharing")


def _validate_sources(plan: Plan) -> None:
    told = {row.layer: row.source for row in plan.conversions}
    meant = {layer: plan.kv_source[layer] for layer in plan.shared}
    _claim(
        told == meant and len(plan.conversions) == len(meant),
        f"the conversions list {told}, kv_source says {meant}",
    )
    chunks = [stage for size, stage in zip(plan.sizes, plan.placement, strict=True)
              for stage in [stage] * size]  # fmt: skip
    if plan.same_stage:
        for layer, source in meant.items():
            _claim(
                chunks[layer] == chunks[source],
                f"layer {layer} on stage {chunks[layer]} reads layer {source} on stage "
                f"{chunks[source]}, though only sources of the same stage are allowed",
            )
    for row in plan.conversions:
        _claim(row.stage == chunks[row.layer], f"layer {row.layer} is not on stage {row.stage}")


def _claim(claim: bool, message: str) -> None:
    if not claim:
        raise ValueError(message)
