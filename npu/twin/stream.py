# SPDX-License-Identifier: Apache-2.0
"""Locks and streams: where the twin's processes wait, and the order in which they go on.

Streams are byte queues between one MM2S channel and the S2MM channels its routes end in. The rule, at the grain of a
buffer descriptor (BD):

- An MM2S BD reads its memory when it starts and offers all of its bytes. A byte enters the stream when *every*
  destination has room for it: inside the S2MM BD that is armed there, or in the `FIFO_BYTES` behind it. So a broadcast
  runs at the pace of its slowest destination, as the stream switch does.
- The MM2S BD ends (and releases its lock) when its last byte has entered. An S2MM BD ends when its last byte has come.
- Memory is written when either BD ends, which no one can see earlier who honours the locks.

`FIFO_BYTES` is one S2MM FIFO of 16 words (facts: xdna-emu). Silicon has a few more words per hop; a design that
needs those to make progress is reported as a deadlock here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from npu.device import DeviceFault
from npu.program import Channel, Lock

if TYPE_CHECKING:
    from npu.twin.memory import Memory
    from npu.twin.pattern import Pattern
    from npu.twin.schedule import Recorder

FIFO_BYTES = 64
MAX_LOCK_VALUE = 63

Body = Generator[None, None, None]


class Process:
    """A core, a DMA channel or the sequence: a generator that yields when it has to wait.

    wait: what it waits for, as (kind, object, ...); None while it can go on. It has put itself on the object's list.
    """

    __slots__ = ("body", "name", "resume", "wait")

    def __init__(self, name: str) -> None:
        self.name = name
        self.wait: tuple[Any, ...] | None = None
        self.body: Body | None = None
        self.resume: Any = None

    def start(self, body: Body) -> None:
        self.body = body
        self.resume = body.__next__

    def close(self) -> None:
        """It goes on no more: what it holds on to is given back."""
        if self.body is not None:
            self.body.close()


class LockState:
    """A counting semaphore of a tile. `ready` is the scheduler's queue."""

    __slots__ = ("acquirers", "equal", "init", "name", "ready", "releasers", "tile", "turn", "value",
                 "waiters")  # fmt: skip

    def __init__(self, lock: Lock, ready: deque[Process]) -> None:
        self.name = lock.name
        self.tile = lock.tile
        self.init = lock.init
        self.value = lock.init
        self.ready = ready
        self.waiters: list[Process] = []
        self.turn: set[Process] = set()  # of several that waited, those that were woken and have not gone on yet
        self.equal = False  # somebody waits for an exact value: a smaller one may be it
        self.acquirers: list[str] = []  # names of processes, for the wait graph
        self.releasers: list[str] = []

    def reset(self) -> None:
        self.value = self.init
        self.waiters.clear()
        self.turn.clear()

    def take(self, amount: int) -> None:
        """Subtract what an acquire has found to be there."""
        self.value -= amount
        if self.equal and self.waiters:
            self.wake()

    def release(self, amount: int, by: str) -> None:
        """Add `amount` and wake every waiter, in the order in which they came."""
        self.set(self.value + amount, by)

    def set(self, value: int, by: str) -> None:
        if not 0 <= value <= MAX_LOCK_VALUE:
            raise DeviceFault(
                f"{by} takes lock '{self.name}' of {self.tile} from {self.value} to {value}: a lock holds 0..{MAX_LOCK_VALUE}"
            )
        self.value = value
        if self.waiters:
            self.wake()

    def wake(self) -> None:
        """Every waiter goes on, in the order in which they came, and before others who come for the lock meanwhile."""
        self.ready.extend(self.waiters)
        if len(self.waiters) > 1:
            self.turn.update(self.waiters)
        self.waiters.clear()


class Transfer:
    """One execution of one BD: pattern at a byte offset of a memory. `release` may be None."""

    __slots__ = ("acquire", "acquire_equal", "acquire_value", "memory", "nbytes", "offset", "packet", "pattern",
                 "release", "release_value", "where")  # fmt: skip

    def __init__(self, memory: Memory, pattern: Pattern, offset: int, where: str) -> None:
        self.memory = memory
        self.pattern = pattern
        self.offset = offset
        self.nbytes = pattern.nbytes
        self.where = where
        self.acquire: LockState | None = None
        self.acquire_value = 0
        self.acquire_equal = False
        self.release: LockState | None = None
        self.release_value = 0
        self.packet: tuple[int, int] | None = None  # (type, id)
        if offset < 0 or offset + pattern.span > memory.nbytes:
            raise DeviceFault(
                f"a BD reaches bytes {offset}..{offset + pattern.span} of {memory}, which has {memory.nbytes} bytes"
                f"{f' ({where})' if where else ''}"
            )


class Sending:
    """One MM2S execution in its stream: absolute byte range and data; `order` is the recorder's count at its start."""

    __slots__ = ("data", "end", "order", "start", "transfer")

    def __init__(self, transfer: Transfer, data: np.ndarray, start: int, order: int) -> None:
        self.transfer = transfer
        self.data = data
        self.start = start
        self.end = start + data.nbytes
        self.order = order


class Sink:
    """A destination: the S2MM channel that takes bytes off the stream. start..end is the armed BD's absolute range."""

    __slots__ = ("armed", "channel", "cursor", "end", "moved", "process", "start", "stream", "transfer")

    def __init__(self, channel: Channel, stream: Stream) -> None:
        self.channel = channel
        self.stream = stream
        self.start = self.end = self.cursor = 0
        self.armed = False
        self.transfer: Transfer | None = None
        self.process: Process | None = None
        self.moved = 0

    def arm(self, transfer: Transfer, process: Process) -> None:
        """Offer room for one BD; `armed` turns False when it is full."""
        self.transfer = transfer
        self.process = process
        self.start = self.end
        self.end = self.start + transfer.nbytes
        self.armed = True
        self.stream.advance()


class Stream:
    """The bytes from one MM2S channel to its sinks, in absolute positions since configuration."""

    __slots__ = ("flow", "moved", "name", "pushed", "ready", "recorder", "sending", "sinks", "source", "source_process")

    def __init__(self, source: Channel, name: str, ready: deque[Process]) -> None:
        self.source = source
        self.name = name
        self.ready = ready
        self.sinks: list[Sink] = []
        self.sending: deque[Sending] = deque()
        self.pushed = self.flow = 0
        self.moved = 0
        self.source_process: Process | None = None
        self.recorder: Recorder | None = None

    def push(self, transfer: Transfer, data: np.ndarray, process: Process) -> None:
        """Offer one MM2S execution; it has ended when `flow == pushed`."""
        order = self.recorder.count if self.recorder is not None else 0
        self.sending.append(Sending(transfer, data, self.pushed, order))
        self.pushed += data.nbytes
        self.moved += data.nbytes
        self.source_process = process
        self.advance()

    def advance(self) -> None:
        """Let bytes enter, write what is complete, wake who has ended."""
        sinks = self.sinks
        limit = self.pushed
        for sink in sinks:
            if sink.end + FIFO_BYTES < limit:
                limit = sink.end + FIFO_BYTES
        entered = limit > self.flow
        if entered:
            self.flow = limit
        flow = self.flow
        ended = flow == self.pushed
        for sink in sinks:
            if sink.armed:
                upto = flow if flow < sink.end else sink.end
                if upto > sink.cursor and (upto == sink.end or ended):
                    self._deliver(sink, upto)
                if sink.cursor == sink.end:
                    sink.armed = False
                    if sink.process.wait is not None:  # else it is running just now, and sees `armed`
                        self.ready.append(sink.process)
        # Sinks are woken first: they have written before the source can give its memory away.
        if ended and entered and self.source_process is not None:
            if self.source_process.wait is not None:
                self.ready.append(self.source_process)
            self.source_process = None

    def _deliver(self, sink: Sink, upto: int) -> None:
        transfer = sink.transfer
        cursor = sink.cursor
        for sending in self.sending:
            if sending.end <= cursor:
                continue
            if cursor >= upto:
                break
            first = cursor - sending.start
            count = min(upto, sending.end) - cursor
            into = cursor - sink.start
            data = sending.data
            if count != data.nbytes:
                data = data[first : first + count]
            if count == transfer.nbytes:
                transfer.pattern.scatter(transfer.memory.data, transfer.offset, data)
            else:
                transfer.pattern.scatter_part(transfer.memory.data, transfer.offset, into, data)
            if self.recorder is not None:
                self.recorder.copy(sending, first, transfer, into, count, sink is self.sinks[0])
            cursor += count
        sink.moved += cursor - sink.cursor
        sink.cursor = cursor
        while self.sending and all(s.cursor >= self.sending[0].end for s in self.sinks):
            self.sending.popleft()

    def slow(self) -> list[Sink]:
        """Destinations that have no room for all that was offered."""
        return [sink for sink in self.sinks if sink.end < self.pushed]

    def leftover(self) -> int:
        """Bytes that entered, or wait to enter, and that some S2MM BD has not written."""
        return self.pushed - min(sink.cursor for sink in self.sinks)
