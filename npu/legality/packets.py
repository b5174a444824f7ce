# SPDX-License-Identifier: Apache-2.0
"""Packet-switched streams.

Rules: a packet id has 5 bits, a type 3 (verifiers of DMABDOp and NpuWriteBdOp); one S2MM channel takes
at most 4 packet ids (mlir-air); a circuit-switched and a packet-switched stream do not end in one
channel (a destination port of the switch is one or the other).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from npu.array import SOURCES, Array
from npu.legality.violation import Basis, Violation
from npu.program import BufferDescriptor, Channel, ConfigureTask, DeviceProgram, Program


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Ids and types out of range, and crowded destinations."""
    for where, packet_id in _ids(device):
        yield from _in_range("packet id", packet_id, array.packet_id_max, SOURCES["packet_id_max"], where)
    for where, bd in _descriptors(device):
        if bd.packet is not None:
            yield from _in_range("packet type", bd.packet[0], array.packet_type_max, SOURCES["packet_type_max"], where)
            yield from _in_range("packet id", bd.packet[1], array.packet_id_max, SOURCES["packet_id_max"], where)
    ids: dict[Channel, set[int]] = defaultdict(set)
    circuits: set[Channel] = set()
    for route in device.routes:
        for dest in route.dests:
            if route.packet_id is None:
                circuits.add(dest)
            else:
                ids[dest].add(route.packet_id)
    for dest, arriving in ids.items():
        if len(arriving) > array.packet_ids_per_destination:
            yield Violation(
                limit="packet ids into one channel",
                asked=len(arriving),
                available=array.packet_ids_per_destination,
                unit="ids",
                where=f"@{device.name}, {dest}",
                source=SOURCES["packet_ids_per_destination"],
                change="split the senders over two channels or two tiles",
                detail=f"ids {', '.join(map(str, sorted(arriving)))}",
            )
        if dest in circuits:
            yield Violation(
                limit="kinds of stream into one channel",
                asked="a circuit and packets",
                available="one of the two",
                where=f"@{device.name}, {dest}",
                source="stream switch: a master port is circuit-switched or packet-switched",
                change="make all streams into it packet flows, or use another channel",
                basis=Basis.INFERRED,
            )


def _in_range(limit: str, value: int, maximum: int, source: str, where: str) -> Iterator[Violation]:
    if not 0 <= value <= maximum:
        yield Violation(
            limit=limit,
            asked=value,
            available=f"0..{maximum}",
            where=where,
            source=source,
            change=f"number {limit}s from 0 to {maximum}",
        )


def _ids(device: DeviceProgram) -> Iterator[tuple[str, int]]:
    for route in device.routes:
        if route.packet_id is not None:
            yield f"@{device.name}, packet flow {route.name}", route.packet_id


def _descriptors(device: DeviceProgram) -> Iterator[tuple[str, BufferDescriptor]]:
    for dma in device.dmas:
        for n, bd in enumerate(dma.bds):
            yield bd.where or f"@{device.name}, {dma.channel}, BD {n}", bd
    for sequence in device.sequences:
        for instruction in sequence.instructions:
            if isinstance(instruction, ConfigureTask):
                for bd in instruction.bds:
                    yield bd.where or f"@{device.name}, @{sequence.name}, task {instruction.task}", bd
