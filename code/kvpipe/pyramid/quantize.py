r"""Keys and values in 8 or 4 bits, with the error they may have. Chapter 6.

Round to nearest between minimum and maximum: $c = \mathrm{round}((x - \min)/s)$ with
$s = (\max - \min)/(2^b - 1)$, so $|x - \hat x| \le s/2$ up to float32 rounding. Keys share scale
and minimum along the tokens of a channel, values along the channels of a token (KIVI,
arXiv:2402.02750): keys have a few large channels, values have none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BITS = (4, 8)


@dataclass(frozen=True)
class Quantized:
    """Codes of a tensor with what turns them back."""

    codes: Tensor  # uint8, (..., D); for 4 bits (..., D/2), two codes in a byte
    scale: Tensor  # float32, size 1 along the quantised dimension
    minimum: Tensor  # float32, like scale
    bits: int
    dtype: torch.dtype  # of the original

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and minima."""
        return self.codes.nbytes + self.scale.nbytes + self.minimum.nbytes

    def index_select(self, rows: Tensor) -> Quantized:
        """The same for some rows of the batch."""
        parts = (part.index_select(0, rows) for part in (self.codes, self.scale, self.minimum))
        return Quantized(*parts, self.bits, self.dtype)


def quantize(x: Tensor, bits: int, dim: int) -> Quantized:
    """x (..., S, D) in `bits` bits, one scale and minimum per slice along `dim`.

    Raises ValueError for other than 4 or 8 bits, and for an odd D in 4 bits.
    """
    check_bits(bits)
    if bits == 4 and x.shape[-1] % 2:
        raise ValueError(f"head size {x.shape[-1]} is odd; 4-bit codes are stored in pairs")
    if x.shape[dim] == 0:
        raise ValueError(f"nothing to quantise along dimension {dim} of shape {tuple(x.shape)}")
    x32 = x.float()
    minimum, maximum = x32.amin(dim=dim, keepdim=True), x32.amax(dim=dim, keepdim=True)
    scale = (maximum - minimum) / (2**bits - 1)
    # A constant slice has scale 0; any divisor gives code 0, which is the minimum.
    codes = ((x32 - minimum) / scale.masked_fill(scale == 0, 1)).round().to(torch.uint8)
    codes = codes if bits == 8 else codes[..., ::2] | codes[..., 1::2] << 4
    return Quantized(codes, scale, minimum, bits, x.dtype)


def dequantize(stored: Quantized) -> Tensor:
    """The tensor again, in its own number format, each element within scale / 2."""
    codes = stored.codes
    if stored.bits == 4:
        codes = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)
    return torch.addcmul(stored.minimum, codes.float(), stored.scale).to(stored.dtype)


def check_bits(bits: int) -> None:
    """Raise ValueError for a width other than 4 or 8 bits."""
    if bits not in BITS:
        raise ValueError(f"{bits} bits are not supported; use {' or '.join(map(str, BITS))}")


def quantized_bytes(n_kept: int, n_heads: int, head_size: int, bits: int, rows: int = 1) -> int:
    """Bytes of one layer's kept keys and values: codes, and float32 scales and minima.

    Keys have one pair of those per channel, values one per token.
    """
    codes = 2 * n_kept * head_size * bits // 8
    return rows * n_heads * (codes + 8 * head_size + 8 * n_kept)
