"""Plan for a model from the command line (chapter 4).

    python -m kvpipe.balance plan --config llama2-7b --stages 8 --seq 8192
    python -m kvpipe.balance compare --config path/to/config.json --stages 4 --seq 4096
    python -m kvpipe.balance sweep --config llama2-7b --stages 8 --seq 8192 --plot sweep.svg

`plan --out plan.json` writes the plan that chapter 5's converter reads. A user's mistake ends
with one line and exit code 2, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from kvpipe.balance import planfile, report
from kvpipe.balance.comparison import Alternative, Study, compare, study, sweep
from kvpipe.balance.costs import CAUSAL, EMBEDDING, HEAD, Conventions, ModelCosts, model_costs
from kvpipe.balance.placements import OBJECTIVES, check_budget
from kvpipe.balance.planner import METHODS, Request
from kvpipe.balance.signal import read_times
from kvpipe.balance.splits import megatron_layout, torchtitan_stages
from kvpipe.pipeline.schedules import BUILDERS

TRAINING = [name for name in BUILDERS if name != "round-robin"]
Draw = Callable[[], Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 if it went well, 2 for a user's mistake."""
    options = _parser().parse_args(arguments)
    try:
        costs, request = _costs(options), _request(options)
        options.run(costs, request, options)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    return 0


def plan(costs: ModelCosts, request: Request, options: argparse.Namespace) -> None:
    """One plan: stages, reasons, gain, alternatives, warnings."""
    found = study(costs, request)

    def draw() -> Any:
        from kvpipe import plots_balance

        return plots_balance.stage_bars(
            {"before": found.plan.loads_before, "after": found.plan.loads_after},
            unit=found.plan.unit,
        )

    _write(options, draw, found)
    _print(options, study_dict(found), lambda console: report.show_study(found, console))


def compare_methods(costs: ModelCosts, request: Request, options: argparse.Namespace) -> None:
    """Every method with the same budget, each predicted on equal terms."""
    found = compare(costs, request)

    def draw() -> Any:
        from kvpipe import plots_balance

        return plots_balance.method_bars(found)

    _write(options, draw)
    rows = [asdict(row) for row in found]
    title = f"{costs.name}, {request.n_stages} stages: all methods"
    _print(options, rows, lambda console: console.print(report.ranking(found, title)))


def sweep_budgets(costs: ModelCosts, request: Request, options: argparse.Namespace) -> None:
    """FIR, time and MFU against the budget; by default the last k layers are converted."""
    n_layers = len(costs.layers)
    highest = request.budget if request.budget is not None else n_layers // 2
    check_budget(highest, n_layers)
    found = sweep(costs, request, range(highest + 1))

    def draw() -> Any:
        from kvpipe import plots_balance

        return plots_balance.budget_sweep(found)

    _write(options, draw)
    rows = [asdict(row) for row in found]
    title = f"{costs.name}, {request.n_stages} stages, method {request.method}"
    _print(options, rows, lambda console: console.print(report.ranking(found, title)))


def study_dict(found: Study) -> dict:
    """All of a study as JSON, with the exports of its uneven split."""
    content = asdict(found)
    content["plan"] = planfile.to_dict(found.plan)
    content |= {"fir_before": found.plan.fir_before, "fir_after": found.plan.fir_after}
    content["exports"] = [_exports(row) for row in found.alternatives if row.name == "uneven split"]
    return content


def _exports(row: Alternative) -> dict:
    return {
        "sizes": row.sizes,
        "megatron": megatron_layout(row.sizes),
        "torchtitan": torchtitan_stages(row.sizes),
    }


def _costs(options: argparse.Namespace) -> ModelCosts:
    conventions = Conventions(
        options.causal, options.embedding, options.head, options.backward, options.recompute
    )
    return model_costs(options.config, options.seq, conventions)


def _request(options: argparse.Namespace) -> Request:
    request = Request(
        n_stages=options.stages,
        method=options.method,
        objective=options.objective,
        budget=options.budget,
        epsilon=options.epsilon,
        alpha=options.alpha,
        same_stage=options.same_stage,
        sizes=tuple(options.layers) if options.layers else None,
        schedule=options.schedule,
        n_microbatches=options.microbatches,
        chunks_per_rank=options.chunks_per_rank,
        segments=options.segments,
    )
    if options.signal is None:
        return request
    times, saving, unit = read_times(options.signal)
    return replace(request, times=tuple(times), saving=saving, unit=unit)


def _write(options: argparse.Namespace, draw: Draw, found: Study | None = None) -> None:
    """Both files or none: what can go wrong does so before the first is put in its place."""
    for path in (options.plot, options.out):
        if path is not None:
            planfile.check_folder(path)
    if options.plot:
        planfile.write_atomically(options.plot, draw().figure.savefig)
    if found is not None and options.out:
        planfile.save(found.plan, options.out)


def _print(options: argparse.Namespace, content: object, show: Callable[[Console], object]) -> None:
    if options.json:
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        show(Console(width=None if sys.stdout.isatty() else 160))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kvpipe.balance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(required=True)
    runs = {"plan": plan, "compare": compare_methods, "sweep": sweep_budgets}
    for name, run in runs.items():
        command = commands.add_parser(name, help=run.__doc__)
        command.set_defaults(run=run, out=None)
        _add_model(command)
        _add_search(command, default="last" if name == "sweep" else "exact")
        command.add_argument("--json", action="store_true", help="print JSON, not tables")
        command.add_argument("--plot", type=Path, help="write a drawing, such as out.svg")
        if name == "plan":
            command.add_argument("--out", type=Path, help="write the plan file")
    return parser


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config", required=True, help="preset, config.json or its folder, or layer costs"
    )
    command.add_argument("--stages", type=int, required=True, help="P")
    command.add_argument("--seq", type=int, required=True, help="tokens per sequence")
    command.add_argument("--layers", type=int, nargs="+", help="of every chunk, in order")
    command.add_argument("--causal", choices=CAUSAL, default="half", help="how scores count")
    command.add_argument("--embedding", choices=EMBEDDING, default="lookup")
    command.add_argument("--head", choices=HEAD, default="matrix")
    command.add_argument("--backward", type=float, default=2.0, help="per forward FLOP")
    command.add_argument("--recompute", action="store_true", help="forward again in the backward")
    command.add_argument("--schedule", choices=TRAINING, default="1f1b")
    command.add_argument("--microbatches", type=int, default=32, help="M")
    command.add_argument("--chunks-per-rank", type=int)
    command.add_argument("--segments", type=int)
    command.add_argument("--signal", type=Path, help="times.json: measured stage times")


def _add_search(command: argparse.ArgumentParser, default: str) -> None:
    command.add_argument("--method", choices=METHODS, default=default)
    command.add_argument("--objective", choices=OBJECTIVES, default="largest")
    command.add_argument("--budget", type=int, help="layers; a quarter of the model by default")
    command.add_argument("--epsilon", type=float, help="tolerance of algorithm-1; 0.05 by default")
    command.add_argument("--alpha", type=float, help="nothing above this relative depth converts")
    command.add_argument(
        "--same-stage", action="store_true", help="only sources on the layer's own stage"
    )


if __name__ == "__main__":
    sys.exit(main())
