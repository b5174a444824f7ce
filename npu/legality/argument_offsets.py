# SPDX-License-Identifier: Apache-2.0
"""Arguments of sequences: 32-bit byte offsets, and bounds.

Rules: the address patch of a shim descriptor adds a 32-bit byte offset to the argument's address, so a
transfer starts less than 4 GiB into it; with runs, the offset of the slice counts too. Beyond,
the offset wraps in silence and layer 33 reads layer 0 (faults KN-19). A transfer lies within its
argument and a slice within the outer one: the device does not check, and reads or writes
whatever the host has there.
"""

from __future__ import annotations

from collections.abc import Iterator

from npu.array import SOURCES, Array
from npu.legality.access_patterns import extent
from npu.legality.dispatch_list import Argument, RunBegin, runs
from npu.legality.violation import Basis, Violation
from npu.program import ConfigureTask, DeviceProgram, Program, Sequence


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Bounds within each sequence, slices and offsets over each dispatch list."""
    farthest: dict[tuple[str, str], list[int]] = {}
    for sequence in device.sequences:
        where = f"@{device.name} @{sequence.name}"
        yield from _bounds(sequence, where)
        whole = tuple(Argument(n, 0, ref.nbytes) for n, ref in enumerate(sequence.arguments))
        yield from _offsets(_farthest_starts(sequence), whole, array, where)
        for run in runs(program, device, sequence):
            yield from _slices(sequence, run, where)
            name = run.device.name, run.sequence.name
            if name not in farthest:
                farthest[name] = _farthest_starts(run.sequence)
            yield from _offsets(farthest[name], run.arguments, array, f"{where}, {run.where}")


def _bounds(sequence: Sequence, where: str) -> Iterator[Violation]:
    for task in sequence.instructions:
        if not isinstance(task, ConfigureTask):
            continue
        for n, bd in enumerate(task.bds):
            if bd.argument is None:
                continue
            place = bd.where or task.where or f"{where}, task {task.task}, BD {n}"
            if not 0 <= bd.argument < len(sequence.arguments):
                yield Violation(
                    limit="arguments of the sequence",
                    asked=f"argument {bd.argument}",
                    available=f"{len(sequence.arguments)} arguments",
                    where=place,
                    source="aie.runtime_sequence",
                    change="name an argument that the sequence has",
                )
                continue
            nbytes = sequence.arguments[bd.argument].nbytes
            end = (bd.offset + extent(bd, 1 + task.repeat_count)) * bd.element_bytes
            if bd.offset < 0 or end > nbytes:
                yield Violation(
                    limit="bounds of the argument",
                    asked=f"bytes {bd.offset * bd.element_bytes}..{end - 1}",
                    available=f"{nbytes} bytes of argument {bd.argument}",
                    where=place,
                    source="shim DMA: no bounds in a descriptor",
                    change="shorten the transfer, mend its strides, or declare a larger argument",
                    basis=Basis.INFERRED,
                )


def _offsets(
    starts: list[int], arguments: tuple[Argument | None, ...], array: Array, where: str
) -> Iterator[Violation]:
    """`starts`: per argument, the largest byte offset at which a transfer starts."""
    for index, start in enumerate(starts):
        argument = arguments[index] if index < len(arguments) else None
        if argument and argument.start + start >= array.argument_offset_bytes:
            yield Violation(
                limit="byte offset into an argument",
                asked=argument.start + start,
                available=f"less than {array.argument_offset_bytes}",
                unit="bytes",
                where=f"{where}, argument {argument.index}",
                source=SOURCES["argument_offset_bytes"],
                change="split the arena into arguments of at most 4 GiB each",
            )


def _farthest_starts(sequence: Sequence) -> list[int]:
    """Per argument, the largest byte offset at which a transfer starts."""
    farthest = [0] * len(sequence.arguments)
    for task in sequence.instructions:
        if isinstance(task, ConfigureTask):
            for bd in task.bds:
                if bd.argument is not None and bd.argument < len(farthest):
                    farthest[bd.argument] = max(farthest[bd.argument], bd.offset * bd.element_bytes)
    return farthest


def _slices(entry: Sequence, step: RunBegin, where: str) -> Iterator[Violation]:
    for argument in step.arguments:
        if argument is None:
            continue
        nbytes = entry.arguments[argument.index].nbytes
        if argument.start < 0 or argument.end > nbytes:
            yield Violation(
                limit="bounds of the argument",
                asked=f"bytes {argument.start}..{argument.end - 1}",
                available=f"{nbytes} bytes of argument {argument.index}",
                where=f"{where}, {step.where}",
                source="memref.subview and memref.reinterpret_cast within their source",
                change="mend the offset of the slice, or declare a larger argument",
            )
