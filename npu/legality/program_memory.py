# SPDX-License-Identifier: Apache-2.0
"""Program memory: 16 KiB a core, estimated from the body.

The text holds no machine code, so the size is an estimate between two bounds, in bytes:

| part | least | usual | basis |
|---|---|---|---|
| start-up, main, stack set-up | 128 | 512 | a crt and one entry function |
| call site | 12 | 64 | jump and link with five delay slots, and its arguments |
| lock operation | 4 | 32 | acquire or release with its address |
| loop or branch | 8 | 64 | compare, jump, delay slots |
| scalar operation | 2 | 16 | one slot; one 128-bit bundle |
| distinct kernel function | 16 | 2048 | an empty function; a small vector loop nest |

Static FIFO lowering unrolls each loop that acquires elements by the least common multiple of the pool
sizes (remainder included), which multiplies all of that; dynamic lowering does not. Published sizes:
attention text of 11,760 B with 4 rounds unrolled, 19,328 B with 8; 17,168 B was refused (mlir-air).

A program is refused only if even the least estimate is over; a usual estimate over the limit warns.
Stack need is not estimated: nothing in the text says what a kernel spills.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

from npu.array import SOURCES, Array
from npu.legality.statements import acquired_depths, children, constants, trip_count, walk
from npu.legality.violation import Basis, Severity, Violation
from npu.program import (
    Acquire,
    Blocks,
    Call,
    Core,
    DeviceProgram,
    For,
    If,
    Loop,
    Program,
    Release,
    Statement,
    UseLock,
    While,
)


@dataclass(frozen=True)
class Costs:
    """Bytes of code per part of a body."""

    start: int
    call: int
    lock: int
    branch: int
    operation: int
    kernel: int


LEAST = Costs(start=128, call=12, lock=4, branch=8, operation=2, kernel=16)
USUAL = Costs(start=512, call=64, lock=32, branch=64, operation=16, kernel=2048)


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Cores whose code is over 16 KiB at least (error) or usually (warning)."""
    available = array.core.program_memory_bytes
    for core in device.cores:
        least, usual = estimate(core, LEAST), estimate(core, USUAL)
        if usual <= available:
            continue
        certain = least > available
        yield Violation(
            limit="program memory",
            asked=least if certain else usual,
            available=available,
            unit="bytes",
            where=f"@{device.name}, {core.tile}",
            source=SOURCES["program_memory_bytes"],
            change=(
                "call fewer distinct kernels, or loop over FIFO elements instead of repeating them"
                if core.dynamic_fifo_lowering
                else "set dynamic_objfifo_lowering on the core, so that loops are not unrolled by FIFO depth"
            ),
            detail=f"between {least} and {usual}, from call sites, lock operations, loops and kernels after unrolling",
            severity=Severity.ERROR if certain else Severity.WARNING,
            basis=Basis.ESTIMATED,
        )


def estimate(core: Core, costs: Costs) -> int:
    """Bytes of code of `core` under `costs`."""
    kernels = {s.function for s in walk(core.body) if isinstance(s, Call)}
    return costs.start + len(kernels) * costs.kernel + _size(core.body, core, constants(core), costs)


def _size(body: tuple[Statement, ...], core: Core, known: dict[str, int], costs: Costs) -> int:
    total = 0
    for statement in body:
        inside = _size(children(statement), core, known, costs)
        if isinstance(statement, For | While | Loop | If | Blocks):
            total += costs.branch + inside * _copies(statement, core, known)
        elif isinstance(statement, Call):
            total += costs.call
        elif isinstance(statement, Acquire | Release | UseLock):
            total += costs.lock
        else:
            total += costs.operation
    return total


def _copies(statement: Statement, core: Core, known: dict[str, int]) -> int:
    if core.dynamic_fifo_lowering or not isinstance(statement, For):
        return 1
    depths = acquired_depths(statement, core)
    factor = lcm(*depths) if depths else 1
    trips = trip_count(statement, known)
    if not trips or factor <= 1:
        return 1
    if trips <= factor:
        return trips
    return factor + trips % factor
