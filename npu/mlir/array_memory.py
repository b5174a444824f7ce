# SPDX-License-Identifier: Apache-2.0
"""What lies at an address of a device: declared buffers and locks, and those that only an instruction stream uses.

A sequence of register writes may use memory between the declared buffers, and locks that nobody declared (the array
has them all, at 0). They become buffers and locks of their own; such a buffer reaches as far as its BDs do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from npu.array import Array
from npu.program import Buffer, Channel, DmaProgram, Lock, MemRef, TileId, TileKind

WORD = 4


@dataclass
class _Gap:
    """Memory of a tile between declared buffers, bytes from its start."""

    name: str
    tile: TileId
    start: int
    end: int
    used: int = 0


@dataclass
class ArrayMemory:
    """One device's memory and locks by address; `watched` counts what is taken without effect, by its description."""

    array: Array
    buffers: tuple[Buffer, ...]
    locks: list[Lock]
    stacks: Mapping[TileId, int]
    dmas: tuple[DmaProgram, ...]
    trace_channels: frozenset[Channel]
    watched: Counter[str] = field(default_factory=Counter)
    gaps: dict[tuple[TileId, int], _Gap] = field(default_factory=dict)
    new_locks: list[Lock] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.static = {(dma.channel.tile, bd.bd_id) for dma in self.dmas for bd in dma.bds}
        self._gap_names = {gap.name: gap for gap in self.gaps.values()}

    def lock(self, tile: TileId, number: int) -> str:
        """The lock's name."""
        for lock in (*self.locks, *self.new_locks):
            if lock.tile == tile and lock.id == number:
                return lock.name
        made = Lock(f"lock {number} of {tile}", tile, number, 0)
        self.new_locks.append(made)
        return made.name

    def memory(self, tile: TileId, byte: int) -> tuple[str, int] | str:
        """(buffer, byte in it), or what is wrong with the address."""
        mine = [
            (b.address, b.address + b.type.nbytes, b.name)
            for b in self.buffers
            if b.tile == tile and b.address is not None
        ]
        for start, end, name in mine:
            if start <= byte < end:
                return (name, byte - start) if start % WORD == 0 else f"buffer '{name}' starts at byte {start}"
        stack = self.stacks.get(tile, 0)
        limit = self.array.limits(tile).data_memory_bytes
        if not 0 <= byte < limit:
            return f"byte {byte} of {tile}, which has {limit}"
        if byte < stack:
            return f"byte {byte} of {tile}, in the stack of its core ({stack} bytes)"
        start = -(-max([stack, *(end for _, end, _ in mine if end <= byte)]) // WORD) * WORD
        end = min([limit, *(start for start, _, _ in mine if start > byte)])
        gap = self.gaps.get((tile, start))
        if gap is None:
            gap = self.gaps[tile, start] = _Gap(f"memory at {start} of {tile}", tile, start, end)
            self._gap_names[gap.name] = gap
        return gap.name, byte - start

    def reach(self, name: str, end: int) -> None:
        """A BD or write uses the buffer up to byte `end`; only memory between declared buffers takes note."""
        gap = self._gap_names.get(name)
        if gap is not None:
            gap.used = max(gap.used, min(end, gap.end - gap.start))

    def new_buffers(self) -> Iterable[Buffer]:
        """What was used between the declared buffers, in whole words."""
        for gap in self.gaps.values():
            if gap.used:
                yield Buffer(gap.name, gap.tile, MemRef((-(-gap.used // WORD),), "i32"), address=gap.start)

    def window(self, tile: TileId, byte: int) -> tuple[TileId, int]:
        """Tile and byte behind a memtile DMA's address: on AIE2P west neighbour, own and east neighbour lie side by side;
        for AIE2 mlir-aie of 2026-03 counts the own memory from 0."""
        if self.array.generation != "AIE2P":
            return tile, byte
        size = self.array.limits(tile).data_memory_bytes
        return TileId(tile.col + byte // size - 1, tile.row), byte % size

    def lock_window(self, tile: TileId, number: int) -> tuple[TileId, int]:
        """Tile and number behind a BD's lock field: in a memtile 0..63 are the west neighbour's, 64..127 its own."""
        if tile.kind is not TileKind.MEMTILE:
            return tile, number
        count = self.array.limits(tile).locks
        return TileId(tile.col + number // count - 1, tile.row), number % count

    def notes(self) -> list[str]:
        """One line for each."""
        return [f"{count} {what}" for what, count in self.watched.items()]
