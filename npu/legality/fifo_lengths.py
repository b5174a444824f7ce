# SPDX-License-Identifier: Apache-2.0
"""Transfers that never come out even.

Rules, inferred from how streams and rings work together:

- an in-array ring takes (or gives) whole descriptors. What one sequence sends into a ring through a
  shim channel, or takes out of one, must end at the end of a descriptor; else the last element is
  never complete, and the cores wait for ever or the next dispatch starts in the middle;
- two rings at the two ends of a stream should move equal amounts, or one a multiple of the other. If
  neither divides the other, data shifts from element to element: a warning, since a design may mean it.

Padding, packets and chains that end are not judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from npu.array import Array
from npu.legality.violation import Basis, Severity, Violation
from npu.program import (
    Channel,
    ConfigureTask,
    DeviceProgram,
    Direction,
    DmaProgram,
    Program,
    Sequence,
    StartTask,
    TileKind,
)

_SOURCE = "DMA semantics: a descriptor is done, and its lock released, only after its whole length"


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Shim totals per sequence against the rings they meet, and rings against rings."""
    rings = _rings(device)
    partners = _partners(device)
    for sequence in device.sequences:
        for channel, total in _totals(sequence).items():
            for partner in partners.get(channel, ()):
                if ring := rings.get(partner):
                    yield from _even(device, sequence, channel, total, ring)
    for route in device.routes:
        if route.packet_id is None and route.source in rings:
            for dest in route.dests:
                if dest in rings:
                    yield from _matching(device, rings[route.source], rings[dest], route.name)


def _even(
    device: DeviceProgram, sequence: Sequence, channel: Channel, total: int, ring: DmaProgram
) -> Iterator[Violation]:
    lengths = _lengths(ring)
    around = sum(lengths)
    stops = {end % around for end in accumulate(lengths)}
    if total % around in stops:
        return
    element = lengths[0] if len(set(lengths)) == 1 else around
    fifo = _fifo_of(device, ring)
    yield Violation(
        limit="whole FIFO elements per sequence",
        asked=total,
        available=f"a multiple of {element}",
        unit="bytes",
        where=f"@{device.name}, @{sequence.name}, {channel} to {ring.channel}" + (f" ({fifo})" if fifo else ""),
        source=_SOURCE,
        change=f"move {total // element * element} or {(total // element + 1) * element} bytes, or change the element",
        detail=f"{total // element} elements and {total % element} bytes",
        basis=Basis.INFERRED,
    )


def _matching(device: DeviceProgram, source: DmaProgram, dest: DmaProgram, name: str) -> Iterator[Violation]:
    sent, taken = set(_lengths(source)), set(_lengths(dest))
    if len(sent) > 1 or len(taken) > 1:
        return
    (s,), (t,) = sent, taken
    if s % t and t % s:
        yield Violation(
            limit="matching element sizes of a stream",
            asked=f"{s} bytes sent, {t} bytes taken at a time",
            available="one a multiple of the other",
            where=f"@{device.name}, {name or 'stream'} from {source.channel} to {dest.channel}",
            source=_SOURCE,
            change="give both ends elements of one size; of a link, offsets that cut the element evenly",
            severity=Severity.WARNING,
            basis=Basis.INFERRED,
        )


def _rings(device: DeviceProgram) -> dict[Channel, DmaProgram]:
    programs: dict[Channel, list[DmaProgram]] = defaultdict(list)
    for dma in device.dmas:
        programs[dma.channel].append(dma)
    return {c: p[0] for c, p in programs.items() if len(p) == 1 and _judged(p[0])}


def _judged(dma: DmaProgram) -> bool:
    """A ring through all its descriptors in order, without padding or packets."""
    in_order = all(bd.next == (n + 1) % len(dma.bds) for n, bd in enumerate(dma.bds))
    plain = all(not bd.padding and bd.packet is None and bd.length > 0 for bd in dma.bds)
    return bool(dma.bds) and in_order and plain


def _partners(device: DeviceProgram) -> dict[Channel, list[Channel]]:
    """Shim channel -> channels at the other end of its circuit; none where streams merge."""
    found: dict[Channel, list[Channel]] = defaultdict(list)
    packets = {end for r in device.routes if r.packet_id is not None for end in (r.source, *r.dests)}
    for route in device.routes:
        for dest in route.dests:
            if route.source in packets or dest in packets:
                continue
            for end, other in ((route.source, dest), (dest, route.source)):
                if end.tile.kind is TileKind.SHIM and other.tile.kind is not TileKind.SHIM:
                    found[end].append(other)
    return found


def _totals(sequence: Sequence) -> dict[Channel, int]:
    """Bytes that the started tasks of each shim channel move."""
    tasks = {i.task: i for i in sequence.instructions if isinstance(i, ConfigureTask)}
    totals: dict[Channel, int] = defaultdict(int)
    for instruction in sequence.instructions:
        if isinstance(instruction, StartTask) and instruction.task in tasks:
            task = tasks[instruction.task]
            totals[task.channel] += task_bytes(task)
    return totals


def task_bytes(task: ConfigureTask) -> int:
    """Bytes that one start of `task` moves."""
    return (1 + task.repeat_count) * sum(bd.length * bd.element_bytes for bd in task.bds)


def _lengths(dma: DmaProgram) -> list[int]:
    return [bd.length * bd.element_bytes for bd in dma.bds]


def _fifo_of(device: DeviceProgram, ring: DmaProgram) -> str:
    names = {b.name: b.fifo for b in device.buffers}
    direction = "into" if ring.channel.direction is Direction.S2MM else "out of"
    fifo = names.get(ring.bds[0].buffer or "")
    return f"{direction} {fifo}" if fifo else ""
