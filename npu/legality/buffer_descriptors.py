# SPDX-License-Identifier: Apache-2.0
"""Buffer descriptors of the in-array DMAs: 16 a core, 48 a memtile, halved there by channel parity.

Rules (target model; pass aie-assign-bd-ids): all channels of a tile share its descriptors; an even
memtile channel uses ids 0-23 and an odd one 24-47, in both directions; fixed ids exist, lie in the
right half and are given once; a chain's `next` names one of its own descriptors. A FIFO end takes one
descriptor per pool element, a joined or distributed one per element and part, times its repeats.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from npu.array import SOURCES, Array, memtile_bd_range
from npu.legality.violation import Violation
from npu.program import BufferDescriptor, DeviceProgram, DmaProgram, Program, TileId, TileKind

_CHANGE = "lower the depth of FIFOs that end here, or spread them over more tiles"


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Numbers and fixed ids of in-array descriptors."""
    by_tile: dict[TileId, list[DmaProgram]] = defaultdict(list)
    for dma in device.dmas:
        by_tile[dma.channel.tile].append(dma)
    for tile, dmas in by_tile.items():
        where = f"@{device.name}, {tile}"
        yield from _total(dmas, array.limits(tile).bds, where)
        if tile.kind is TileKind.MEMTILE:
            yield from _parity(dmas, array, where)
        yield from _ids(dmas, array, where)
    for dma in device.dmas:
        for n, bd in enumerate(dma.bds):
            if bd.next is not None and not 0 <= bd.next < len(dma.bds):
                yield Violation(
                    limit="chain of BDs",
                    asked=f"next {bd.next}",
                    available=f"0..{len(dma.bds) - 1}",
                    where=f"@{device.name}, {dma.channel}, BD {n}",
                    source="pass aie-assign-bd-ids",
                    change="let next name a BD of the same chain",
                )


def _total(dmas: list[DmaProgram], available: int, where: str) -> Iterator[Violation]:
    asked = sum(len(dma.bds) for dma in dmas)
    if asked > available:
        yield Violation(
            limit="buffer descriptors",
            asked=asked,
            available=available,
            unit="BDs",
            where=where,
            source=SOURCES["bds"],
            change=_CHANGE,
            detail=_account(dmas),
        )


def _parity(dmas: list[DmaProgram], array: Array, where: str) -> Iterator[Violation]:
    for odd in (False, True):
        mine = [dma for dma in dmas if dma.channel.index % 2 == odd]
        asked, available = sum(len(dma.bds) for dma in mine), len(memtile_bd_range(array, int(odd)))
        if asked > available:
            yield Violation(
                limit=f"buffer descriptors of {'odd' if odd else 'even'} memtile channels",
                asked=asked,
                available=available,
                unit="BDs",
                where=where,
                source=SOURCES["parity"],
                change=f"move a FIFO to {'an even' if odd else 'an odd'} channel, or lower a depth",
                detail=_account(mine),
            )


def _ids(dmas: list[DmaProgram], array: Array, where: str) -> Iterator[Violation]:
    owner: dict[int, BufferDescriptor] = {}
    for dma in dmas:
        tile = dma.channel.tile
        memtile = tile.kind is TileKind.MEMTILE
        usable = memtile_bd_range(array, dma.channel.index) if memtile else range(array.limits(tile).bds)
        for bd in dma.bds:
            if bd.bd_id is None:
                continue
            if bd.bd_id not in usable:
                yield Violation(
                    limit="BD id",
                    asked=bd.bd_id,
                    available=f"{usable.start}..{usable.stop - 1}",
                    where=bd.where or f"{where}, {dma.channel}",
                    source=SOURCES["parity"] if memtile else SOURCES["bds"],
                    change="leave the id out so that the compiler assigns it",
                )
            # Two dma_start operations may lead to one block; that is one descriptor, told twice.
            elif owner.setdefault(bd.bd_id, bd) != bd:
                yield Violation(
                    limit="BDs with one id",
                    asked=f"id {bd.bd_id} twice",
                    available="one BD an id",
                    where=bd.where or f"{where}, {dma.channel}",
                    source="pass aie-assign-bd-ids",
                    change="give each BD of the tile an id of its own, or none",
                )


def _account(dmas: list[DmaProgram]) -> str:
    return ", ".join(f"{dma.channel.direction} {dma.channel.index}: {len(dma.bds)}" for dma in dmas)
