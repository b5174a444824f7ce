# SPDX-License-Identifier: Apache-2.0
"""Access pattern of one buffer descriptor: which bytes of a memory, in which order, one execution moves.

The event tier moves data through NumPy strided views (`gather`, `scatter`) and, for a part of an execution, through
word indices. `runs` gives the same order as contiguous byte runs; the replay tier is built from those alone.

A descriptor with padding sends `before + size + after` elements in each dimension, zeros around the data.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod

import numpy as np

from npu.program import BufferDescriptor

_UNITS = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}


class Pattern:
    """Sizes and byte strides, outermost first; offsets are given at use, so one Pattern serves many descriptors."""

    def __init__(self, dims: tuple[tuple[int, int], ...], run: int, padding: tuple[tuple[int, int], ...]) -> None:
        """dims: (size, stride in bytes) of the outer dimensions; run: contiguous bytes inside them.

        padding: (before, after), outermost first, one more entry than dims, the last in bytes; or empty.
        """
        self.dims = dims
        self.run = run
        self.padding = padding
        self.key = (dims, run, padding)
        sizes = [size for size, _ in dims] + [run]
        if padding:
            sizes = [size + before + after for size, (before, after) in zip(sizes, padding, strict=True)]
        self.nbytes = prod(sizes)
        self.span = sum((size - 1) * stride for size, stride in dims) + run
        self.linear = not dims and not padding
        unit = 8
        for value in (run, *(stride for _, stride in dims), *(padding[-1] if padding else ())):
            unit = gcd(unit, value)
        self.unit = unit
        self._dtype = _UNITS[unit]
        self._shape = (*(size for size, _ in dims), run // unit)
        self._strides = (*(stride for _, stride in dims), unit)
        self._runs: tuple[np.ndarray, int] | None = None

    def view(self, data: np.ndarray, offset: int) -> np.ndarray:
        """The moved elements of `data` (uint8) as a strided view, without padding."""
        return np.ndarray(self._shape, self._dtype, data, offset, self._strides)

    def gather(self, data: np.ndarray, offset: int) -> np.ndarray:
        """One execution's bytes in stream order, as a new uint8 array."""
        view = self.view(data, offset)
        if not self.padding:
            return view.copy().reshape(-1).view(np.uint8)
        inner = [(before // self.unit, after // self.unit) for before, after in self.padding[-1:]]
        bands = (*self.padding[:-1], *inner)
        padded = np.zeros([n + b + a for n, (b, a) in zip(view.shape, bands, strict=True)], self._dtype)
        padded[tuple(slice(b, b + n) for n, (b, _) in zip(view.shape, bands, strict=True))] = view
        return padded.reshape(-1).view(np.uint8)

    def scatter(self, data: np.ndarray, offset: int, stream: np.ndarray) -> None:
        """Write one whole execution's bytes."""
        if self.linear:
            data[offset : offset + self.nbytes] = stream
            return
        self.view(data, offset)[...] = stream.view(self._dtype).reshape(self._shape)

    def scatter_part(self, data: np.ndarray, offset: int, start: int, stream: np.ndarray) -> None:
        """Write stream bytes `start`.. of an execution, and no more than `stream` holds."""
        if self.linear:
            data[offset + start : offset + start + stream.nbytes] = stream
            return
        offsets, run = self.runs()
        unit = gcd(gcd(run, start), gcd(stream.nbytes, 8))
        positions = np.arange(start, start + stream.nbytes, unit)
        where = offsets[positions // run] + positions % run + offset
        if unit > 1 and (where % unit == 0).all() and data.ctypes.data % unit == 0:
            usable = data[: data.nbytes // unit * unit].view(_UNITS[unit])
            usable[where // unit] = stream.view(_UNITS[unit])
        else:
            data[(where[:, None] + np.arange(unit)).reshape(-1)] = stream

    def runs(self) -> tuple[np.ndarray, int]:
        """(start of each contiguous run relative to the offset, bytes of a run); start -1 means zeros."""
        if self._runs is None:
            self._runs = self._padded_runs() if self.padding else self._plain_runs()
        return self._runs

    def _plain_runs(self) -> tuple[np.ndarray, int]:
        starts = np.zeros(1, np.int64)
        for size, stride in self.dims:
            starts = (starts[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
        return starts, self.run

    def _padded_runs(self) -> tuple[np.ndarray, int]:
        before, after = self.padding[-1]
        run = gcd(self.run, gcd(before, after))
        extents = [*((size, stride, pad) for (size, stride), pad in zip(self.dims, self.padding, strict=False))]
        extents.append((self.run // run, run, (before // run, after // run)))
        starts = np.zeros(1, np.int64)
        inside = np.ones(1, bool)
        for size, stride, (low, high) in extents:
            index = np.arange(-low, size + high, dtype=np.int64)
            starts = (starts[:, None] + index * stride).reshape(-1)
            inside = (inside[:, None] & ((index >= 0) & (index < size))).reshape(-1)
        return np.where(inside, starts, -1), run

    def address_of(self, stream_byte: int) -> int:
        """Byte offset in memory, relative to the descriptor's offset, of one byte of the stream; -1 for padding."""
        offsets, run = self.runs()
        start = int(offsets[stream_byte // run])
        return start if start < 0 else start + stream_byte % run


@lru_cache(maxsize=65536)
def _make(dims: tuple[tuple[int, int], ...], element: int, padding: tuple[tuple[int, int], ...]) -> Pattern:
    sizes = [(size, stride * element) for size, stride in dims]
    if padding:
        if sizes[-1][1] == element:
            run = sizes.pop()[0] * element
            bands = (*padding[:-1], tuple(n * element for n in padding[-1]))
        else:
            run, bands = element, (*padding, (0, 0))
        return Pattern(tuple(sizes), run, bands)
    run = element
    merged: list[tuple[int, int]] = []
    for size, stride in reversed(sizes):
        if size == 1:
            continue
        if not merged and stride == run:
            run *= size
        elif merged and stride == merged[0][0] * merged[0][1]:
            merged[0] = (size * merged[0][0], merged[0][1])
        else:
            merged.insert(0, (size, stride))
    return Pattern(tuple(merged), run, ())


def pattern_of(bd: BufferDescriptor) -> Pattern:
    """The pattern of one execution of `bd`; equal patterns are one object."""
    if not bd.dims:
        return _make(((bd.length, 1),), bd.element_bytes, bd.padding)
    return _make(tuple((d.size, d.stride) for d in bd.dims), bd.element_bytes, bd.padding)
