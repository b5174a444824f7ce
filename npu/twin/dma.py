# SPDX-License-Identifier: Apache-2.0
"""DMA channels as processes: take a BD, acquire its lock, move its data, release, go on.

A channel is either programmed in the array (`DmaProgram`: a ring, or a chain executed 1 + repeat_count times) or fed
tasks by the sequence through its queue: one task runs and four wait beside it. Each push of a task executes its chain
1 + repeat_count times. Execution number n of a BD starts at offset + (n mod iteration.size) * iteration.stride, so a
task with repeat_count 0 moves only the first step of its outermost (iteration) dimension, as on silicon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from npu.device import DeviceFault
from npu.program import BufferDescriptor, Channel, ConfigureTask, Direction, DmaProgram
from npu.twin.memory import POISON, Memory
from npu.twin.pattern import pattern_of
from npu.twin.stream import Body, LockState, Process, Sink, Stream, Transfer

if TYPE_CHECKING:
    from npu.twin.engine import Engine
    from npu.twin.packets import PacketSink, PacketStream

QUEUE_DEPTH = 4  # tasks that wait beside the running one (aie-rt StartQSizeMax)


def make_transfer(
    bd: BufferDescriptor, memory: Memory, execution: int, locks: Mapping[str, LockState], channel: Channel
) -> Transfer:
    """Execution number `execution` of `bd` on `memory`."""
    elements = bd.offset + (execution % bd.iteration.size) * bd.iteration.stride
    transfer = Transfer(memory, pattern_of(bd), elements * bd.element_bytes, bd.where or str(channel))
    transfer.packet = bd.packet
    if transfer.nbytes == 0:
        raise DeviceFault(f"{channel} has a BD of no bytes ({bd.where})")
    if bd.acquire is not None:
        transfer.acquire = locks[bd.acquire.lock]
        transfer.acquire_value = bd.acquire.value
        transfer.acquire_equal = bd.acquire.equal
    if bd.release is not None:
        transfer.release = locks[bd.release.lock]
        transfer.release_value = bd.release.value
    return transfer


def read_memory(transfer: Transfer, channel: Channel, engine: Engine) -> np.ndarray:
    """The bytes that an MM2S execution sends. DeviceFault if it meets a word nobody wrote; where the engine allows them
    in tile memory (`allow_unwritten`), a note, and the poison is sent."""
    memory = transfer.memory
    if memory.read_only and transfer.pattern.linear:
        data = memory.data[transfer.offset : transfer.offset + transfer.nbytes]  # nothing can change it: no copy
    else:
        data = transfer.pattern.gather(memory.data, transfer.offset)
    if data.nbytes % 4 == 0 and (data.view(np.uint32) == POISON).any():
        word = int(np.argmax(data.view(np.uint32) == POISON))
        at = transfer.offset + transfer.pattern.address_of(4 * word)
        if memory.tile is None:
            raise DeviceFault(
                f"{channel} reads {memory} at byte {at}, which was never written. Write the buffer before the dispatch"
                f" ({transfer.where})"
            )
        go_on = (
            "; simulate --allow-unwritten sends and notes it" if engine.foreign and not engine.allow_unwritten else ""
        )
        fault = DeviceFault(f"{channel} reads byte {at} of {memory}, which nobody wrote ({transfer.where}){go_on}")
        if not engine.allow_unwritten:
            raise fault
        if str(fault) not in engine.notes:
            engine.notes.append(str(fault))
    return data


def acquire(engine: Engine, process: Process, transfer: Transfer, lock: LockState) -> Body:
    """Wait for the lock of a BD and take it; an equal acquire waits for the value and leaves it, as a core's does."""
    need = transfer.acquire_value
    if lock.turn and process not in lock.turn:  # several waited for this lock: they are served first
        engine.ready.append(process)
        yield
    while lock.value != need if transfer.acquire_equal else lock.value < need:
        process.wait = ("lock", lock, need)
        lock.waiters.append(process)
        yield
        if lock.turn:
            lock.turn.discard(process)
    process.wait = None
    if not transfer.acquire_equal:
        lock.take(need)


def send(
    engine: Engine, process: Process, channel: Channel, stream: Stream | PacketStream | None, transfer: Transfer
) -> Body:
    """One MM2S execution."""
    if transfer.acquire is not None:
        yield from acquire(engine, process, transfer, transfer.acquire)
    if stream is None:
        raise DeviceFault(f"{channel} sends, but no route starts there ({transfer.where})")
    stream.push(transfer, read_memory(transfer, channel, engine), process)
    while stream.flow < stream.pushed:
        process.wait = ("send", stream)
        yield
    process.wait = None
    engine.transfers += 1
    if transfer.release is not None:
        transfer.release.release(transfer.release_value, process.name)


def receive(
    engine: Engine, process: Process, channel: Channel, sink: Sink | PacketSink | None, transfer: Transfer
) -> Body:
    """One S2MM execution."""
    if transfer.acquire is not None:
        yield from acquire(engine, process, transfer, transfer.acquire)
    if sink is None:
        raise DeviceFault(f"{channel} receives, but no route ends there ({transfer.where})")
    sink.arm(transfer, process)
    while sink.armed:
        process.wait = ("receive", sink)
        yield
    process.wait = None
    engine.transfers += 1
    if transfer.release is not None:
        transfer.release.release(transfer.release_value, process.name)


class Port:
    """What a channel is connected to: its stream (MM2S) or sink (S2MM), if a route touches it."""

    def __init__(self, channel: Channel, stream: Stream | PacketStream | None, sink: Sink | PacketSink | None) -> None:
        self.channel = channel
        self.stream = stream
        self.sink = sink

    def move(self, engine: Engine, process: Process, transfer: Transfer) -> Body:
        if self.channel.direction is Direction.MM2S:
            return send(engine, process, self.channel, self.stream, transfer)
        return receive(engine, process, self.channel, self.sink, transfer)


def run_programs(engine: Engine, process: Process, port: Port, work: list[tuple[DmaProgram, list[Transfer]]]) -> Body:
    """The life of a programmed channel: its programs in turn; a ring never ends, a chain has 1 + repeat_count passes."""
    for program, transfers in work:
        for _ in range(1 + program.repeat_count):
            index: int | None = 0 if transfers else None
            while index is not None:
                yield from port.move(engine, process, transfers[index])
                index = program.bds[index].next


class Task:
    """A configured task: its BDs, how often each was executed, and what became of it."""

    def __init__(self, spec: ConfigureTask, bd_ids: tuple[int, ...]) -> None:
        self.spec = spec
        self.bd_ids = bd_ids
        self.executions = [0] * len(spec.bds)
        self.started = 0
        self.ended = 0
        self.awaited = 0
        self.held = True  # its BD ids are taken, until awaited or freed
        self.overwritten_by: Task | None = None

    @property
    def in_flight(self) -> bool:
        return self.ended < self.started

    def __str__(self) -> str:
        where = f" at {self.spec.where}" if self.spec.where else ""
        return f"task {self.spec.task} ({self.spec.channel}{where})"


class TaskChannel:
    """The task queue of a channel, and the process that serves it."""

    def __init__(self, engine: Engine, port: Port) -> None:
        self.engine = engine
        self.port = port
        self.channel = port.channel
        self.process = Process(str(port.channel))
        self.waiting: deque[Task] = deque()
        self.running: Task | None = None
        self.tokens: deque[Task] = deque()
        self.token_waiters: list[Process] = []
        self.idle = False
        self.order: list[Task] = []  # every start, for the checks at the end of a dispatch

    def start(self, task: Task) -> None:
        """Push into the queue; more than four waiting beside the running one is undefined on silicon."""
        if len(self.waiting) + (self.running is not None) > QUEUE_DEPTH:
            held = ", ".join(str(t.spec.task) for t in self.waiting)
            raise DeviceFault(
                f"{self.channel}: task {task.spec.task} is started while tasks {held} wait: the task queue holds "
                f"{QUEUE_DEPTH} beside the running one. Await an earlier task first"
            )
        task.started += 1
        self.order.append(task)
        self.waiting.append(task)
        if self.idle:
            self.idle = False
            self.engine.ready.append(self.process)

    def serve(self, transfer_of: Callable[[Task, int], Transfer]) -> Body:
        """Endless: execute started tasks in turn, one token each when it asks for one."""
        while True:
            while not self.waiting:
                self.idle = True
                self.process.wait = ("task", self)
                yield
            self.process.wait = None
            task = self.running = self.waiting.popleft()
            for _ in range(1 + task.spec.repeat_count):
                index: int | None = 0
                while index is not None:
                    transfer = transfer_of(task, index)
                    task.executions[index] += 1
                    yield from self.port.move(self.engine, self.process, transfer)
                    index = task.spec.bds[index].next
            self.running = None
            task.ended += 1
            if task.spec.issue_token:
                self.tokens.append(task)
                self.engine.ready.extend(self.token_waiters)
                self.token_waiters.clear()
