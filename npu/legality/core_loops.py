# SPDX-License-Identifier: Apache-2.0
"""Core loops around FIFO operations, under static lowering.

Rule (mlir-aie, unrollForLoops of the object FIFO pass): without `dynamic_objfifo_lowering` a loop that
acquires elements directly in its body is unrolled, so its bounds must be constants and it must run at
least once. With other bounds the pass repeats its error without end, which no time-out explains;
hence a refusal here. Loops without FIFO operations, and dynamic lowering, may have any bounds.
"""

from __future__ import annotations

from collections.abc import Iterator

from npu.array import Array
from npu.legality.statements import acquired_depths, constants, trip_count, walk
from npu.legality.violation import Violation
from npu.program import DeviceProgram, For, Program

_SOURCE = "pass aie-objectFifo-stateful-transform, unrollForLoops"


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """FIFO loops that static lowering cannot unroll."""
    for core in device.cores:
        if core.dynamic_fifo_lowering:
            continue
        known = constants(core)
        for loop in walk(core.body):
            if not isinstance(loop, For) or not acquired_depths(loop, core):
                continue
            trips = trip_count(loop, known)
            if trips:
                continue
            yield Violation(
                limit="constant bounds of a FIFO loop",
                asked="no iteration" if trips == 0 else f"bounds {loop.lower} to {loop.upper} step {loop.step}",
                available="constant bounds with at least one iteration, under static FIFO lowering",
                where=f"@{device.name}, {core.tile}, loop over {loop.variable}",
                source=_SOURCE,
                change="set dynamic_objfifo_lowering = true on the core, or make the bounds constants",
            )
