# SPDX-License-Identifier: Apache-2.0
"""Task queues: beside the running task at most 4 wait on a channel (aie-rt StartQSizeMax).

A start beyond that is dropped, or only sets a status bit, and the design hangs later. Nothing in the
toolchain checks it. Tasks are counted over the whole dispatch list, runs unfolded. A queue gets
shorter only where the program proves it:

- a channel works its queue in order, and an await takes one token of its channel: it proves the oldest
  task whose token was not taken, and all before it, done;
- dma_free_task proves nothing: its author vouches for the descriptors, not for the queue;
- STRICT: at the end of a run in which an output (S2MM) was awaited, all its inputs (MM2S) are done;
- LENIENT: an awaited output proves done the inputs that the same run started before that channel's next
  output was started. That is right where each output needs the inputs started just before or
  after it, as in every ping-pong loop of mlir-aie's examples;
- configuring the array resets its DMAs and empties all queues. An output that is still open then is cut off.

Also, the first tasks of a queue whose bytes fit the pool at the other end run into it without any core's help:
they do not wait. (mlir-air #1822: with two L2 buffers 6 feeds were safe and 7 hung.)

More than 1 + 4 tasks by the lenient count is an error. Only by the strict count, or 5 in all where #1822
hung, is a warning: the twin, which runs the queues, decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from npu.array import SOURCES, Array
from npu.legality.dispatch_list import RunBegin, RunEnd, Step, is_leaf, unfold
from npu.legality.fifo_lengths import task_bytes
from npu.legality.violation import Basis, Severity, Violation
from npu.program import (
    AwaitTask,
    Channel,
    ConfigureTask,
    DeviceProgram,
    Direction,
    Program,
    StartTask,
    TileKind,
)


@dataclass(frozen=True)
class _Queued:
    run: int
    order: int
    nbytes: int
    token: bool


@dataclass
class _Queues:
    """Tasks of each channel that are not proven done, oldest first."""

    waiting: dict[Channel, list[_Queued]] = field(default_factory=lambda: defaultdict(list))

    def take_token(self, channel: Channel) -> bool:
        queue = self.waiting[channel]
        for n, task in enumerate(queue):
            if task.token:
                del queue[: n + 1]
                return True
        return False

    def finish_inputs(self, run: int, before: int) -> None:
        """Inputs of `run` started before `before` are done, and all ahead of them in their queues."""
        for channel, queue in self.waiting.items():
            if not _is_output(channel):
                done = [n for n, task in enumerate(queue) if task.run == run and task.order < before]
                del queue[: done[-1] + 1 if done else 0]

    def outstanding(self, channel: Channel, absorbed_bytes: int) -> int:
        queue = self.waiting[channel]
        absorbed = 0
        for task in queue:
            absorbed_bytes -= task.nbytes
            if absorbed_bytes < 0:
                break
            absorbed += 1
        return len(queue) - absorbed


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Every sequence of the device as an entry of its own."""
    tidy: dict[tuple[str, str], bool] = {}
    for sequence in device.sequences:
        entry = _Entry(array, f"@{device.name} @{sequence.name}")

        def enter(run: RunBegin, entry: _Entry = entry) -> bool:
            """A run that alone has no finding and leaves no queue behind changes nothing if it starts with empty queues."""
            name = run.device.name, run.sequence.name
            if name not in tidy:
                tidy[name] = is_leaf(run.sequence) and _is_tidy(run, array)
            return not (tidy[name] and entry.is_idle())

        yield from entry.findings(unfold(program, device, sequence, enter=enter))


def _is_tidy(run: RunBegin, array: Array) -> bool:
    alone = _Entry(array, "")
    steps = [Step(1, run.device, run.sequence, run.arguments, i) for i in run.sequence.instructions]
    return not list(alone.findings(iter([*steps, RunEnd(1)]))) and alone.is_idle()


class _Entry:
    """The queues while one entry sequence goes by."""

    def __init__(self, array: Array, name: str) -> None:
        self._array = array
        self._name = name
        self._strict, self._lenient = _Queues(), _Queues()
        self._tasks: dict[tuple[int, int], ConfigureTask] = {}
        self._awaited_output: set[int] = set()
        self._reported: dict[Channel, Violation] = {}
        self._pools: dict[tuple[str, Channel], int] = {}

    def findings(self, steps: Iterator[Step | RunBegin | RunEnd]) -> Iterator[Violation]:
        for order, step in enumerate(steps):
            if isinstance(step, RunBegin):
                if step.reconfigure:
                    yield from self._reset(step)
            elif isinstance(step, RunEnd):
                if step.run in self._awaited_output:
                    for queues in (self._strict, self._lenient):
                        queues.finish_inputs(step.run, order)
            elif isinstance(step.instruction, ConfigureTask):
                self._tasks[step.run, step.instruction.task] = step.instruction
            elif isinstance(step.instruction, StartTask):
                self._start(step, order)
            elif isinstance(step.instruction, AwaitTask):
                self._await(step, order)
        yield from self._reported.values()

    def is_idle(self) -> bool:
        """Whether every task is proven done, by both counts."""
        return not any(queue for queues in (self._strict, self._lenient) for queue in queues.waiting.values())

    def _start(self, step: Step, order: int) -> None:
        task = self._tasks.get((step.run, step.instruction.task))
        if task is None:
            return
        channel = task.channel
        queued = _Queued(step.run, order, task_bytes(task), task.issue_token)
        for queues in (self._strict, self._lenient):
            queues.waiting[channel].append(queued)
        pool = self._pool_bytes(step.device, channel)
        lenient = self._lenient.outstanding(channel, pool)
        strict = self._strict.outstanding(channel, pool)
        depth = self._array.task_queue_waiting
        if lenient > 1 + depth:
            self._report(step, channel, lenient, Severity.ERROR)
        elif strict > 1 + depth:
            self._report(step, channel, strict, Severity.WARNING)
        elif lenient > depth and channel.direction is Direction.MM2S and pool:
            self._report(step, channel, lenient, Severity.WARNING)

    def _await(self, step: Step, order: int) -> None:
        task = self._tasks.get((step.run, step.instruction.task))
        if task is None:
            return
        self._strict.take_token(task.channel)
        self._lenient.take_token(task.channel)
        if _is_output(task.channel):
            self._awaited_output.add(step.run)
        if _is_output(task.channel) or task.channel.tile.kind is not TileKind.SHIM:
            rest = self._lenient.waiting[task.channel]
            self._lenient.finish_inputs(step.run, rest[0].order if rest else order)

    def _reset(self, step: RunBegin) -> Iterator[Violation]:
        for channel, queue in self._lenient.waiting.items():
            if queue and _is_output(channel):
                yield Violation(
                    limit="outputs awaited before the array is configured again",
                    asked=f"{len(queue)} open on {channel}",
                    available="none",
                    where=f"{self._name}, before {step.where}",
                    source="aiex.configure resets the array",
                    change="await every output task before the next aiex.configure",
                    severity=Severity.WARNING,
                    basis=Basis.INFERRED,
                )
        self._strict.waiting.clear()
        self._lenient.waiting.clear()

    def _report(self, step: Step, channel: Channel, asked: int, severity: Severity) -> None:
        """Keep the worst finding of each channel, and of equals the first."""
        known = self._reported.get(channel)
        if known and (known.severity is severity or known.severity is Severity.ERROR):
            return
        error = severity is Severity.ERROR
        self._reported[channel] = Violation(
            limit="task queue",
            asked=asked,
            available=1 + self._array.task_queue_waiting,
            unit="tasks",
            where=f"{self._name}, {channel}" + (f", run {step.run} of @{step.device.name}" if step.run else ""),
            source=SOURCES["task_queue_waiting"] + "; mlir-air #1822",
            change="await an output after at most 4 starts of this channel, or put more into one task (repeat_count)",
            detail="one running, the rest waiting"
            + ("" if error else "; whether earlier ones are done by then cannot be shown from the text"),
            severity=severity,
            basis=Basis.STATED if error else Basis.INFERRED,
        )

    def _pool_bytes(self, device: DeviceProgram, channel: Channel) -> int:
        key = device.name, channel
        if key not in self._pools:
            self._pools[key] = pool_bytes(device, channel)
        return self._pools[key]


def pool_bytes(device: DeviceProgram, channel: Channel) -> int:
    """Bytes that `channel`'s stream can carry before a core takes any: the smallest pool at its destinations."""
    if channel.direction is Direction.S2MM:
        return 0
    dests = [dest for route in device.routes if route.source == channel for dest in route.dests]
    sizes = []
    for dest in dests:
        bds = [bd for dma in device.dmas if dma.channel == dest for bd in dma.bds]
        sizes.append(sum({bd.buffer: bd.length * bd.element_bytes for bd in bds if bd.buffer}.values()))
    return min(sizes, default=0)


def _is_output(channel: Channel) -> bool:
    return channel.direction is Direction.S2MM and channel.tile.kind is TileKind.SHIM
