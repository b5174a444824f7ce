# SPDX-License-Identifier: Apache-2.0
"""Packet-switched streams: each execution of an MM2S BD is one packet, sent by its id to one or more S2MM channels.

Several sources may share a destination. A packet holds every destination it goes to from its first word to its last
(TLAST), and destinations take packets in the order in which they were offered; silicon arbitrates by arrival too, so a
design whose result depends on that order is not deterministic there. The header word is dropped at the destination
unless the flow keeps it. A BD without a packet on such a source sends its first word as the header.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from npu.device import DeviceFault
from npu.program import Channel, ConfigureTask, DeviceProgram, Direction, Route
from npu.twin.stream import FIFO_BYTES, Process, Transfer

if TYPE_CHECKING:
    from npu.twin.schedule import Recorder

ID_MASK = 0x1F


def header_word(kind: int, number: int) -> int:
    """Header of a packet: id in bits 4..0, type in bits 14..12, odd parity in bit 31."""
    word = (number & ID_MASK) | (kind & 7) << 12
    return word | (0 if bin(word).count("1") % 2 else 1 << 31)


def unrecordable(device: DeviceProgram) -> str | None:
    """Why a run of these packets cannot be replayed: words that no memory holds, or ids that stand in data."""
    sources = {route.source for route in device.routes if route.packet_id is not None}
    if device.cascades:
        return f"values go from {device.cascades[0][0]} to {device.cascades[0][1]} by a cascade, which no memory holds"
    if device.control_routes:
        return f"control packets reach {device.control_routes[0].tile}"
    for route in device.routes:
        if route.packet_id is not None and route.keep_header:
            return f"packet flow {route.packet_id} keeps its header, which no memory holds"
    bds = [(dma.channel, bd) for dma in device.dmas for bd in dma.bds]
    for sequence in device.sequences:
        tasks = (task for task in sequence.instructions if isinstance(task, ConfigureTask))
        bds += [(task.channel, bd) for task in tasks for bd in task.bds]
    for channel, bd in bds:
        if channel in sources and channel.direction is Direction.MM2S and bd.packet is None:
            return f"{channel} sends packets whose headers stand in the data"
    return None


class Parcel:
    """One packet under way. `base` is its first byte in each destination's stream; `order` the recorder's count."""

    __slots__ = ("base", "entered", "order", "payload", "sinks", "skip", "stream", "transfer")

    def __init__(self, stream: PacketStream, transfer: Transfer, payload: np.ndarray, skip: int, order: int) -> None:
        self.stream, self.transfer, self.payload, self.skip, self.order = stream, transfer, payload, skip, order
        self.sinks: tuple[PacketSink, ...] = ()
        self.base: dict[PacketSink, int] = {}
        self.entered = 0

    @property
    def whole(self) -> bool:
        return self.entered == self.payload.nbytes


class PacketSink:
    """An S2MM channel that takes packets. start..end is the armed BD's range in its stream, as in `stream.Sink`."""

    def __init__(self, channel: Channel, network: PacketNetwork) -> None:
        self.channel, self.network = channel, network
        self.start = self.end = self.cursor = self.offered = self.moved = 0
        self.armed = False
        self.transfer: Transfer | None = None
        self.process: Process | None = None
        self.queue: deque[Parcel] = deque()
        self.sources: list[PacketStream] = []
        self.stream = self  # what messages name
        self.name = f"packets into {channel}"

    def arm(self, transfer: Transfer, process: Process) -> None:
        """Offer room for one BD; `armed` turns False when it is full."""
        self.transfer, self.process = transfer, process
        self.start = self.end
        self.end = self.start + transfer.nbytes
        self.armed = True
        self.network.advance()

    def deliver(self) -> None:
        """Write what has come of the armed BD, once it is full or its last packet is whole."""
        arrived = max((p.base[self] + p.entered for p in self.queue), default=self.cursor)
        upto = min(arrived, self.end)
        if not self.armed or upto <= self.cursor:
            return
        if upto < self.end and not self.queue[-1].whole:
            return
        transfer, first = self.transfer, self.cursor
        for parcel in self.queue:
            begin = max(self.cursor, parcel.base[self])
            count = min(upto, parcel.base[self] + parcel.entered) - begin
            if count <= 0:
                continue
            offset, into = begin - parcel.base[self], begin - self.start
            data = parcel.payload[offset : offset + count]
            if count == transfer.nbytes:
                transfer.pattern.scatter(transfer.memory.data, transfer.offset, data)
            else:
                transfer.pattern.scatter_part(transfer.memory.data, transfer.offset, into, data)
            if self.network.recorder is not None:
                # A parcel has what the recorder reads of a Sending: its transfer and its order.
                self.network.recorder.copy(parcel, offset + parcel.skip, transfer, into, count, True)  # type: ignore[arg-type]
            self.cursor = begin + count
        self.moved += self.cursor - first
        while self.queue and self.cursor >= self.queue[0].base[self] + self.queue[0].payload.nbytes:
            self.queue.popleft()
        if self.cursor == self.end:
            self.armed = False
            if self.process.wait is not None:
                self.network.ready.append(self.process)


class PacketStream:
    """The packets of one MM2S channel; the interface of `stream.Stream` that channels use."""

    def __init__(self, source: Channel, network: PacketNetwork) -> None:
        self.source, self.network = source, network
        self.name = f"packets from {source}"
        self.pushed = self.flow = self.moved = 0
        self.routes: dict[int, tuple[tuple[PacketSink, ...], bool]] = {}
        self.source_process: Process | None = None

    @property
    def sinks(self) -> list[PacketSink]:
        return list(dict.fromkeys(sink for sinks, _ in self.routes.values() for sink in sinks))

    def push(self, transfer: Transfer, data: np.ndarray, process: Process) -> None:
        """Offer one packet; it has gone when `flow == pushed`."""
        if transfer.packet is not None:
            kind, number = transfer.packet
            header, skip = np.array([header_word(kind, number)], np.uint32).view(np.uint8), 0
        else:
            header, skip = data[:4], 4
            number = int(data[:4].view(np.uint32)[0]) & ID_MASK
        self.offer(number, header, data[skip:], transfer, skip, transfer.where)
        self.source_process = process
        self.network.advance()

    def offer(
        self,
        number: int,
        header: np.ndarray | int,
        data: np.ndarray,
        transfer: Transfer | None,
        skip: int,
        where: str,
    ) -> None:
        """Put a packet with that id on its way. header: its word, or the type of one to be made."""
        if number not in self.routes:
            raise DeviceFault(
                f"{self.source} sends a packet with id {number}; packet flows start there for ids {sorted(self.routes)}"
                f" ({where})"
            )
        if isinstance(header, int):
            header = np.array([header_word(header, number)], np.uint32).view(np.uint8)
        sinks, keep = self.routes[number]
        payload = np.concatenate([header, data]) if keep else data
        order = self.network.recorder.count if self.network.recorder is not None else 0
        parcel = Parcel(self, transfer, payload, 0 if keep else skip, order)
        parcel.sinks = sinks
        for sink in sinks:
            parcel.base[sink] = sink.offered
            sink.offered += payload.nbytes
            sink.queue.append(parcel)
        self.pushed += payload.nbytes
        self.moved += payload.nbytes
        self.network.active.append(parcel)

    def slow(self) -> list[PacketSink]:
        """Destinations that hold the packet under way back."""
        mine = [parcel for parcel in self.network.active if parcel.stream is self]
        return [sink for parcel in mine for sink in parcel.sinks]

    def leftover(self) -> int:
        """Bytes that entered, or wait to enter, and that some destination has not written."""
        sinks = self.sinks
        left = {
            id(parcel): max(s.queue and parcel.base[s] + parcel.payload.nbytes - s.cursor for s in parcel.sinks)
            for sink in sinks
            for parcel in sink.queue
            if parcel.stream is self
        }
        return sum(max(0, min(value, self.pushed)) for value in left.values())


class PacketNetwork:
    """All packet flows of a device."""

    def __init__(self, ready: deque[Process], recorder: Recorder | None) -> None:
        self.ready, self.recorder = ready, recorder
        self.streams: dict[Channel, PacketStream] = {}
        self.sinks: dict[Channel, PacketSink] = {}
        self.active: list[Parcel] = []

    def add(self, route: Route) -> None:
        """One packet flow."""
        stream = self.stream(route.source)
        sinks = []
        for dest in route.dests:
            sink = self.sink(dest)
            if stream not in sink.sources:
                sink.sources.append(stream)
            sinks.append(sink)
        known, keep = stream.routes.get(route.packet_id, ((), route.keep_header))
        stream.routes[route.packet_id] = ((*known, *sinks), keep or route.keep_header)

    def stream(self, source: Channel) -> PacketStream:
        """What a channel sends into, made when first named."""
        if source not in self.streams:
            self.streams[source] = PacketStream(source, self)
        return self.streams[source]

    def sink(self, dest: Channel) -> PacketSink:
        """What a channel takes from, made when first named."""
        if dest not in self.sinks:
            self.sinks[dest] = PacketSink(dest, self)
        return self.sinks[dest]

    def advance(self) -> None:
        """Let bytes enter where every destination has room, write what is complete, wake who has ended."""
        moved = True
        while moved:
            moved = False
            for parcel in tuple(self.active):
                limit = parcel.payload.nbytes
                for sink in parcel.sinks:
                    first = next(p for p in sink.queue if not p.whole)
                    room = sink.end + FIFO_BYTES - parcel.base[sink] if first is parcel else 0
                    limit = min(limit, max(room, parcel.entered))
                if limit > parcel.entered:
                    parcel.stream.flow += limit - parcel.entered
                    parcel.entered = limit
                    moved = True
                for sink in parcel.sinks:
                    sink.deliver()
                if parcel.whole:
                    self.active.remove(parcel)
                    process, parcel.stream.source_process = parcel.stream.source_process, None
                    if process is not None and process.wait is not None:
                        self.ready.append(process)
        for sink in self.sinks.values():
            if sink.armed:
                sink.deliver()
