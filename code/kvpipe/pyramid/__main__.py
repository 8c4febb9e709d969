"""`python -m kvpipe.pyramid`: needles under every method, the numbers into a file. Chapter 6."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvpipe.checkpoints import DEFAULT, load
from kvpipe.pyramid.experiments import needles, save, standard_methods
from kvpipe.pyramid.methods import Full


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m kvpipe.pyramid", description=__doc__)
    add = parser.add_argument
    add("--model", default=DEFAULT, help="default model's name, a folder or a hub name")
    add("--lengths", type=int, nargs="+", default=[1024], help="tokens of the texts")
    add("--budgets", type=int, nargs="+", default=[32, 64, 128, 256], help="tokens per layer")
    add("--texts", type=int, default=4, help="texts per length; each is read once per depth")
    add("--depths", type=float, nargs="+", default=[0.0, 0.25, 0.5, 0.75, 1.0])
    add("--seed", type=int, default=0)
    add("--out", type=Path, default=Path("_build/needles.json"), help="where the numbers go")
    options = parser.parse_args(arguments)
    model, tokenizer = load(options.model)
    methods = {
        (name, budget): method
        for budget in options.budgets
        for name, method in standard_methods(budget).items()
    }
    methods[("full", 0)] = Full()
    results = []
    for n in options.lengths:
        for knows_question in (True, False):
            found = needles(
                model,
                tokenizer,
                {f"{name}@{budget}": method for (name, budget), method in methods.items()},
                n,
                knows_question=knows_question,
                depths=options.depths,
                n_texts=options.texts,
                seed=options.seed,
            )
            results += found
            for row in found:
                print(f"{n} {knows_question} {row.method} {row.n_found}/{row.n_asked}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python -m kvpipe.pyramid", *arguments])
    save(results, options.out, {"command": command, "model": options.model})


if __name__ == "__main__":
    main()
