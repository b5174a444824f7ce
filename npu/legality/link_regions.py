# SPDX-License-Identifier: Apache-2.0
"""Joins and distributes: the parts of one memtile element.

Rules (verifier of ObjectFifoLinkOp, and what its offsets mean): the parts that different channels
write into one element of a FIFO must not overlap, and what is read must have been written. After
lowering a link is visible as memtile descriptors with offsets in one buffer; parts with a pattern are
compared element by element. Elements written and never read are lost, or offsets that
leave a gap: a warning. Only pools of object FIFOs are judged; hand-written designs may
overwrite by intent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from npu.array import Array
from npu.legality.violation import Basis, Severity, Violation
from npu.program import Buffer, BufferDescriptor, Channel, DeviceProgram, Direction, Program, TileKind

_SOURCE = "verifier: ObjectFifoLinkOp, offsets of join and distribute"


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Overlaps and gaps in the memtile buffers of FIFOs."""
    parts: dict[str, dict[Channel, list[BufferDescriptor]]] = defaultdict(lambda: defaultdict(list))
    for dma in device.dmas:
        if dma.channel.tile.kind is TileKind.MEMTILE:
            for bd in dma.bds:
                if bd.buffer:
                    parts[bd.buffer][dma.channel].append(bd)
    for buffer in device.buffers:
        if buffer.fifo and buffer.name in parts:
            yield from _check_buffer(device, buffer, parts[buffer.name])


def _check_buffer(
    device: DeviceProgram, buffer: Buffer, parts: dict[Channel, list[BufferDescriptor]]
) -> Iterator[Violation]:
    elements = buffer.type.elements
    written = np.zeros(elements, dtype=bool)
    read = np.zeros(elements, dtype=bool)
    where = f"@{device.name}, {buffer.tile}, {buffer.fifo} ({buffer.name})"
    for channel, bds in sorted(parts.items()):
        mask = np.zeros(elements, dtype=bool)
        for bd in bds:
            touched = touched_elements(bd)
            mask[touched[(touched >= 0) & (touched < elements)]] = True
        if channel.direction is Direction.MM2S:
            read |= mask
            continue
        if (both := written & mask).any():
            yield _violation(
                "parts of a join",
                f"{int(both.sum())} elements written by {channel} and another channel",
                "parts that do not overlap",
                where,
                f"move the part's offset, from element {int(both.argmax())} on",
            )
        written |= mask
    directions = {c.direction for c in parts}
    if directions != {Direction.S2MM, Direction.MM2S} or buffer.initial is not None:
        return
    for mask, asked, change, severity in (
        (read & ~written, "read, never written", "let the parts of the join cover the element", Severity.ERROR),
        (written & ~read, "written, never read", "let the parts of the link cover the element", Severity.WARNING),
    ):
        if mask.any():
            yield _violation(
                "parts of a link",
                f"{int(mask.sum())} elements {asked}, from {int(mask.argmax())} on",
                "none",
                where,
                change,
                severity,
            )


def touched_elements(bd: BufferDescriptor) -> np.ndarray:
    """Flat indices of the elements that one execution moves; shape [elements moved]."""
    if not bd.dims:
        return bd.offset + np.arange(bd.length)
    index = np.array([bd.offset])
    for dim in bd.dims:
        index = (index[:, None] + np.arange(dim.size) * dim.stride).reshape(-1)
    return index


def _violation(
    limit: str, asked: str, available: str, where: str, change: str, severity: Severity = Severity.ERROR
) -> Violation:
    return Violation(limit, asked, available, where, _SOURCE, change, severity=severity, basis=Basis.INFERRED)
