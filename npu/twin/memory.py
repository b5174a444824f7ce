# SPDX-License-Identifier: Apache-2.0
"""Memory of the twin: tile buffers and host buffers, poisoned, page or vector aligned, between guard bands.

Every byte starts as the signalling-NaN word `POISON`; a 4-byte-aligned word that still holds it when a DMA reads it was
never written. (A word of real data with exactly these 32 bits is taken for unwritten: two adjacent bf16 signalling
NaNs, or one int8 quadruple in 2**32.) `GUARD` fills the bands: a store that changes it was out of bounds.

A *region* is one run of addresses that a recorded schedule is relocated against: 0 the tiles' memory, 1 the staging
area, 2 the constants of the program, 3 and up the host slices of a dispatch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npu.device import DeviceFault
from npu.program import Buffer, DeviceProgram, MemRef, TileId

POISON = np.uint32(0x7FA57FA5)
GUARD = np.uint32(0x7FA97FA9)  # both bf16 halves are signalling NaNs too: an out-of-bounds load shows as well
BAND_BYTES = 64
PAGE_BYTES = 4096

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
    """Where a device's tile buffers lie in the twin's tile memory, and which 32-bit words between them are guards."""

    offsets: dict[str, int]
    nbytes: int
    guard_words: np.ndarray  # int32 indices of uint32 words
    tile_guards: dict[TileId, np.ndarray]

    @staticmethod
    def of(device: DeviceProgram) -> Placement:
        """Lay the buffers out tile by tile, each 64-byte aligned, with a band before and after each."""
        offsets: dict[str, int] = {}
        words: dict[TileId, list[np.ndarray]] = {}
        position = 0
        for buffer in sorted(device.buffers, key=lambda b: (b.tile, b.name)):
            start = _round_up(position, BAND_BYTES) + BAND_BYTES
            end = _round_up(start + buffer.type.nbytes, 4)
            position = _round_up(end, BAND_BYTES) + BAND_BYTES
            offsets[buffer.name] = start
            bands = words.setdefault(buffer.tile, [])
            bands.append(np.arange((start - BAND_BYTES) // 4, start // 4, dtype=np.int32))
            bands.append(np.arange(end // 4, position // 4, dtype=np.int32))
        tile_guards = {tile: np.concatenate(bands) for tile, bands in words.items()}
        every = np.concatenate(list(tile_guards.values())) if tile_guards else np.zeros(0, np.int32)
        return Placement(offsets, position + BAND_BYTES, every, tile_guards)


class TileMemory:
    """The one memory that all devices of a session share in turn, as they share the array."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = aligned_bytes(_round_up(max(nbytes, 64), 64), PAGE_BYTES)
        self.words = self.bytes.view(np.uint32)

    def view(self, buffer: Buffer, offset: int) -> Memory:
        """The bytes of one placed buffer."""
        data = self.bytes[offset : offset + buffer.type.nbytes]
        return Memory(buffer.name, data, buffer.type, TILE_REGION, offset, buffer.tile)


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
