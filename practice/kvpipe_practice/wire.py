"""Values as plain data: the only form in which anything crosses into or out of an answer's process.

A message is a JSON header and one block of raw bytes. Tensors and arrays are dtype, shape and
little-endian bytes. Nothing is ever unpickled, so a forged message is only a wrong value.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from typing import Any, BinaryIO

MAGIC = b"KVP1"
PREFIX = struct.Struct("<4sIQ")
MAX_HEADER_BYTES = 8 * 2**20
MAX_BLOCK_BYTES = 64 * 2**20
MAX_DEPTH = 32
MAX_ITEMS = 200_000
TENSOR_DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8"),
    *("bool", "complex64", "complex128"),
)
ARRAY_DTYPES = tuple(name for name in TENSOR_DTYPES if name != "bfloat16")


class WireError(ValueError):
    """A value that cannot be sent, or a message that is not well formed."""


class Encoder:
    """Turns one value into a JSON tree plus raw bytes collected in `block`."""

    def __init__(self) -> None:
        self.block = bytearray()
        self.n_items = 0

    def encode(self, value: Any, depth: int = 0) -> list:
        self.n_items += 1
        if depth > MAX_DEPTH:
            raise WireError(f"nested deeper than {MAX_DEPTH} levels")
        if self.n_items > MAX_ITEMS:
            raise WireError(f"more than {MAX_ITEMS:,} items")
        kind = type(value)
        if value is None:
            return ["none"]
        if kind is bool or kind is str:
            return [kind.__name__, value]
        if kind is int:
            return ["int", hex(value)]
        if kind is float:
            return ["float", value.hex() if math.isfinite(value) else str(value)]
        if kind is list or kind is tuple:
            return [kind.__name__, [self.encode(item, depth + 1) for item in value]]
        if kind is dict:
            pairs = [
                [self.encode(k, depth + 1), self.encode(v, depth + 1)] for k, v in value.items()
            ]
            return ["dict", pairs]
        return self._encode_array(value, kind)

    def _encode_array(self, value: Any, kind: type) -> list:
        torch = sys.modules.get("torch")
        if torch is not None and kind in (torch.Tensor, torch.nn.Parameter):
            return self._encode_tensor(torch, value)
        numpy = sys.modules.get("numpy")
        if numpy is not None and kind is numpy.ndarray:
            return self._encode_ndarray(numpy, value)
        raise WireError(
            f"a {kind.__module__}.{kind.__qualname__} cannot be judged; use tensors, numbers, "
            "strings, None, and lists, tuples or dicts of them"
        )

    def _encode_tensor(self, torch: Any, tensor: Any) -> list:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in TENSOR_DTYPES or tensor.layout is not torch.strided:
            raise WireError(f"a {tensor.layout} tensor of {tensor.dtype} cannot be judged")
        self._check_size(tensor.numel() * tensor.element_size())
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
        order = memory_order(tensor.shape, tensor.stride())
        flat = tensor.permute(order).contiguous().reshape(-1)
        raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return ["tensor", dtype, list(tensor.shape), order, *self._store(raw)]

    def _encode_ndarray(self, numpy: Any, array: Any) -> list:
        if array.dtype.name not in ARRAY_DTYPES:
            raise WireError(f"an array of {array.dtype} cannot be judged")
        self._check_size(array.nbytes)
        order = memory_order(array.shape, array.strides)
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        raw = numpy.ascontiguousarray(little.transpose(order)).tobytes()
        return ["array", array.dtype.name, list(array.shape), order, *self._store(raw)]

    def _check_size(self, n_bytes: int) -> None:
        """Before anything is copied: does it still fit?"""
        if len(self.block) + n_bytes > MAX_BLOCK_BYTES:
            raise WireError(f"more than {MAX_BLOCK_BYTES // 2**20} MiB of data")

    def _store(self, raw: bytes) -> tuple[int, int]:
        start = len(self.block)
        self.block += raw
        return start, len(raw)


def memory_order(shape: Any, strides: Any) -> list[int]:
    """Dimensions from the outermost in memory to the innermost, so that a transpose stays one."""
    return sorted(range(len(shape)), key=lambda d: (-strides[d] if shape[d] > 1 else 0, d))


def decode(tree: Any, block: bytes) -> Any:
    """The value of an encoded tree; WireError for anything that is not one."""
    try:
        return _decode(tree, block, 0)
    except WireError:
        raise
    except Exception as error:
        raise WireError(f"malformed value: {type(error).__name__}") from None


def _decode(tree: Any, block: bytes, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise WireError("malformed value: nested too deep")
    match tree:
        case ["none"]:
            return None
        case ["bool", bool(value)] | ["str", str(value)]:
            return value
        case ["int", str(digits)]:
            return int(digits, 16)
        case ["float", str(text)]:
            return float.fromhex(text)
        case ["list", list(items)]:
            return [_decode(item, block, depth + 1) for item in items]
        case ["tuple", list(items)]:
            return tuple(_decode(item, block, depth + 1) for item in items)
        case ["dict", list(pairs)]:
            return {
                _decode(key, block, depth + 1): _decode(item, block, depth + 1)
                for key, item in pairs
            }
        case ["tensor", str(dtype), list(shape), list(order), int(start), int(size)]:
            return _decode_tensor(dtype, shape, order, block[start : start + size])
        case ["array", str(dtype), list(shape), list(order), int(start), int(size)]:
            return _decode_array(dtype, shape, order, block[start : start + size])
    raise WireError("malformed value: unknown kind")


def _check_layout(shape: list, order: list) -> None:
    if not all(type(n) is int and n >= 0 for n in shape) or len(shape) > 16:
        raise WireError("malformed value: bad shape")
    if sorted(order) != list(range(len(shape))):
        raise WireError("malformed value: bad order of dimensions")


def _decode_tensor(dtype: str, shape: list, order: list, raw: bytes) -> Any:
    import torch

    _check_layout(shape, order)
    if dtype not in TENSOR_DTYPES:
        raise WireError("malformed value: bad dtype")
    kind = getattr(torch, dtype)
    if math.prod(shape) * kind.itemsize != len(raw):
        raise WireError("malformed value: bytes and shape disagree")
    stored = [shape[d] for d in order]
    if not raw:
        return torch.empty(stored, dtype=kind).permute(_inverse(order))
    flat = torch.frombuffer(bytearray(raw), dtype=kind)
    return flat.reshape(stored).permute(_inverse(order))


def _decode_array(dtype: str, shape: list, order: list, raw: bytes) -> Any:
    import numpy

    _check_layout(shape, order)
    if dtype not in ARRAY_DTYPES:
        raise WireError("malformed value: bad dtype")
    kind = numpy.dtype(dtype).newbyteorder("<")
    if math.prod(shape) * kind.itemsize != len(raw):
        raise WireError("malformed value: bytes and shape disagree")
    flat = numpy.frombuffer(bytearray(raw), dtype=kind).astype(dtype, copy=False)
    return flat.reshape([shape[d] for d in order]).transpose(_inverse(order))


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def pack(header: dict, block: bytes = b"") -> bytes:
    """One message as bytes."""
    text = json.dumps(header).encode()
    if len(text) > MAX_HEADER_BYTES:
        raise WireError(f"more than {MAX_HEADER_BYTES // 2**20} MiB of numbers and text")
    return PREFIX.pack(MAGIC, len(text), len(block)) + text + bytes(block)


def read_message(stream: BinaryIO) -> tuple[dict, bytes] | None:
    """The next message of a stream, None at its end; WireError for anything else."""
    prefix = stream.read(PREFIX.size)
    if not prefix:
        return None
    if len(prefix) < PREFIX.size:
        raise WireError("malformed message: cut short")
    magic, header_size, block_size = PREFIX.unpack(prefix)
    if magic != MAGIC or header_size > MAX_HEADER_BYTES or block_size > MAX_BLOCK_BYTES:
        raise WireError("malformed message: bad prefix")
    text, block = stream.read(header_size), stream.read(block_size)
    if len(text) < header_size or len(block) < block_size:
        raise WireError("malformed message: cut short")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise WireError("malformed message: not JSON") from None
    if type(header) is not dict:
        raise WireError("malformed message: no header")
    return header, block
