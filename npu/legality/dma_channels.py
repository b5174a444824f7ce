# SPDX-License-Identifier: Apache-2.0
"""DMA channels: 2 per direction on a core and a shim, 6 on a memtile.

Rules (target model; the stream switch): channel indices exist; no two circuit-switched streams end in
one S2MM channel (the router says that they target the same destination); a route goes from MM2S to
S2MM. One source with several destinations is a broadcast and takes one channel. Packet-switched
streams may share a destination: see packets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from npu.array import SOURCES, Array
from npu.legality.violation import Violation
from npu.program import Channel, ConfigureTask, DeviceProgram, Direction, Program, TileId


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Channels that do not exist, and destinations with two sources."""
    used: dict[tuple[TileId, Direction], set[int]] = defaultdict(set)
    for channel in _channels(device):
        used[channel.tile, channel.direction].add(channel.index)
    for (tile, direction), indices in sorted(used.items()):
        available = array.limits(tile).channels
        if any(not 0 <= index < available for index in indices):
            yield Violation(
                limit="DMA channels",
                asked=max(len(indices), max(indices) + 1),
                available=available,
                unit=f"{direction} channels",
                where=f"@{device.name}, {tile}",
                source=SOURCES["channels"],
                change="let streams take turns in one FIFO, broadcast one, or bring one through a memtile",
                detail=f"indices {', '.join(map(str, sorted(indices)))}",
            )
    yield from _destinations(device)
    for route in device.routes:
        if route.source.direction is not Direction.MM2S or any(d.direction is not Direction.S2MM for d in route.dests):
            yield Violation(
                limit="direction of a route",
                asked=f"{route.source} to {', '.join(map(str, route.dests))}",
                available="MM2S to S2MM",
                where=f"@{device.name}, route {route.name}",
                source=SOURCES["channels"],
                change="start the route at a MM2S channel and end it at S2MM channels",
            )


def _destinations(device: DeviceProgram) -> Iterator[Violation]:
    sources: dict[Channel, dict[Channel, str]] = defaultdict(dict)
    for route in device.routes:
        if route.packet_id is None:
            for dest in route.dests:
                sources[dest][route.source] = route.name
    for dest, by_source in sources.items():
        if len(by_source) > 1:
            yield Violation(
                limit="circuit streams into one channel",
                asked=len(by_source),
                available=1,
                where=f"@{device.name}, {dest}",
                source="router of mlir-aie: a destination port takes one circuit-switched source",
                change="use another channel, or packet-switched flows",
                detail=" and ".join(f"{name or 'a flow'} from {source}" for source, name in by_source.items()),
            )


def _channels(device: DeviceProgram) -> Iterator[Channel]:
    for route in device.routes:
        yield route.source
        yield from route.dests
    for dma in device.dmas:
        yield dma.channel
    for sequence in device.sequences:
        for instruction in sequence.instructions:
            if isinstance(instruction, ConfigureTask):
                yield instruction.channel
