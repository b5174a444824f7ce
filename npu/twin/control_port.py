# SPDX-License-Identifier: Apache-2.0
"""Control packets: a tile's control port takes words that write its locks and data memory, or ask for them.

A packet's payload is a row of requests: a word with the address (bits 19..0), the words less one (21..20), the operation
(23..22: 0 writes, 1 reads), the id of the answer (28..24) and odd parity (31); after a write its words follow. An answer
is one packet with the words that were read, sent by its id. Other registers are refused here: what a sequence of
register writes may do besides, nothing in a packet may.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from npu.device import DeviceFault
from npu.mlir.registers import register_at
from npu.program import ControlRoute, TileId
from npu.twin.memory import POISON, Memory
from npu.twin.packets import PacketNetwork, PacketStream, Parcel

if TYPE_CHECKING:
    from npu.twin.engine import Engine

WRITE, READ = 0, 1
ALWAYS = 1 << 62  # a control port has room for everything


class ControlPort:
    """One tile's port; to the network it is a sink that takes each packet when it is whole."""

    def __init__(self, tile: TileId, engine: Engine, network: PacketNetwork) -> None:
        self.tile, self.engine, self.network = tile, engine, network
        self.channel = f"the control port of {tile}"
        self.answers = PacketStream(self.channel, network)  # type: ignore[arg-type]
        self.start = self.cursor = self.offered = 0
        self.end = ALWAYS
        self.armed = False
        self.queue: deque[Parcel] = deque()
        self.sources: list[PacketStream] = []

    def deliver(self) -> None:
        """Carry out every packet that has come whole."""
        while self.queue and self.queue[0].whole:
            parcel = self.queue.popleft()
            self.cursor = parcel.base[self] + parcel.payload.nbytes  # type: ignore[index]
            self.execute([int(word) for word in parcel.payload.view(np.uint32)])

    def execute(self, words: list[int]) -> None:
        """The requests of one packet."""
        at = 0
        while at < len(words):
            request = words[at]
            at += 1
            if bin(request).count("1") % 2 == 0:
                raise DeviceFault(f"{self.channel} takes the word {request:#x}, whose parity is even")
            address, count = request & 0xFFFFF, (request >> 20 & 3) + 1
            operation = request >> 22 & 3
            if operation == WRITE:
                if at + count > len(words):
                    raise DeviceFault(f"{self.channel} is to write {count} words and gets {len(words) - at}")
                for number in range(count):
                    self.write(address + 4 * number, words[at + number])
                at += count
            elif operation == READ:
                self.answer(request >> 24 & 0x1F, [self.read(address + 4 * number) for number in range(count)])
            else:
                raise DeviceFault(f"{self.channel} takes operation {operation}; 0 writes and 1 reads")

    # ---- the tile -----------------------------------------------------------------------------

    def write(self, address: int, value: int) -> None:
        register = register_at(self.tile.kind, address)
        if register is not None and register.kind == "memory":
            memory, byte = self.memory(address)
            memory.data[byte : byte + 4] = np.array([value], np.uint32).view(np.uint8)
        elif register is not None and register.kind == "lock":
            self.engine.locks[self.lock(register.index)].set(value & 0x3F, self.channel)
        elif register is None or register.kind != "watch":
            raise self.fault("writes", address)

    def read(self, address: int) -> int:
        register = register_at(self.tile.kind, address)
        if register is not None and register.kind == "memory":
            memory, byte = self.memory(address)
            value = int(memory.data[byte : byte + 4].copy().view(np.uint32)[0])
            if value == POISON:
                raise DeviceFault(f"{self.channel} reads byte {byte} of {memory}, which nobody wrote")
            return value
        if register is not None and register.kind == "lock":
            return self.engine.locks[self.lock(register.index)].value
        raise self.fault("reads", address)

    def fault(self, what: str, address: int) -> DeviceFault:
        return DeviceFault(
            f"{self.channel} {what} offset {address:#x}: the twin's control packets reach locks and declared data memory"
        )

    def memory(self, address: int) -> tuple[Memory, int]:
        for buffer in self.engine.device.buffers:
            if buffer.tile == self.tile and buffer.address is not None:
                byte = address - buffer.address
                if 0 <= byte <= buffer.type.nbytes - 4:
                    return self.engine.buffers[buffer.name], byte
        raise self.fault("uses", address)

    def lock(self, number: int) -> str:
        for lock in self.engine.device.locks:
            if lock.tile == self.tile and lock.id == number:
                return lock.name
        raise DeviceFault(f"{self.channel} uses lock {number}, which the device does not declare")

    def answer(self, number: int, words: list[int]) -> None:
        self.answers.offer(number, 0, np.array(words, np.uint32).view(np.uint8), None, 0, f"asked of {self.channel}")


def add_control_routes(engine: Engine, network: PacketNetwork, routes: tuple[ControlRoute, ...]) -> None:
    """The ports of a device, joined to the network."""
    ports: dict[TileId, ControlPort] = {}
    for route in routes:
        port = ports.setdefault(route.tile, ControlPort(route.tile, engine, network))
        if route.into:
            stream = network.stream(route.channel)
            known, keep = stream.routes.get(route.packet_id, ((), False))
            stream.routes[route.packet_id] = ((*known, port), keep)  # type: ignore[assignment]
            port.sources.append(stream)
        else:
            sink = network.sink(route.channel)
            if port.answers not in sink.sources:
                sink.sources.append(port.answers)
            known, keep = port.answers.routes.get(route.packet_id, ((), False))
            port.answers.routes[route.packet_id] = ((*known, sink), keep or route.keep_header)
