"""Two processes, one model, one prompt: the shortest pipeline that works (chapter 2).

Blocking sends and receives, written out. For more than one batch see `kvpipe.pipeline.decode`.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from kvpipe.cache import KVCache
from kvpipe.checkpoints import load_stage
from kvpipe.config import Config
from kvpipe.pipeline.stages import split_layers


def greedy(
    group: dist.ProcessGroup, folder: str | Path, prompt: list[int], n_new: int
) -> tuple[list[int], list[int]]:
    """The `n_new` likeliest tokens after `prompt`, and the bytes of each message of this rank."""
    rank, P, config = group.rank(), group.size(), Config.from_hf(folder)
    stage = load_stage(folder, split_layers(config.n_layers, P)[rank])
    cache, new, sent_bytes = KVCache(), [], []
    tokens, positions = torch.tensor([prompt]), torch.arange(len(prompt))[None]  # (B, T)

    def send(message: torch.Tensor, target: int) -> None:
        dist.send(message.contiguous(), group=group, group_dst=target)
        sent_bytes.append(message.nbytes)

    for _ in range(n_new):
        x = tokens
        if rank > 0:
            x = torch.empty(*positions.shape, config.width)
            dist.recv(x, group=group, group_src=rank - 1)
        out = stage(x, positions, cache, n_logits=1)
        if rank < P - 1:
            send(out, rank + 1)
            tokens = torch.empty(1, 1, dtype=torch.int64)
            dist.recv(tokens, group=group, group_src=P - 1)
        else:
            tokens = out[:, -1:].argmax(-1)
            for other in range(P - 1):
                send(tokens, other)
        new.append(tokens.item())
        positions = positions[:, -1:] + 1
    return new, sent_bytes
