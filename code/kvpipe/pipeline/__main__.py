"""Train or decode over a pipeline that `torchrun` started, on one machine or several (chapter 2).

One machine, two processes; no port and no name has to be found:

    torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node=2 \
        -m kvpipe.pipeline decode --prompt "What is a pipeline?" --prompt "Name three colours."

Two machines, one process each: the same command on both, with the first machine's address.

    torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-id=pipe \
        --rdzv-endpoint=FIRST_MACHINE:29500 -m kvpipe.pipeline train --schedule 1f1b

Each machine needs the checkpoint (a rank reads only its own layers of it). Where a machine's name
does not resolve, set GLOO_SOCKET_IFNAME to its network device. `--backend nccl` uses one GPU per
process.
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
from torch import Tensor

from kvpipe import comm
from kvpipe.checkpoints import DEFAULT, fetch
from kvpipe.pipeline import jobs
from kvpipe.pipeline.batching import Request
from kvpipe.pipeline.decode import Sampling
from kvpipe.pipeline.measured import measured_timeline
from kvpipe.pipeline.schedules import BUILDERS, build, round_robin

TRAINING = [name for name in BUILDERS if name != "round-robin"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one rank. A user's mistake ends it with one line, not with a traceback."""
    options = _parser().parse_args(arguments)
    try:
        group = comm.join(options.backend, options.timeout)
        torch.set_num_threads(options.threads)
        is_gpu = options.backend == "nccl"
        options.device = f"cuda:{torch.cuda.current_device()}" if is_gpu else "cpu"
        options.dtype = getattr(torch, options.dtype)
        options.run(group, options)
    except (ValueError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def train(group: dist.ProcessGroup, options: argparse.Namespace) -> None:
    """Train on a text; the rank of the last chunk prints the loss of every step."""
    folder = fetch(options.model)
    schedule = build(
        options.schedule,
        group.size(),
        options.microbatches,
        chunks_per_rank=options.chunks_per_rank,
        segments=options.segments,
    )
    batches = _tell(group, lambda: _text_batches(folder, options))
    start = time.perf_counter()
    done = jobs.train(
        group,
        folder,
        schedule,
        batches,
        options.learning_rate,
        sizes=options.layers,
        device=options.device,
        dtype=options.dtype,
    )
    seconds = time.perf_counter() - start
    _say(f"rank {group.rank()}: {done.memory.owned_bytes / 1e6:.0f} MB of weights")
    for step, loss in enumerate(done.losses):
        _say(f"step {step}: loss {loss:.4f}")
    if done.losses:
        _say(f"{len(batches) * batches[0].numel() / seconds:.1f} tokens/s with {schedule.name}")


def decode(group: dist.ProcessGroup, options: argparse.Namespace) -> None:
    """Answer every prompt, each as a batch of its own; rank 0 prints the answers."""
    folder = fetch(options.model)
    batches = _tell(group, lambda: _requests(folder, options))
    sampling = Sampling(options.temperature, seed=options.seed)
    done = jobs.answer(
        group,
        folder,
        batches,
        min(options.in_flight, len(batches)),
        sampling,
        sizes=options.layers,
        device=options.device,
        dtype=options.dtype,
    )
    reports: list[Any] = [None] * group.size()
    dist.all_gather_object(reports, done.report, group=group)
    _say(f"rank {group.rank()}: {done.memory.owned_bytes / 1e6:.0f} MB of weights")
    if group.rank() == 0:
        timeline = measured_timeline(round_robin(group.size(), len(batches)), reports)
        for prompt, text in zip(options.prompt, _texts(folder, done.report.tokens), strict=True):
            _say(f"> {prompt}\n{text}")
        _say(f"{done.report.n_tokens / timeline.makespan:.1f} tokens/s")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchrun ... -m kvpipe.pipeline", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(required=True)
    for run in (train, decode):
        command = commands.add_parser(run.__name__, help=run.__doc__)
        command.set_defaults(run=run)
        command.add_argument("--model", default=DEFAULT, help="name, or folder of a checkpoint")
        command.add_argument("--layers", type=int, nargs="+", help="of every chunk, in order")
        command.add_argument(
            "--dtype", choices=("float32", "bfloat16", "float64"), default="float32"
        )
        command.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
        command.add_argument("--threads", type=int, default=1, help="of torch, per rank")
        command.add_argument("--timeout", type=float, default=600.0, help="of one wait, in seconds")
        _ADD[run](command)
    return parser


def _add_train(command: argparse.ArgumentParser) -> None:
    command.add_argument("--schedule", choices=TRAINING, default="1f1b")
    command.add_argument("--microbatches", type=int, default=4, help="M")
    command.add_argument("--chunks-per-rank", type=int, help="v, for the interleaved schedules")
    command.add_argument("--segments", type=int, help="k, for seq1f1b")
    command.add_argument("--rows", type=int, default=8, help="sequences per batch")
    command.add_argument("--tokens", type=int, default=64, help="per sequence")
    command.add_argument("--steps", type=int, default=2)
    command.add_argument("--learning-rate", type=float, default=1e-5)
    command.add_argument("--text", type=Path, help="a text file; by default Python's own help")


def _add_decode(command: argparse.ArgumentParser) -> None:
    command.add_argument("--prompt", action="append", required=True, help="may be repeated")
    command.add_argument("--in-flight", type=int, default=2, help="prompts decoded at once")
    command.add_argument("--max-new-tokens", type=int, default=32)
    command.add_argument("--temperature", type=float, default=0.0)
    command.add_argument("--seed", type=int)


_ADD = {train: _add_train, decode: _add_decode}


def _tell(group: dist.ProcessGroup, make: Any) -> Any:
    """What rank 0 makes, on every rank: only it needs the tokenizer and the text."""
    told = [make() if group.rank() == 0 else None]
    dist.broadcast_object_list(told, group=group, group_src=0)
    return told[0]


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def _text_batches(folder: Path, options: argparse.Namespace) -> list[Tensor]:
    """Consecutive pieces of the text, `steps` batches of (rows, tokens)."""
    if options.text is None:
        from pydoc_data.topics import topics

        text = "\n".join(topics.values())
    else:
        text = options.text.read_text(encoding="utf-8")
    n = options.steps * options.rows * options.tokens
    ids = _tokenizer(folder)(text[: 16 * n]).input_ids[:n]
    if len(ids) < n:
        raise ValueError(f"the text has {len(ids)} tokens, but the steps need {n}")
    return list(torch.tensor(ids).view(options.steps, options.rows, options.tokens))


def _requests(folder: Path, options: argparse.Namespace) -> list[list[Request]]:
    tokenizer = _tokenizer(folder)
    stop = frozenset({tokenizer.eos_token_id})
    batches = []
    for prompt in options.prompt:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        batches.append([Request(tuple(ids), options.max_new_tokens, stop)])
    return batches


def _texts(folder: Path, tokens: list[list[list[int]]]) -> list[str]:
    tokenizer = _tokenizer(folder)
    return [tokenizer.decode(batch[0], skip_special_tokens=True) for batch in tokens]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
