# SPDX-License-Identifier: Apache-2.0
"""Which memory and locks a core or a DMA can reach.

Rules (target model isLegalMemAffinity; verifiers of BufferOp, LockOp, MemOp, MemTileDMAOp):

- a core reaches its own memory and locks and those of its north, south and west neighbours, never the
  east neighbour's and never a memtile's;
- the DMA of a core reaches its own tile alone; that of a memtile also the memtiles to the west and
  east, but on channels 0-3 only; that of a shim reaches arguments, not tile memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from npu.array import SOURCES, Array
from npu.legality.statements import walk
from npu.legality.violation import Violation
from npu.program import (
    BufferDescriptor,
    Call,
    Channel,
    ConfigureTask,
    Core,
    DeviceProgram,
    Op,
    Program,
    TileId,
    TileKind,
    UseLock,
)

_DMA_CHANGE = "let the DMA of the tile that owns the memory move it"


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Names of buffers and locks used where they cannot be reached."""
    places = {b.name: b.tile for b in device.buffers} | {lock.name: lock.tile for lock in device.locks}
    for core in device.cores:
        reach = array.memory_reach(core.tile)
        for name in dict.fromkeys(_names(core)):
            tile = places.get(name)
            if tile is not None and tile not in reach:
                yield Violation(
                    limit="memory that a core reaches",
                    asked=f"{name} in {tile}",
                    available=", ".join(map(str, sorted(reach))),
                    where=f"@{device.name}, {core.tile}",
                    source=SOURCES["memory_reach"],
                    change="move the data through an object FIFO, or place the two cores next to each other",
                )
    for channel, bd, where in _descriptors(device):
        yield from _descriptor(channel, bd, where, places, array)


def _descriptor(
    channel: Channel, bd: BufferDescriptor, where: str, places: dict[str, TileId], array: Array
) -> Iterator[Violation]:
    names = [bd.buffer] + [use.lock for use in (bd.acquire, bd.release) if use]
    for name in names:
        tile = places.get(name) if name else None
        if tile is None or tile == channel.tile:
            continue
        in_reach = channel.tile.kind is TileKind.MEMTILE and tile in array.memory_reach(channel.tile)
        if in_reach and channel.index < array.memtile_neighbour_channels:
            continue
        available = "its own tile"
        if channel.tile.kind is TileKind.MEMTILE:
            available += f", and the west and east memtiles on channels 0..{array.memtile_neighbour_channels - 1}"
        yield Violation(
            limit="memory that a DMA reaches",
            asked=f"{name} in {tile}",
            available=available,
            where=where,
            source=SOURCES["memtile_neighbour_channels"] if in_reach else SOURCES["memory_reach"],
            change="use a channel from 0 to 3 for it" if in_reach else _DMA_CHANGE,
        )
    if bd.argument is not None and channel.tile.kind is not TileKind.SHIM:
        yield Violation(
            limit="memory that a DMA reaches",
            asked=f"argument {bd.argument} of the sequence",
            available="buffers; arguments lie in DDR, which only a shim reaches",
            where=where,
            source="pass aie-dma-tasks-to-npu",
            change="bring the argument in through a shim",
        )


def _descriptors(device: DeviceProgram) -> Iterator[tuple[Channel, BufferDescriptor, str]]:
    for dma in device.dmas:
        for n, bd in enumerate(dma.bds):
            yield dma.channel, bd, bd.where or f"@{device.name}, {dma.channel}, BD {n}"
    for sequence in device.sequences:
        for instruction in sequence.instructions:
            if isinstance(instruction, ConfigureTask):
                for n, bd in enumerate(instruction.bds):
                    where = bd.where or instruction.where or f"@{sequence.name}, task {instruction.task}, BD {n}"
                    yield instruction.channel, bd, where


def _names(core: Core) -> Iterator[str]:
    for end in core.ends:
        yield from end.pool
        yield from (lock for lock in (end.acquire_lock, end.release_lock) if lock)
    for statement in walk(core.body):
        if isinstance(statement, Call | Op):
            yield from statement.operands
        elif isinstance(statement, UseLock):
            yield statement.use.lock
