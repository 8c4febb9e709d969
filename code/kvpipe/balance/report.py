"""The planner's answers as tables for a terminal. Chapter 4: data in, text out."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from kvpipe.balance.comparison import Alternative, Study
from kvpipe.balance.planfile import Plan
from kvpipe.balance.splits import megatron_layout


def show_study(study: Study, console: Console) -> None:
    """Stages before and after, a reason per conversion, gain, alternatives, warnings."""
    plan = study.plan
    console.print(
        f"{plan.model}: {len(plan.kv_source)} layers over {len(plan.loads_before)} stages, "
        f"{plan.n_tokens} tokens, {plan.schedule} with {plan.n_microbatches} micro-batches; "
        f"causal scores: {plan.conventions.causal}. Layers and stages count from 0."
    )
    console.print(_stages(plan))
    if plan.conversions:
        console.print(_conversions(plan))
    console.print(f"Search ended: {study.stopped}.")
    _show_effect(study, console)
    console.print(ranking(study.alternatives, "Alternatives, the fastest first"))
    for alternative in study.alternatives:
        if alternative.name == "uneven split" and not alternative.note:
            console.print(f"Megatron-LM layout of the uneven split: "
                          f"{megatron_layout(alternative.sizes)}", highlight=False)  # fmt: skip
    for warning in study.warnings:
        console.print(f"[bold]Warning:[/bold] {warning}.", highlight=False)


def ranking(found: Sequence[Alternative], title: str) -> Table:
    """One row per way to balance, with its stages, FIR, time and both kinds of MFU."""
    columns = ("layers per stage", "shared", "FIR", "time", "largest stage", "MFU recomputed")
    table = _table(title, ("", "left"), *columns, "MFU fixed")
    notes = sorted({row.note for row in found if row.note})
    for row in found:
        effect = row.change
        changes = (effect.time, effect.limit, effect.mfu_recomputed, effect.mfu_fixed)
        table.add_row(
            f"{row.name} ({notes.index(row.note) + 1})" if row.note else row.name,
            _runs(row.sizes),
            _layers(row.shared),
            f"{row.fir:.4f}",
            *(f"{part:+.2%}" for part in changes),
        )
    table.caption = "\n".join(f"({i}) {note}" for i, note in enumerate(notes, 1)) or None
    table.caption_justify = "left"
    return table


def _stages(plan: Plan) -> Table:
    table = _table(
        "Stages", "stage", "layers", "shared", f"before ({plan.unit})", "after", "change"
    )
    owner = [s for size, s in zip(plan.sizes, plan.placement, strict=True) for s in [s] * size]
    for stage, (before, after) in enumerate(zip(plan.loads_before, plan.loads_after, strict=True)):
        layers = [layer for layer, s in enumerate(owner) if s == stage]
        shared = [layer for layer in layers if layer in plan.shared]
        change = f"{after / before - 1:+.2%}" if before else ""
        table.add_row(
            str(stage), _layers(layers), _layers(shared), f"{before:.4g}", f"{after:.4g}", change
        )
    table.add_section()
    table.add_row("FIR", "", "", f"{plan.fir_before:.4f}", f"{plan.fir_after:.4f}", "")
    return table


def _conversions(plan: Plan) -> Table:
    table = _table("Conversions", "layer", "reads layer", "stage", "FIR after", ("reason", "left"))
    for row in plan.conversions:
        table.add_row(str(row.layer), str(row.source), str(row.stage), f"{row.fir:.4f}", row.reason)
    return table


def _show_effect(study: Study, console: Console) -> None:
    effect = study.change
    console.print(
        f"Predicted: time {effect.time:+.2%} ({effect.limit:+.2%} with ever more micro-batches), "
        f"MFU {effect.mfu_recomputed:+.2%} with model FLOPs recomputed, {effect.mfu_fixed:+.2%} "
        f"with model FLOPs fixed; cache {study.cache_bytes_saved:,} bytes per token less (16 bits)."
    )
    for border in study.borders:
        if border.kv_bytes:
            console.print(
                f"After chunk {border.chunk} one sequence sends {border.hidden_bytes:,} bytes of "
                f"hidden states and {border.kv_bytes:,} of keys and values, {border.ratio:.1f} "
                "times as much."
            )
    if study.head:
        console.print(
            f"Closed form: {study.head.conversions:.2f} conversions cancel the head; the last "
            f"stage has {study.head.available}."
        )


def _table(title: str, *columns: str | tuple[str, str]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column in columns:
        name, justify = (column, "right") if isinstance(column, str) else column
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    return table


def _layers(layers: Sequence[int]) -> str:
    """28-31 for 28, 29, 30, 31; - for none."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join(texts) or "-"


def _runs(sizes: Sequence[int]) -> str:
    """8 x 4 for eight stages of 4; 5,5,4,2 where they differ."""
    return f"{len(sizes)} x {sizes[0]}" if len(set(sizes)) == 1 else ",".join(map(str, sizes))
