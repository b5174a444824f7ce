# SPDX-License-Identifier: Apache-2.0
"""A runtime sequence as a process: instruction after instruction, waiting only for tokens.

The instruction processor runs ahead of the array here as far as it can, so every hazard that timing could hide shows:
a queue that would overflow, a BD rewritten while it runs, a token taken for another task's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npu.device import DeviceFault
from npu.program import (
    AwaitTask,
    ConfigureTask,
    DeviceProgram,
    FreeTask,
    Run,
    Sequence,
    SetLock,
    StartTask,
    TileId,
    TileKind,
    WriteParameter,
)
from npu.twin.dma import Task, make_transfer
from npu.twin.memory import FIRST_HOST_REGION, POISON, HostSlice, Memory
from npu.twin.stream import Body, Process, Transfer

if TYPE_CHECKING:
    from npu.twin.engine import Engine

BDS_PER_TILE = {TileKind.SHIM: 16, TileKind.CORE: 16, TileKind.MEMTILE: 48}
MEMTILE_BDS_PER_PARITY = 24
FULL_MASK = 0xFFFFFFFF


def masked_write(device: DeviceProgram) -> str | None:
    """Why a run cannot be replayed: a write that keeps bits of what the array computed."""
    for sequence in device.sequences:
        for write in sequence.instructions:
            if isinstance(write, WriteParameter) and write.mask != FULL_MASK:
                return f"@{sequence.name} writes some bits of word {write.index} of '{write.buffer}' and keeps the rest"
    return None


class SequenceRun:
    """One execution of a sequence on a configured engine.

    regions: (host region, offset) of each argument, as `memory.Regions.key` has them.
    """

    def __init__(
        self, engine: Engine, sequence: Sequence, slices: list[HostSlice], regions: tuple[tuple[int, int], ...]
    ) -> None:
        from npu.twin.engine import argument_memory

        if len(slices) != len(sequence.arguments):
            raise DeviceFault(
                f"@{engine.device.name}:{sequence.name} takes {len(sequence.arguments)} arguments, {len(slices)} are bound"
            )
        self.engine = engine
        self.sequence = sequence
        self.process = Process(f"sequence @{sequence.name}")
        self.finished = False
        self._clock = self._last_wait = 0  # counts starts and waits
        self._started_at: dict[Task, int] = {}
        self.tasks: dict[int, Task] = {}
        self.bd_owner: dict[tuple[TileId, int], Task] = {}
        self.arguments: list[Memory] = []
        for index, (piece, declared, (region, base)) in enumerate(
            zip(slices, sequence.arguments, regions, strict=True)
        ):
            piece.check(index)
            if piece.type.nbytes < declared.nbytes:
                raise DeviceFault(
                    f"argument {index} of @{sequence.name} is {declared} ({declared.nbytes} bytes); the slice has "
                    f"{piece.type.nbytes} bytes: argument slice out of range"
                )
            self.arguments.append(argument_memory(index, piece, FIRST_HOST_REGION + region, base))
        self._mark_read_only(regions)

    def _mark_read_only(self, regions: tuple[tuple[int, int], ...]) -> None:
        """Arguments whose region no S2MM task of this sequence writes."""
        written = {
            regions[bd.argument][0]
            for instruction in self.sequence.instructions
            if isinstance(instruction, ConfigureTask) and instruction.channel.direction == "S2MM"
            for bd in instruction.bds
            if bd.argument is not None
        }
        for memory, (region, _) in zip(self.arguments, regions, strict=True):
            memory.read_only = region not in written

    def transfer(self, task: Task, index: int) -> Transfer:
        """The next execution of BD `index` of a task."""
        bd = task.spec.bds[index]
        if bd.argument is not None:
            memory = self.arguments[bd.argument]
        else:
            memory = self.engine._tile_buffer(bd.buffer, task.spec.channel)
        return make_transfer(bd, memory, task.executions[index], self.engine.locks, task.spec.channel)

    def body(self) -> Body:
        """Execute the instructions in order."""
        for instruction in self.sequence.instructions:
            if isinstance(instruction, AwaitTask):
                yield from self._await(instruction)
            elif isinstance(instruction, ConfigureTask):
                self._configure(instruction)
            elif isinstance(instruction, StartTask):
                self._start(self._task(instruction.task))
            elif isinstance(instruction, FreeTask):
                self._task(instruction.task).held = False
            elif isinstance(instruction, WriteParameter):
                self._write_parameter(instruction)
            elif isinstance(instruction, SetLock):
                self._set_lock(instruction)
            elif isinstance(instruction, Run):
                raise DeviceFault(
                    f"@{self.sequence.name} mixes runs of other devices with tasks of its own; split it into two sequences"
                )
        self.finished = True

    def _task(self, number: int) -> Task:
        if number not in self.tasks:
            raise DeviceFault(f"@{self.sequence.name} uses task {number} before it is configured")
        return self.tasks[number]

    # ---- tasks -------------------------------------------------------------------------------

    def _configure(self, spec: ConfigureTask) -> None:
        ids: list[int] = []
        tile = spec.channel.tile
        for bd in spec.bds:
            if bd.argument is not None and not 0 <= bd.argument < len(self.arguments):
                raise DeviceFault(
                    f"task {spec.task} uses argument {bd.argument} of {len(self.arguments)} ({spec.where})"
                )
            ids.append(self._free_id(spec, ids) if bd.bd_id is None else bd.bd_id)
        task = Task(spec, tuple(ids))
        for number in ids:
            owner = self.bd_owner.get((tile, number))
            if owner is not None:
                if owner.in_flight:
                    raise DeviceFault(
                        f"BD {number} of {tile} is reused in flight: task {spec.task} rewrites it while {owner} runs or "
                        "waits in its queue. Await that task before this one is configured"
                    )
                owner.overwritten_by = task
            self.bd_owner[tile, number] = task
        if spec.task in self.tasks and self.tasks[spec.task].in_flight:
            raise DeviceFault(f"task {spec.task} is configured again while it runs ({spec.where})")
        self.tasks[spec.task] = task
        channel = self.engine.task_channel(spec.channel)  # a channel that takes no tasks is refused here
        assert channel.channel == spec.channel

    def _free_id(self, spec: ConfigureTask, taken: list[int]) -> int:
        """The lowest BD id that no configured task holds, as mlir-aie assigns them; odd memtile channels use 24..47."""
        tile = spec.channel.tile
        ids = range(BDS_PER_TILE[tile.kind])
        if tile.kind is TileKind.MEMTILE:
            first = MEMTILE_BDS_PER_PARITY * (spec.channel.index % 2)
            ids = range(first, first + MEMTILE_BDS_PER_PARITY)
        for number in ids:
            owner = self.bd_owner.get((tile, number))
            if number not in taken and (owner is None or not owner.held):
                return number
        holders = sorted({t.spec.task for t in self.tasks.values() if t.held and t.spec.channel.tile == tile})
        raise DeviceFault(
            f"{tile} has no buffer descriptor left for task {spec.task}: its {len(ids)} are held by tasks {holders}. "
            "Await or free tasks that have ended"
        )

    def waited_since(self, task: Task) -> bool:
        """Whether the sequence has waited for anything since it last started the task."""
        return self._last_wait > self._started_at.get(task, 0)

    def _start(self, task: Task) -> None:
        self._clock += 1
        self._started_at[task] = self._clock
        if task.overwritten_by is not None:
            raise DeviceFault(f"{task} is started after {task.overwritten_by} has rewritten its BD")
        self.engine.task_channel(task.spec.channel).start(task)

    def _await(self, instruction: AwaitTask) -> Body:
        task = self._task(instruction.task)
        if not task.spec.issue_token:
            raise DeviceFault(f"{task} is awaited but issues no token: the wait would never end. Set issue_token")
        if task.awaited >= task.started:
            raise DeviceFault(f"{task} is awaited {task.awaited + 1} times and started {task.started} times")
        channel = self.engine.task_channel(task.spec.channel)
        while not channel.tokens:
            self.process.wait = ("token", channel, task)
            channel.token_waiters.append(self.process)
            yield
        self.process.wait = None
        token = channel.tokens.popleft()
        if token is not task:
            raise DeviceFault(
                f"the wait for {task} takes the token of {token}, which ended earlier on the same channel and was not "
                "awaited. Await tasks of a channel in the order of their starts"
            )
        task.awaited += 1
        task.held = False
        self._clock += 1
        self._last_wait = self._clock

    # ---- other instructions ------------------------------------------------------------------

    def _write_parameter(self, write: WriteParameter) -> None:
        memory = self.engine._tile_buffer(write.buffer, None)  # type: ignore[arg-type]
        content = np.array([write.value & 0xFFFFFFFF], np.uint32).tobytes()
        start = 4 * write.index
        if not 0 <= start <= memory.nbytes - 4:
            raise DeviceFault(f"rtp_write to word {write.index} of {memory}, which has {memory.nbytes // 4} words")
        word = memory.data[start : start + 4]
        if write.mask != FULL_MASK:
            before = int(word.copy().view(np.uint32)[0])
            if before == POISON:
                raise DeviceFault(f"a masked write to word {write.index} of {memory}, which nobody wrote")
            content = np.array([before & ~write.mask | write.value & write.mask], np.uint32).tobytes()
        word[:] = np.frombuffer(content, np.uint8)
        if self.engine.recorder is not None:
            self.engine.recorder.write(memory, start, content)

    def _set_lock(self, instruction: SetLock) -> None:
        lock = self.engine.locks.get(instruction.lock)
        if lock is None:
            raise DeviceFault(f"@{self.sequence.name} sets lock '{instruction.lock}', which the device does not have")
        lock.set(instruction.value, self.process.name)
