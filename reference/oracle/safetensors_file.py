# SPDX-License-Identifier: Apache-2.0
"""One safetensors file: header, size check, and memory-mapped tensors.

The format (huggingface/safetensors, README "Format"): 8 bytes little-endian
header length N, N bytes JSON, then the byte buffer; each entry has dtype,
shape and data_offsets relative to the buffer, without holes. A file that is
shorter than its header says still maps, and reads as zeros or garbage: so the
size is checked before anything is read.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from refusal import Refusal

# Dtypes that the oracle reads exactly into FP32. Others may stand in a file, but reading one is refused.
DTYPES: dict[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
# Bytes an element of every dtype in the format whose size is whole bytes.
_WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2}
_WIDTHS |= {"BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}

_LFS = b"version "  # how a pointer file of Git LFS begins, by its specification
_AGAIN = "download the file again; its size or hash on the hub tells whether it is whole"


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies: `begin` and `end` are bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """A checked header and a read-only map of the file.

    Raises:
        Refusal: on any disagreement between header and file, at construction.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = _read_entries(path)
        self._map = np.memmap(path, dtype=np.uint8, mode="r")

    def tensor(self, name: str) -> np.ndarray:
        """A read-only view of one tensor in its stored dtype.

        Raises:
            Refusal: the dtype is not one of F32, F16, BF16.
        """
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            raise Refusal(
                f"tensor {name} has dtype {entry.dtype}",
                expected=f"one of {', '.join(DTYPES)}",
                where=str(self.path),
                next_step="use the unquantised checkpoint of this model",
            )
        raw = self._map[entry.begin : entry.end]
        # An entry may start at any byte; numpy reads unaligned views right but slowly, so those are copied.
        dtype = DTYPES[entry.dtype]
        if entry.begin % dtype.itemsize:
            raw = np.array(raw)
        return np.asarray(raw).view(dtype).reshape(entry.shape)


def _read_entries(path: Path) -> dict[str, Entry]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if prefix == _LFS:
                raise Refusal(
                    "a pointer of Git LFS, not the file itself",
                    expected="a safetensors file",
                    where=str(path),
                    next_step="fetch the file with git lfs pull in that repository, or download it from the Hub",
                )
            if not 2 <= length <= size - 8:
                raise Refusal(
                    f"{size} bytes with a declared header of {length}",
                    expected="a safetensors file",
                    where=str(path),
                    next_step=_AGAIN,
                )
            header = json.loads(file.read(length))
    except OSError as error:
        raise Refusal(f"cannot be read: {error}", where=str(path)) from None
    except ValueError as error:
        raise Refusal(f"header is not JSON: {error}", where=str(path), next_step=_AGAIN) from None
    if not isinstance(header, dict):
        raise Refusal("header is not a JSON object", where=str(path), next_step=_AGAIN)
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, value, 8 + length) for name, value in header.items()}
    _check_extent(path, entries, 8 + length, size)
    return entries


def _entry(path: Path, name: str, value: Any, start: int) -> Entry:
    try:
        dtype, shape, (begin, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
        elements = math.prod(shape)
        sane = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        expected = elements * _WIDTHS[dtype] if dtype in _WIDTHS else end - begin
    except (KeyError, TypeError, ValueError):
        raise Refusal(
            f"header entry {name!r} = {value!r}", expected="dtype, shape, data_offsets", where=str(path)
        ) from None
    if not sane or end - begin != expected:
        raise Refusal(
            f"tensor {name} of {dtype} {list(shape)} spans {end - begin} bytes",
            expected=f"{expected} bytes",
            where=str(path),
            next_step=_AGAIN,
        )
    return Entry(dtype, shape, start + begin, start + end)


def _check_extent(path: Path, entries: dict[str, Entry], start: int, size: int) -> None:
    """Tensors must tile the file from the header's end to its last byte, without holes or overlaps."""
    position, before = start, "the header"
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            raise Refusal(
                f"tensor {name} begins at byte {entry.begin}",
                expected=f"byte {position}, where {before} ends",
                where=str(path),
                next_step=_AGAIN,
            )
        position, before = entry.end, f"tensor {name}"
    if position != size:
        state = "truncated" if size < position else "longer than its header says"
        raise Refusal(
            f"{size} bytes, {state}", expected=f"{position} bytes by the header", where=str(path), next_step=_AGAIN
        )
