# SPDX-License-Identifier: Apache-2.0
"""Memory of the twin: tile buffers and host buffers, poisoned, page or vector aligned, between guard bands.

Every byte starts as the signalling-NaN word `POISON`; a 4-byte-aligned word that still holds it when a DMA reads it was
never written. (A word of real data with exactly these 32 bits is taken for unwritten: two adjacent bf16 signalling
NaNs, or one int8 quadruple in 2**32.) `GUARD` fills the bands: a store that changes it was out of bounds.

A *region* is one run of addresses that a recorded schedule is relocated against: 0 the tiles' memory, 1 the staging
area, 2 the constants of the program, 3 and up the host slices of a dispatch.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass

import numpy as np

from npu.device import DeviceFault
from npu.program import Buffer, DeviceProgram, MemRef, TileId
from refusal import Refusal

POISON = np.uint32(0x7FA57FA5)
GUARD = np.uint32(0x7FA97FA9)  # both bf16 halves are signalling NaNs too: an out-of-bounds load shows as well
BAND_BYTES = 64
PAGE_BYTES = mmap.PAGESIZE
MARGIN_BYTES = 16 << 20  # of addresses before and behind all tile memory that nobody may touch

PROT_NONE, MAP_NORESERVE = 0, 0x4000  # sys/mman.h of Linux; the mmap module has no names for them
_C = ctypes.CDLL(None, use_errno=True)
_C.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

TILE_REGION, STAGING_REGION, CONSTANT_REGION, FIRST_HOST_REGION = range(4)


class Memory:
    """Bytes that DMA channels and kernels use: one tile buffer, or one host slice.

    data: uint8 view. region, base: where data[0] stands for a recorded schedule.
    read_only: nothing in this dispatch writes it, so it can be read without a copy.
    """

    __slots__ = ("address", "base", "data", "name", "read_only", "region", "tile", "type")

    def __init__(
        self, name: str, data: np.ndarray, type: MemRef, region: int, base: int, tile: TileId | None = None
    ) -> None:
        self.name = name
        self.data = data
        self.type = type
        self.region = region
        self.base = base
        self.tile = tile
        self.address = int(data.ctypes.data)
        self.read_only = False

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    def __str__(self) -> str:
        return f"buffer '{self.name}' of {self.tile}" if self.tile else f"host argument {self.name}"


def aligned_bytes(nbytes: int, alignment: int) -> np.ndarray:
    """Uninitialised uint8 array of `nbytes` whose first byte is `alignment`-aligned."""
    raw = np.empty(nbytes + alignment, np.uint8)
    start = -int(raw.ctypes.data) % alignment
    return raw[start : start + nbytes]


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


@dataclass(frozen=True)
class Placement:
    """Where a device's tile buffers lie in the twin's tile memory, and which 32-bit words between them are guards.

    A buffer and the band behind it end with a page, and pages that nobody may touch lie before and behind its own: a kernel
    that goes on beyond an end is stopped there. (A load of up to a band more is let be: kernels read ahead, and what they
    get are signalling NaNs.) What is left of its first page is slack. A jump that lands in another buffer is not noticed.
    """

    offsets: dict[str, int]
    nbytes: int
    guard_words: np.ndarray  # int32 indices of uint32 words
    tile_guards: dict[TileId, np.ndarray]
    spans: tuple[tuple[int, int], ...]  # byte ranges of whole pages that may be touched
    slack: tuple[tuple[int, int], ...]  # word ranges before the band of a buffer

    @staticmethod
    def of(device: DeviceProgram) -> Placement:
        """Lay the buffers out tile by tile, each 64-byte aligned, with a band before and after each."""
        offsets: dict[str, int] = {}
        words: dict[TileId, list[np.ndarray]] = {}
        spans: list[tuple[int, int]] = []
        slack: list[tuple[int, int]] = []
        position = MARGIN_BYTES
        for buffer in sorted(device.buffers, key=lambda b: (b.tile, b.name)):
            used = _round_up(max(buffer.type.nbytes, 1), BAND_BYTES) + BAND_BYTES
            first = position + PAGE_BYTES
            last = first + _round_up(used + BAND_BYTES, PAGE_BYTES)
            start, position = last - used, last
            offsets[buffer.name] = start
            end = _round_up(start + buffer.type.nbytes, 4)
            bands = words.setdefault(buffer.tile, [])
            bands.append(np.arange((start - BAND_BYTES) // 4, start // 4, dtype=np.int32))
            bands.append(np.arange(end // 4, last // 4, dtype=np.int32))
            spans.append((first, last))
            slack.append((first // 4, (start - BAND_BYTES) // 4))
        tile_guards = {tile: np.concatenate(bands) for tile, bands in words.items()}
        every = np.concatenate(list(tile_guards.values())) if tile_guards else np.zeros(0, np.int32)
        return Placement(offsets, position + MARGIN_BYTES, every, tile_guards, tuple(spans), tuple(slack))


class TileMemory:
    """The tile memory of one device. Whatever is outside the spans of its placement ends the process that touches it."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._pages = mmap.mmap(-1, placement.nbytes, flags)
        self.bytes = np.frombuffer(self._pages, np.uint8)
        self.words = self.bytes.view(np.uint32)
        edges = [0, *(edge for span in placement.spans for edge in span), placement.nbytes]
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            _forbid(self.bytes.ctypes.data + first, last - first)

    def view(self, buffer: Buffer, offset: int) -> Memory:
        """The bytes of one placed buffer."""
        data = self.bytes[offset : offset + buffer.type.nbytes]
        return Memory(buffer.name, data, buffer.type, TILE_REGION, offset, buffer.tile)

    def poison(self) -> None:
        """As after power-up: nothing was written, and the guards stand."""
        for first, last in self.placement.spans:
            self.words[first // 4 : last // 4] = POISON
        self.words[self.placement.guard_words] = GUARD
        for first, last in self.placement.slack:
            self.words[first:last] = GUARD

    def changed_slack(self) -> int:
        """A word before the band of a buffer that somebody has changed, -1 for none."""
        for first, last in self.placement.slack:
            changed = np.flatnonzero(self.words[first:last] != GUARD)
            if len(changed):
                return first + int(changed[-1])
        return -1


def _forbid(address: int, nbytes: int) -> None:
    """Let no one read or write these whole pages.

    Raises:
        Refusal: the kernel of this machine has no more mappings for this process.
    """
    if _C.mprotect(address, nbytes, PROT_NONE):
        raise Refusal(
            f"{os.strerror(ctypes.get_errno())} for a guard page", expected="a page beside each buffer of the array",
            where="the twin's tile memory", next_step="allow more mappings: sudo sysctl vm.max_map_count=262144",
        )  # fmt: skip


class HostBuffer:
    """One named DDR buffer: page-aligned, poisoned, with a guard page on both sides."""

    def __init__(self, name: str, nbytes: int) -> None:
        self.name = name
        self.nbytes = nbytes
        self.mapped = False  # the host holds a writable view that it has not synced
        self._all = aligned_bytes(_round_up(nbytes, 4) + 2 * PAGE_BYTES, PAGE_BYTES)
        words = self._all.view(np.uint32)
        words[: PAGE_BYTES // 4] = GUARD
        words[PAGE_BYTES // 4 : -PAGE_BYTES // 4] = POISON
        words[-PAGE_BYTES // 4 :] = GUARD
        self.data = self._all[PAGE_BYTES : PAGE_BYTES + nbytes]
        self.address = int(self.data.ctypes.data)

    def check_guards(self) -> None:
        """DeviceFault if something wrote beyond either end."""
        words = self._all.view(np.uint32)
        bands = (words[: PAGE_BYTES // 4], words[-PAGE_BYTES // 4 :])
        for side, band in zip(("before", "behind"), bands, strict=True):
            if not (band == GUARD).all():
                raise DeviceFault(f"something stored {side} the host buffer '{self.name}' ({self.nbytes} bytes)")


@dataclass(frozen=True)
class HostSlice:
    """One argument of a dispatch: `nbytes` of a host buffer from `offset`."""

    buffer: HostBuffer
    offset: int
    type: MemRef

    def check(self, argument: int) -> None:
        """DeviceFault when the slice leaves its buffer or the buffer is not synced."""
        end = self.offset + self.type.nbytes
        if self.offset < 0 or end > self.buffer.nbytes:
            raise DeviceFault(
                f"argument {argument} is bytes {self.offset}..{end} ({self.type}) of host buffer '{self.buffer.name}', "
                f"which has {self.buffer.nbytes} bytes: argument slice out of range. Allocate more or correct the offset"
            )
        if self.offset % 4:
            raise DeviceFault(
                f"argument {argument} starts at byte {self.offset}; DMA addresses are multiples of 4 bytes"
            )
        if self.buffer.mapped:
            raise DeviceFault(
                f"host buffer '{self.buffer.name}' is unsynced: it was mapped for writing and the device would see stale "
                f"data. Call sync('{self.buffer.name}') before the dispatch"
            )


@dataclass(frozen=True)
class Regions:
    """Host slices of a dispatch grouped into regions: slices that overlap in memory share one.

    key: per argument (region, offset in the region); it is part of a schedule's address, since overlap makes hazards.
    addresses: first byte of each host region.
    """

    key: tuple[tuple[int, int], ...]
    addresses: tuple[int, ...]
    sizes: tuple[int, ...]

    @staticmethod
    def of(slices: list[HostSlice]) -> Regions:
        spans = [(s.buffer.address + s.offset, s.buffer.address + s.offset + s.type.nbytes) for s in slices]
        places: list[tuple[int, int]] = [(0, 0)] * len(spans)
        bounds: list[list[int]] = []
        members: list[list[int]] = []
        for index in sorted(range(len(spans)), key=lambda i: spans[i]):
            low, high = spans[index]
            if bounds and low < bounds[-1][1]:
                bounds[-1][1] = max(bounds[-1][1], high)
                members[-1].append(index)
            else:
                bounds.append([low, high])
                members.append([index])
        # Regions are numbered by their first argument, so that the key does not depend on where buffers lie.
        order = sorted(range(len(bounds)), key=lambda r: min(members[r]))
        for number, region in enumerate(order):
            for index in members[region]:
                places[index] = (number, spans[index][0] - bounds[region][0])
        return Regions(
            tuple(places),
            tuple(bounds[r][0] for r in order),
            tuple(bounds[r][1] - bounds[r][0] for r in order),
        )
