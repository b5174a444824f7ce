# SPDX-License-Identifier: Apache-2.0
"""Every tile that a device mentions exists in the array.

Rules: tiles lie within the columns and rows of the named device (target model); cores stand in the
compute rows. The other resources count on this one.
"""

from __future__ import annotations

from collections.abc import Iterator

from npu.array import SOURCES, Array
from npu.legality.violation import Violation
from npu.program import ConfigureTask, DeviceProgram, Program, TileId, TileKind


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Tiles outside of the device, cores outside of the compute rows."""
    seen: dict[TileId, str] = {}
    for tile, what in _mentioned(device):
        seen.setdefault(tile, what)
    for tile, what in seen.items():
        if not array.contains(tile):
            yield Violation(
                limit="array size",
                asked=f"tile ({tile.col},{tile.row})",
                available=f"columns 0..{array.columns - 1}, rows 0..{array.rows - 1} of {array.name}",
                where=f"@{device.name}, {what}",
                source=SOURCES["columns"],
                change=f"place it within the {array.columns} columns of {array.name}, or name a wider device",
            )
    for core in device.cores:
        if core.tile.kind is not TileKind.CORE:
            yield Violation(
                limit="place of a core",
                asked=f"a core at ({core.tile.col},{core.tile.row})",
                available="cores in rows 2..5",
                where=f"@{device.name}, core",
                source=SOURCES["rows"],
                change="move the core to a compute row",
            )


def _mentioned(device: DeviceProgram) -> Iterator[tuple[TileId, str]]:
    for tile in device.tiles:
        yield tile, "aie.tile"
    for buffer in device.buffers:
        yield buffer.tile, f"buffer {buffer.name}"
    for lock in device.locks:
        yield lock.tile, f"lock {lock.name}"
    for core in device.cores:
        yield core.tile, "core"
    for dma in device.dmas:
        yield dma.channel.tile, f"DMA {dma.channel}"
    for route in device.routes:
        yield route.source.tile, f"route {route.name}"
        for dest in route.dests:
            yield dest.tile, f"route {route.name}"
    for sequence in device.sequences:
        for instruction in sequence.instructions:
            if isinstance(instruction, ConfigureTask):
                yield instruction.channel.tile, f"task {instruction.task} of @{sequence.name}"
