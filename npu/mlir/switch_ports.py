# SPDX-License-Identifier: Apache-2.0
"""The ports of a stream switch, as a routed module names them: a bundle (North, DMA, ...) and a number in it.

Numbers follow mlir-aie's target model of 2026-03 (getNumSourceSwitchboxConnections, getNumDestSwitchboxConnections and
their shim mux relatives). A port where data enters is a source, one where it leaves a destination.
"""

from __future__ import annotations

from npu.array import Array
from npu.program import TileId, TileKind

SHIM_SOUTH_SOURCES, SHIM_SOUTH_DESTS = 8, 6  # between a shim's switch and its mux
MASKS, SELECTS, ARBITERS = 32, 4, 6  # of packet ids; master selects of an arbiter; arbiters of a switch


def ports(array: Array, tile: TileId, bundle: str, *, source: bool, mux: bool) -> int | None:
    """How many ports of that bundle there are; None for a bundle that is not counted here (Core, FIFO, Trace, ...)."""
    if bundle == "DMA":
        return array.limits(tile).channels if mux or tile.kind is not TileKind.SHIM else 0
    if mux:
        # North of the mux is South of the switch, seen from the other side.
        return (SHIM_SOUTH_DESTS if source else SHIM_SOUTH_SOURCES) if bundle == "North" else None
    if tile.kind is TileKind.SHIM and bundle == "South":
        return SHIM_SOUTH_SOURCES if source else SHIM_SOUTH_DESTS
    towards = {"North": (0, 1, "south"), "South": (0, -1, "north"), "East": (1, 0, "west"), "West": (-1, 0, "east")}
    if bundle not in towards:
        return None
    column, row, back = towards[bundle]
    if not source:
        return getattr(array.ports(tile), bundle.lower())
    # What comes in from a neighbour has left it by the port that leads here.
    neighbour = TileId(tile.col + column, tile.row + row)
    return getattr(array.ports(neighbour), back) if array.contains(neighbour) else 0
