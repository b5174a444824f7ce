# SPDX-License-Identifier: Apache-2.0
"""Alignment of buffers that kernels load as vectors.

Rule: a vector load or store of aie_api wants its natural alignment, up to 64 bytes for 512 bits on
AIE2P (32 on AIE2); hardware drops the low address bits, so the kernel reads its neighbour's data in
silence. mlir-aie's placement does not align: in a bank, a buffer follows the one before. Whether a
kernel loads vectors is not in the text, so this is a warning, and it is inferred. (4-byte
alignment of what a DMA moves is in access_patterns.)
"""

from __future__ import annotations

from collections.abc import Iterator

from npu.array import SOURCES, Array
from npu.legality.statements import walk
from npu.legality.violation import Basis, Severity, Violation
from npu.program import Call, Core, DeviceProgram, Op, Program


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Placed buffers of vector size that a kernel gets at an unaligned address."""
    step = array.vector_bytes
    buffers = {b.name: b for b in device.buffers}
    reported = set()
    for core in device.cores:
        for name in _passed_to_kernels(core):
            buffer = buffers.get(name)
            if buffer is None or buffer.address is None or buffer.type.nbytes < step or name in reported:
                continue
            if buffer.address % step:
                reported.add(name)
                yield Violation(
                    limit="vector alignment",
                    asked=f"address {buffer.address}, {buffer.address % step} past a multiple",
                    available=f"multiples of {step} bytes",
                    where=f"@{device.name}, {buffer.tile}, buffer {name}",
                    source=SOURCES["vector_bytes"],
                    change=f"make stack and buffers before it multiples of {step} bytes, or fix its address",
                    severity=Severity.WARNING,
                    basis=Basis.INFERRED,
                )


def _passed_to_kernels(core: Core) -> Iterator[str]:
    defined = {s.result: s for s in walk(core.body) if isinstance(s, Op) and s.result}
    if any(isinstance(s, Call) for s in walk(core.body)):
        for end in core.ends:
            yield from end.pool
    for statement in walk(core.body):
        if isinstance(statement, Call):
            yield from (name for name in statement.operands if name not in defined)
