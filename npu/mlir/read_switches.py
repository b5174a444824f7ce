# SPDX-License-Identifier: Apache-2.0
"""Routed modules: the connections of switchboxes and shim muxes, followed from source to destination.

A port is (tile, bundle, channel) as data enters it. North of a switchbox is South of the tile above; South of a shim's
is the shim mux, whose DMA ports are the shim's channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from xdsl.ir import SSAValue

from npu.array import Array
from npu.mlir.aie import tile_place
from npu.mlir.aie_switch import AmselOp, ConnectOp, MastersetOp, PacketRulesOp, RuleOp, ShimMuxOp, SwitchboxOp
from npu.mlir.read_dma import refuse
from npu.mlir.switch_ports import ARBITERS, MASKS, SELECTS, ports
from npu.mlir.text import ParsedModule
from npu.program import Channel, Direction, Route, TileId, TileKind

PACKET_IDS = 32
Port = tuple[str, int]
_ENTERS = {"North": (0, 1, "South"), "South": (0, -1, "North"), "East": (1, 0, "West"), "West": (-1, 0, "East")}


@dataclass
class _Box:
    """One switch: circuits by source, rules by source, and who listens to a select."""

    circuits: dict[Port, list[Port]] = field(default_factory=dict)
    rules: dict[Port, list[tuple[int, int, SSAValue]]] = field(default_factory=dict)
    listeners: dict[SSAValue, list[tuple[Port, bool]]] = field(default_factory=dict)


@dataclass(frozen=True)
class _End:
    """What a path reaches: a tile's port that is no way on, and whether packets keep their header."""

    tile: TileId
    port: Port
    keep_header: bool


class Switches:
    """All switches of a device."""

    def __init__(self, parsed: ParsedModule, array: Array, ops: Iterable[SwitchboxOp | ShimMuxOp]) -> None:
        self.parsed = parsed
        self.array = array
        self.boxes: dict[TileId, _Box] = {}
        self.muxes: dict[TileId, _Box] = {}
        for op in ops:
            table = self.boxes if isinstance(op, SwitchboxOp) else self.muxes
            tile = TileId(*tile_place(op.tile))
            self.fill(table.setdefault(tile, _Box()), op, tile)

    def port(self, inner: ConnectOp | MastersetOp | PacketRulesOp, tile: TileId, side: str, mux: bool) -> Port:
        """(bundle, channel) of one end of an operation; refused where the tile's switch has no such port."""
        bundle, channel = inner.properties[f"{side}_bundle"].data, inner.properties[f"{side}_channel"].value.data
        there = ports(self.array, tile, bundle, source=side == "source", mux=mux)
        if channel < 0 or (there is not None and channel >= there):
            what = f"{bundle} : {channel} as {'source' if side == 'source' else 'destination'} in {tile}"
            numbers = "none" if there == 0 else f"{bundle} : 0..{'' if there is None else there - 1}"
            raise refuse(self.parsed, inner, what, numbers)
        return bundle, channel

    def in_range(self, inner: RuleOp | AmselOp, what: str, value: int, count: int) -> int:
        if not 0 <= value < count:
            raise refuse(self.parsed, inner, f"{what} {value}", f"0..{count - 1}")
        return value

    def fill(self, box: _Box, op: SwitchboxOp | ShimMuxOp, tile: TileId) -> None:
        mux = isinstance(op, ShimMuxOp)
        for inner in (inner for block in op.connections.blocks for inner in block.ops):
            match inner:
                case ConnectOp():
                    source = self.port(inner, tile, "source", mux)
                    box.circuits.setdefault(source, []).append(self.port(inner, tile, "dest", mux))
                case MastersetOp():
                    dest = self.port(inner, tile, "dest", mux)
                    keep = inner.keep_pkt_header is not None and bool(inner.keep_pkt_header.value.data)
                    for select in inner.amsels:
                        box.listeners.setdefault(select, []).append((dest, keep))
                case PacketRulesOp():
                    source = self.port(inner, tile, "source", mux)
                    rules = [rule for each in inner.rules.blocks for rule in each.ops if isinstance(rule, RuleOp)]
                    box.rules.setdefault(source, []).extend(
                        (
                            self.in_range(rule, "mask", rule.mask.value.data, MASKS),
                            self.in_range(rule, "value", rule.value.value.data, MASKS),
                            rule.amsel,
                        )
                        for rule in rules
                    )
                case AmselOp():
                    self.in_range(inner, "arbiter", inner.arbiterID.value.data, ARBITERS)
                    self.in_range(inner, "master select", inner.msel.value.data, SELECTS)
                case _:
                    raise refuse(
                        self.parsed, inner, f"{inner.name} in a switch", "connect, amsel, masterset, packet_rules"
                    )

    # ---- following ----------------------------------------------------------------------------

    def routes(self) -> Iterator[Route]:
        """From every DMA channel with a way out: one circuit, or one route per packet id that arrives somewhere."""
        for tile, port in self.sources("DMA"):
            source = Channel(tile, Direction.MM2S, port[1])
            dests = self.channels(self.follow(tile, port, None))
            if dests:
                yield Route(source, tuple(channel for channel, _ in dests))
            for number in range(PACKET_IDS):
                dests = self.channels(self.follow(tile, port, number))
                if dests and not self.is_circuit(tile, port):
                    keep = any(kept for _, kept in dests)
                    yield Route(source, tuple(channel for channel, _ in dests), packet_id=number, keep_header=keep)

    def traces(self) -> Iterator[tuple[TileId, list[Channel]]]:
        """Where trace units send to."""
        for tile, port in self.sources("Trace"):
            reached = [self.channels(self.follow(tile, port, number)) for number in (None, *range(PACKET_IDS))]
            yield tile, list(dict.fromkeys(channel for dests in reached for channel, _ in dests))

    def is_circuit(self, tile: TileId, port: Port) -> bool:
        return port in self.first_box(tile, port).circuits and (tile.kind is not TileKind.SHIM or port[0] != "DMA")

    def first_box(self, tile: TileId, port: Port) -> _Box:
        table = self.muxes if tile.kind is TileKind.SHIM and port[0] == "DMA" else self.boxes
        return table.get(tile, _Box())

    def sources(self, bundle: str) -> Iterator[tuple[TileId, Port]]:
        """Ports of that kind from which something goes on, tile by tile."""
        for tile in sorted({*self.boxes, *self.muxes}):
            shim = tile.kind is TileKind.SHIM and bundle == "DMA"
            box = (self.muxes if shim else self.boxes).get(tile, _Box())
            for port in sorted({*box.circuits, *box.rules}):
                if port[0] == bundle:
                    yield tile, port

    def follow(self, tile: TileId, port: Port, packet: int | None) -> list[_End]:
        """All ends that data entering at a port reaches: as a circuit, or as a packet with that id."""
        ends: list[_End] = []
        shim_dma = tile.kind is TileKind.SHIM and port[0] == "DMA"
        todo = [((tile, port, shim_dma), False)]
        seen = set()
        while todo:
            here, kept = todo.pop(0)
            if here in seen:
                continue
            seen.add(here)
            place, entry, in_mux = here
            box = (self.muxes if in_mux else self.boxes).get(place, _Box())
            # A mux hands packets on as the shim's switch gave them.
            ways = [(dest, kept) for dest in box.circuits.get(entry, [])] if packet is None or in_mux else []
            if packet is not None and not in_mux:
                ways = self.by_rules(box, entry, packet)
            for dest, keep in ways:
                after = self.step(place, dest, in_mux)
                if after is None:
                    ends.append(_End(place, dest, keep))
                else:
                    todo.append((after, keep))
        return ends

    def by_rules(self, box: _Box, entry: Port, packet: int) -> list[tuple[Port, bool]]:
        for mask, value, select in box.rules.get(entry, []):
            if packet & mask == value:
                return box.listeners.get(select, [])
        return []

    def step(self, tile: TileId, port: Port, in_mux: bool) -> tuple[TileId, Port, bool] | None:
        """Where data goes that leaves a switch at `port`; None at a port of the tile itself."""
        bundle, channel = port
        if bundle not in _ENTERS:
            return None
        if in_mux:
            return tile, ("South", channel), False
        if bundle == "South" and tile.kind is TileKind.SHIM:
            return tile, ("North", channel), True
        columns, rows, enters = _ENTERS[bundle]
        return TileId(tile.col + columns, tile.row + rows), (enters, channel), False

    @staticmethod
    def channels(ends: list[_End]) -> list[tuple[Channel, bool]]:
        """DMA channels among the ends."""
        return [(Channel(e.tile, Direction.S2MM, e.port[1]), e.keep_header) for e in ends if e.port[0] == "DMA"]
