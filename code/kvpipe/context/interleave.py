"""Which rank keeps which token of a growing sequence, in closed form (chapter 3).

No tensors. Blocks of `block` tokens are dealt to the ranks in turn, as vLLM does in decode context
parallelism (0.33.0, vllm/v1/attention/backends/utils.py, `get_dcp_local_seq_lens`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interleave:
    """P ranks and blocks of `block` tokens; with block 1, token t lies on rank t mod P."""

    n_ranks: int  # P
    block: int = 1  # tokens

    def __post_init__(self) -> None:
        if self.n_ranks < 1 or self.block < 1:
            raise ValueError(
                f"{self.n_ranks} ranks and blocks of {self.block} tokens; both must be 1 or more"
            )

    def owner(self, token: int) -> int:
        """The rank that keeps `token`."""
        return token // self.block % self.n_ranks

    def place(self, token: int) -> int:
        """Its index among the tokens of that rank."""
        return token // (self.block * self.n_ranks) * self.block + token % self.block

    def length(self, rank: int, n_tokens: int) -> int:
        """How many of the first `n_tokens` tokens `rank` keeps."""
        turns, rest = divmod(n_tokens, self.block * self.n_ranks)
        return turns * self.block + min(max(rest - rank * self.block, 0), self.block)
