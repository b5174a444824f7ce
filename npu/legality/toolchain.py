# SPDX-License-Identifier: Apache-2.0
"""Faults of the toolchain, by version. Warnings: the text is right, the compiler of that version is not.

Odd number of array resets in an entry (fixed in mlir-aie #3622, 2026-08-28): the firmware skips a
configuration image equal to the last one it loaded; with an odd number of them the reset at the next
dispatch is lost, and results are right once and stale from then on (faults RT-02).

Known and not judged here:

- Odd DMA iteration counts (faults KN-02, KN-03: zeros after the first tiles, K tiles of 160 in 960). They come
  from mlir-air's lowering, which splits loops into ping and pong halves; its programs have no counterpart
  in this pack's designs, whose in-array DMAs are endless rings without counts. Odd counts of shim
  iterations and of FIFO elements are legal, and the twin computes them.
- dma_configure_task with a non-unit innermost stride and unit outer sizes was lowered as a flat copy before
  2026-03-06 (#2932). The oldest text this pack reads is of 2026-03-14.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from npu.array import Array
from npu.legality.dispatch_list import runs
from npu.legality.violation import Basis, Severity, Violation
from npu.program import DeviceProgram, Program

# Date of the mlir-aie commit behind each spelling; "current" is newer than every fault listed here.
SPELLING_DATES = {"2026-03": date(2026, 3, 14)}


@dataclass(frozen=True)
class Fault:
    """A fault of mlir-aie and the day it was fixed."""

    name: str
    fixed: date
    reference: str

    def concerns(self, spelling: str) -> bool:
        return spelling in SPELLING_DATES and SPELLING_DATES[spelling] < self.fixed


ODD_RESETS = Fault("odd number of array resets", date(2026, 8, 28), "mlir-aie #3622, mlir-air #1946")


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Entries that configure the array an odd number of times, under a compiler that loses the last reset."""
    if not ODD_RESETS.concerns(program.spelling):
        return
    for sequence in device.sequences:
        resets = sum(run.reconfigure for run in runs(program, device, sequence))
        if resets % 2:
            yield Violation(
                limit="array resets per dispatch",
                asked=resets,
                available="an even number",
                unit="resets",
                where=f"@{device.name} @{sequence.name}",
                source=f"{ODD_RESETS.reference}; fixed {ODD_RESETS.fixed}",
                change="compile with an mlir-aie of 2026-08-28 or later, or make the number of configures even",
                severity=Severity.WARNING,
                basis=Basis.INFERRED,
            )
