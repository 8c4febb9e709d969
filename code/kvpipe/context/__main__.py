"""Answer a long prompt over ranks that `torchrun` started, on one machine or several (chapter 3).

One machine, two processes; no port and no name has to be found:

    torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node=2 \\
        -m kvpipe.context --file report.txt --prompt "What does the report ask for?"

Every rank loads the whole checkpoint and computes its part of the prompt; the keys and values of
the prompt lie on all ranks, a part on each. `--backend nccl` uses one GPU per process.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from kvpipe import comm
from kvpipe.checkpoints import DEFAULT, fetch, load_stage
from kvpipe.context.attend import METHODS
from kvpipe.context.circle import Ring
from kvpipe.context.partitions import PARTITIONS
from kvpipe.context.prefill import ring_generate
from kvpipe.pipeline.agreement import gather


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one rank. A user's mistake ends it with one line, not with a traceback."""
    options = _parser().parse_args(arguments)
    try:
        group = comm.join(options.backend, options.timeout)
        torch.set_num_threads(options.threads)
        run(group, options)
    except (ValueError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def run(group: dist.ProcessGroup, options: argparse.Namespace) -> None:
    """Prefill over all ranks, decode, and let rank 0 print the answer."""
    folder, is_first = fetch(options.model), group.rank() == 0
    device = f"cuda:{torch.cuda.current_device()}" if options.backend == "nccl" else "cpu"
    model = load_stage(folder, device=device, dtype=getattr(torch, options.dtype))
    tokenizer = _tokenizer(folder) if is_first else None
    ids, stop = gather(group, _question(tokenizer, options) if is_first else None)[0]
    ring, start = Ring(group, device), time.perf_counter()
    [new] = ring_generate(
        ring,
        model,
        torch.tensor([ids], device=device),
        options.max_new_tokens,
        layout=options.layout,
        method=options.method,
        temperature=options.temperature,
        seed=options.seed,
        stop_tokens={stop},
    )
    seconds = time.perf_counter() - start
    _say(f"rank {ring.rank}: sent {ring.sent_bytes[ring.rank] / 1e6:.1f} MB")
    if is_first:
        _say(tokenizer.decode(new, skip_special_tokens=True))
        _say(f"{len(ids)} prompt tokens on {ring.n_ranks} ranks, {len(new)} new, {seconds:.1f} s")


def _question(tokenizer: Any, options: argparse.Namespace) -> tuple[list[int], int]:
    """The prompt in the chat template, after the text of the file, and the token that ends."""
    text = options.file.read_text(encoding="utf-8") + "\n\n" if options.file else ""
    messages = [{"role": "user", "content": text + options.prompt}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return ids, tokenizer.eos_token_id


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchrun ... -m kvpipe.context", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--model", default=DEFAULT, help="name, or folder of a checkpoint")
    add("--prompt", required=True)
    add("--file", type=Path, help="a text file that is put before the prompt")
    add("--layout", choices=PARTITIONS, default="zigzag", help="who takes which tokens")
    add("--method", choices=METHODS, default="ring", help="how attention gets the others' keys")
    add("--max-new-tokens", type=int, default=64)
    add("--temperature", type=float, default=0.0)
    add("--seed", type=int)
    add("--dtype", choices=("float32", "bfloat16", "float64"), default="float32")
    add("--backend", choices=("gloo", "nccl"), default="gloo")
    add("--threads", type=int, default=1, help="of torch, per rank")
    add("--timeout", type=float, default=600.0, help="of one wait, in seconds")
    return parser


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
