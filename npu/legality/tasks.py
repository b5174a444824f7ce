# SPDX-License-Identifier: Apache-2.0
"""Tasks of a runtime sequence: repeats, tokens, order, and what a sequence can start or run.

Rules: a repeat_count is 0..255 (verifier NpuPushQueueOp), that of a dma_memcpy_nd 0..64, since its outermost
size is checked as an iteration even with stride 0 (verifyStridesWraps); an await needs a task that issues a token
(pass aie-dma-tasks-to-npu) and was started, or it waits for ever; a task is configured before it is
started; a repeat should run whole iterations; a memtile task starts at BD ids 0..15 and so on an even
channel only, since the queue push masks the id with 0xF and odd channels need ids from 24 on (the
sequence allocator also always allocates as for channel 0); a run names a device and sequence that
exist, on the same kind of device, with arguments of the called types, and never itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from npu.array import SOURCES, Array
from npu.legality.dispatch_list import callee, from_memcpy
from npu.legality.violation import Basis, Severity, Violation
from npu.program import (
    AwaitTask,
    ConfigureTask,
    DeviceProgram,
    FreeTask,
    Program,
    Run,
    Sequence,
    StartTask,
    TileKind,
)

_MEMCPY_REPEATS = 64


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Each sequence by itself; queues and BD ids over runs are in task_queues and sequence_bds."""
    for dma in device.dmas:
        yield from _repeat(dma.repeat_count, array, f"@{device.name}, {dma.channel}")
    for sequence in device.sequences:
        where = f"@{device.name}, @{sequence.name}"
        for instruction in sequence.instructions:
            if isinstance(instruction, ConfigureTask):
                yield from _configured(instruction, array, instruction.where or f"{where}, task {instruction.task}")
            elif isinstance(instruction, Run):
                yield from _run(program, device, sequence, instruction, where)
        yield from _order(sequence, where)


def _repeat(repeat: int, array: Array, where: str, *, memcpy: bool = False) -> Iterator[Violation]:
    allowed = _MEMCPY_REPEATS if memcpy else array.repeat_max
    if not 0 <= repeat <= allowed:
        yield Violation(
            limit="repeat count",
            asked=repeat,
            available=f"0..{allowed}",
            where=where,
            source="verifier: verifyStridesWraps" if memcpy else SOURCES["repeat_max"],
            change="use a task with repeat_count"
            if memcpy
            else "use a further dimension, or start the task several times",
            detail=f"{repeat + 1} executions",
        )


def _configured(task: ConfigureTask, array: Array, where: str) -> Iterator[Violation]:
    yield from _repeat(task.repeat_count, array, where, memcpy=from_memcpy(task))
    for bd in task.bds:
        if (1 + task.repeat_count) % bd.iteration.size:
            yield Violation(
                limit="whole iterations",
                asked=f"{1 + task.repeat_count} executions",
                available=f"a multiple of the {bd.iteration.size} iteration steps",
                where=where,
                source="shim semantics: each execution advances the iteration by one step",
                change=f"set repeat_count = {bd.iteration.size - 1} on the task",
                severity=Severity.WARNING,
                basis=Basis.INFERRED,
            )
            break
    if task.channel.tile.kind is not TileKind.MEMTILE:
        return
    first = task.bds[0].bd_id if task.bds else None
    if first is not None and first > array.instruction_bd_max:
        yield Violation(
            limit="BD id that a sequence can start on a memtile",
            asked=first,
            available=f"0..{array.instruction_bd_max}",
            where=where,
            source=SOURCES["instruction_bd_max"],
            change="start the chain at a BD id of at most 15, or configure it in aie.memtile_dma",
        )
    if task.channel.index % 2:
        yield Violation(
            limit="memtile channel that a sequence can start",
            asked=f"channel {task.channel.index}",
            available="even channels",
            where=where,
            source=SOURCES["instruction_bd_max"] + "; " + SOURCES["parity"],
            change="use an even channel, or configure the transfer in aie.memtile_dma",
        )


def _order(sequence: Sequence, where: str) -> Iterator[Violation]:
    tasks: dict[int, ConfigureTask] = {}
    started: set[int] = set()
    for instruction in sequence.instructions:
        if isinstance(instruction, ConfigureTask):
            tasks[instruction.task] = instruction
            continue
        if not isinstance(instruction, StartTask | AwaitTask | FreeTask):
            continue
        task = tasks.get(instruction.task)
        verb = type(instruction).__name__.removesuffix("Task").lower()
        if task is None:
            yield _misuse(
                f"{verb} of a task that is not configured before", "configured first", where, instruction.task
            )
        elif isinstance(instruction, StartTask):
            started.add(instruction.task)
        elif isinstance(instruction, AwaitTask):
            if not task.issue_token:
                yield _misuse("await of a task without a token", "issue_token = true", where, instruction.task)
            if instruction.task not in started:
                yield _misuse("await of a task that was never started", "started first", where, instruction.task)


def _misuse(asked: str, available: str, where: str, task: int) -> Violation:
    return Violation(
        limit="use of a task",
        asked=asked,
        available=available,
        where=f"{where}, task {task}",
        source="pass aie-dma-tasks-to-npu; a sync waits for a token that would never come",
        change=f"configure it with {available}" if "=" in available else f"let the task be {available}",
    )


def _run(program: Program, device: DeviceProgram, sequence: Sequence, run: Run, where: str) -> Iterator[Violation]:
    called = callee(program, run)
    asked = f"run of @{run.device} @{run.sequence}"
    source = "pass aie-materialize-runtime-sequences"
    if called is None:
        there = ", ".join(f"@{d.name} @{s.name}" for d in program.devices for s in d.sequences)
        yield Violation("device and sequence of a run", asked, there, where, source, "run one of these")
        return
    inner_device, inner = called
    if (device.name, sequence.name) in _reachable(program, inner_device, inner, set()):
        yield Violation("run of a sequence", f"{asked} inside itself", "no cycle", where, source, "remove the cycle")
    if inner_device.target != device.target:
        yield Violation(
            "device of a run", inner_device.target, device.target, where, source, "give both devices the same target"
        )
    types = tuple(a.type for a in run.arguments)
    same_bytes = len(types) == len(inner.arguments) and all(
        t.nbytes == a.nbytes and t.dtype == a.dtype for t, a in zip(types, inner.arguments, strict=True)
    )
    if not same_bytes:
        yield Violation(
            "arguments of a run",
            ", ".join(map(str, types)) or "none",
            ", ".join(map(str, inner.arguments)) or "none",
            where,
            source,
            f"pass what @{run.sequence} declares",
            detail=asked,
        )


def _reachable(
    program: Program, device: DeviceProgram, sequence: Sequence, seen: set[tuple[str, str]]
) -> set[tuple[str, str]]:
    if (device.name, sequence.name) in seen:
        return seen
    seen.add((device.name, sequence.name))
    for instruction in sequence.instructions:
        if isinstance(instruction, Run) and (called := callee(program, instruction)):
            _reachable(program, *called, seen)
    return seen
