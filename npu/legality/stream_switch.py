# SPDX-License-Identifier: Apache-2.0
"""Stream switch: whether the circuit-switched streams can be routed at all.

Rule (target model, ports per tile): take any rectangle of tiles. Every stream that has its source
inside and a destination outside must leave it through a port of its border, and a port carries one
circuit-switched stream; the same holds on the way in. A rectangle whose border has fewer ports than
streams proves that no routing exists. A broadcast counts once, however many destinations it has.

This condition is necessary, not sufficient: the router may still fail or run long (within a switch a
memtile passes north-south only on equal indices, and packet streams are not counted). So a
design that passes may be refused by the compiler, but one that fails here cannot be routed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from npu.array import SOURCES, Array, array_of
from npu.legality.violation import Violation
from npu.program import Channel, DeviceProgram, Program, TileId


@dataclass(frozen=True)
class Rectangle:
    """Tiles of columns west..east and rows south..north, ends included."""

    west: int
    east: int
    south: int
    north: int

    def holds(self, tile: TileId) -> bool:
        return self.west <= tile.col <= self.east and self.south <= tile.row <= self.north

    def __str__(self) -> str:
        return f"columns {self.west}..{self.east}, rows {self.south}..{self.north}"


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """The tightest rectangle whose border is overfull, if there is one."""
    streams: dict[Channel, int] = defaultdict(int)
    for route in device.routes:
        if route.packet_id is None:
            for dest in route.dests:
                streams[route.source] |= _bit(dest.tile)
    ends = [(_bit(source.tile), dests) for source, dests in streams.items()]
    worst: tuple[int, Violation] | None = None
    for rectangle, inside, outward, available in _borders(array.name):
        if len(ends) > available:
            asked = _crossing(ends, inside if outward else ~inside)
            excess = asked - available
            if excess > 0 and (worst is None or excess > worst[0]):
                worst = (
                    excess,
                    Violation(
                        limit="stream switch ports",
                        asked=asked,
                        available=available,
                        unit="streams",
                        where=f"@{device.name}, border of {rectangle}, {'outwards' if outward else 'inwards'}",
                        source=SOURCES["ports"],
                        change="keep streams within a column, join them in a memtile, or broadcast one instead of several",
                    ),
                )
    if worst:
        yield worst[1]


def border_ports(rectangle: Rectangle, array: Array, *, outward: bool) -> int:
    """Ports that lead out of (or into) `rectangle`, to tiles that exist."""
    total = 0
    for col in range(rectangle.west, rectangle.east + 1):
        if rectangle.north < array.rows - 1:
            total += (
                array.ports(TileId(col, rectangle.north)).north
                if outward
                else array.ports(TileId(col, rectangle.north + 1)).south
            )
        if rectangle.south > 0:
            total += (
                array.ports(TileId(col, rectangle.south)).south
                if outward
                else array.ports(TileId(col, rectangle.south - 1)).north
            )
    for row in range(rectangle.south, rectangle.north + 1):
        # A tile has as many ports towards a neighbour sideways as that one has back.
        total += array.ports(TileId(rectangle.east, row)).east
        total += array.ports(TileId(rectangle.west, row)).west
    return total


def _bit(tile: TileId) -> int:
    """The tile's place in a set of tiles that is kept as an integer."""
    return 1 << (8 * tile.col + tile.row)


def _crossing(ends: list[tuple[int, int]], inside: int) -> int:
    """Streams with their source in the set `inside` and a destination out of it."""
    return sum(1 for source, dests in ends if source & inside and dests & ~inside)


@lru_cache
def _borders(target: str) -> tuple[tuple[Rectangle, int, bool, int], ...]:
    """Every rectangle of the device and its set of tiles, outwards and inwards, with its ports."""
    array = array_of(target)
    found = []
    for west in range(array.columns):
        for east in range(west, array.columns):
            for south in range(array.rows):
                for north in range(south, array.rows):
                    rectangle = Rectangle(west, east, south, north)
                    inside = sum(_bit(tile) for tile in array.tiles() if rectangle.holds(tile))
                    for outward in (True, False):
                        found.append((rectangle, inside, outward, border_ports(rectangle, array, outward=outward)))
    return tuple(found)
