"""PyramidKV (chapter 6): give each layer its own number of tokens, and keep the right ones.

Decide: `budgets`. Compute: `scores`, `selection`, `quantize`. Together: a method of `methods` in
a `PyramidCache`, which any model of chapter 1 takes; `kvpipe.hf.compression` puts the same cache
under a Hugging Face model.
"""

from kvpipe.pyramid.cache import PyramidCache
from kvpipe.pyramid.methods import (
    H2O,
    Full,
    Method,
    Observed,
    PyramidKV,
    Random,
    Scheduled,
    SnapKV,
    StreamingLLM,
)

__all__ = [
    "H2O",
    "Full",
    "Method",
    "Observed",
    "PyramidCache",
    "PyramidKV",
    "Random",
    "Scheduled",
    "SnapKV",
    "StreamingLLM",
]
