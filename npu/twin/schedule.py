# SPDX-License-Identifier: Apache-2.0
"""Schedule: the linear order of transfers, kernel calls and constant writes of one run, as flat arrays.

`Recorder` takes operations down in the order in which the event tier performs them. `build_schedule` turns them into
byte segments relative to regions (so one schedule serves every slice of a host buffer), gives each a level from the
hazards between the words it reads and writes, and groups levels into phases that a few threads can share.

A transfer is copied straight from the MM2S side's memory to the S2MM side's. Where the source was written again before
the copy (bytes that sat in a stream's FIFO), the bytes are first saved to the staging region, at the point where the
MM2S execution read them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from npu.twin.cores import PreparedCall
from npu.twin.levels import Levels, phases
from npu.twin.memory import CONSTANT_REGION, STAGING_REGION, TILE_REGION, Memory
from npu.twin.pattern import Pattern
from npu.twin.tables import CALL, COLUMNS, COPY, ZERO

if TYPE_CHECKING:
    from npu.twin.stream import Sending, Transfer

COPY_NS, SEGMENT_NS, BYTE_NS, CALL_NS, CTYPES_NS = 15.0, 1.5, 0.12, 60.0, 600.0  # estimates, to share work only


@dataclass
class _Copy:
    source: tuple[int, int]  # region, byte
    source_pattern: Pattern
    first: int
    dest: tuple[int, int]
    dest_pattern: Pattern
    into: int
    count: int
    check: bool
    staged_from: int | None = None  # the order at which the source had to be saved


@dataclass
class _Call:
    core: int
    function: str
    prepared: PreparedCall


@dataclass
class _Write:
    dest: tuple[int, int]
    content: bytes


class Recorder:
    """Takes down one run of the event tier."""

    def __init__(self) -> None:
        self.operations: list[_Copy | _Call | _Write] = []
        self.count = 0
        self.durations: dict[str, int] = {}  # the shortest: the machine may be busy
        self._writes: dict[tuple[int, int], dict[tuple[int, int], int]] = {}

    def _append(self, operation: _Copy | _Call | _Write) -> None:
        self.operations.append(operation)
        self.count += 1

    def _wrote(self, memory: Memory, start: int, end: int) -> None:
        """Note that the last operation wrote bytes start..end of a memory."""
        owner = (memory.region, memory.base) if memory.region == TILE_REGION else (memory.region, 0)
        base = 0 if memory.region == TILE_REGION else memory.base
        self._writes.setdefault(owner, {})[base + start, base + end] = self.count - 1

    def _written_since(self, memory: Memory, start: int, end: int, order: int) -> bool:
        """Whether an operation from number `order` on wrote any of these bytes."""
        tile = memory.region == TILE_REGION
        base = 0 if tile else memory.base
        writes = self._writes.get((memory.region, memory.base) if tile else (memory.region, 0), {})
        return any(
            number >= order and low < base + end and high > base + start for (low, high), number in writes.items()
        )

    def copy(self, sending: Sending, first: int, transfer: Transfer, into: int, count: int, check: bool) -> None:
        """`count` bytes from byte `first` of an MM2S execution to byte `into` of an S2MM execution."""
        source = sending.transfer
        span = source.offset, source.offset + source.pattern.span
        staged = self._written_since(source.memory, *span, sending.order)
        self._append(
            _Copy(
                (source.memory.region, source.memory.base + source.offset),
                source.pattern,
                first,
                (transfer.memory.region, transfer.memory.base + transfer.offset),
                transfer.pattern,
                into,
                count,
                check,
                sending.order if staged else None,
            )
        )
        self._wrote(transfer.memory, transfer.offset, transfer.offset + transfer.pattern.span)

    def call(self, core: int, function: str, prepared: PreparedCall, nanoseconds: int) -> None:
        """One kernel call; it may write every buffer that it gets. Its duration only balances the replay's threads."""
        self._append(_Call(core, function, prepared))
        self.durations[function] = min(nanoseconds, self.durations.get(function, nanoseconds))
        for memory in prepared.memories:
            self._wrote(memory, 0, memory.nbytes)

    def write(self, memory: Memory, start: int, content: bytes) -> None:
        """A constant write: an initial value, rtp_write, a core's store."""
        self._append(_Write((memory.region, memory.base + start), content))
        self._wrote(memory, start, start + len(content))


@dataclass(frozen=True)
class Schedule:
    """Flat arrays that replay.cc runs.

    operations: (n, COLUMNS) int64, in the order of execution by phase. segments: (m, 3) int64: source and dest offsets
    relative to the operation's, bytes. arguments: (k, 2) int64: region or IMMEDIATE, offset or value. phases: (p, 3) int64:
    first operation, count, 1 if its operations may run side by side. poison: (q, 2) int64: byte ranges of tile memory
    that are read before a transfer has filled them. functions: kernel names by number. constants: bytes.
    """

    operations: np.ndarray
    segments: np.ndarray
    arguments: np.ndarray
    phases: np.ndarray
    poison: np.ndarray
    constants: np.ndarray
    functions: tuple[str, ...]
    staging_bytes: int
    kernel_calls: tuple[int, ...]  # per core
    ddr_bytes: tuple[int, int]
    channel_bytes: tuple[tuple[str, int], ...] = field(default=())

    ARRAYS = ("operations", "segments", "arguments", "phases", "poison", "constants")


class _Segments:
    """Interned segment lists: equal shapes are stored once."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.count = 0
        self._shapes: dict[tuple[object, ...], tuple[int, int, int, int, int]] = {}
        self._known: dict[bytes, tuple[int, int]] = {}
        self.tables: dict[tuple[int, int], np.ndarray] = {}

    def of(self, source: Pattern, first: int, dest: Pattern, into: int, count: int) -> tuple[int, int, int, int, int]:
        """(first row, rows, common length or 0, source offset, dest offset) of a copy of stream bytes."""
        key = (source.key, first, dest.key, into, count)
        if key not in self._shapes:
            self._shapes[key] = self._intern(_segment_table(source, first, dest, into, count))
        return self._shapes[key]

    def _intern(self, table: np.ndarray) -> tuple[int, int, int, int, int]:
        real = table[:, 0] >= 0
        source = int(table[real, 0].min()) if real.any() else 0
        dest = int(table[:, 1].min())
        relative = table - np.array([source, dest, 0])
        relative[~real, 0] = ZERO
        content = relative.tobytes()
        if content not in self._known:
            self._known[content] = (self.count, len(relative))
            self.tables[self.count, len(relative)] = relative
            self.rows.append(relative)
            self.count += len(relative)
        row, rows = self._known[content]
        lengths = np.unique(relative[:, 2])
        uniform = int(lengths[0]) if len(lengths) == 1 and real.all() else 0
        return row, rows, uniform, source, dest


def _segment_table(source: Pattern, first: int, dest: Pattern, into: int, count: int) -> np.ndarray:
    """(rows, 3) int64 of maximal byte segments (source offset or ZERO, dest offset, bytes), in stream order."""
    if source.linear and dest.linear:
        return np.array([[first, into, count]], np.int64)
    source_starts, source_run = source.runs()
    dest_starts, dest_run = dest.runs()
    unit = gcd(gcd(gcd(source_run, first), gcd(dest_run, into)), count) if not source.linear else gcd(dest_run, into)
    if source.linear:
        unit = gcd(unit, count)
    elif dest.linear:
        unit = gcd(gcd(source_run, first), count)
    stream = np.arange(0, count, unit, dtype=np.int64)
    a, b = stream + first, stream + into
    src = source_starts[a // source_run]
    src = np.where(src < 0, ZERO, src + a % source_run)
    dst = dest_starts[b // dest_run] + b % dest_run
    zero = src == ZERO
    follows = (dst[1:] == dst[:-1] + unit) & (zero[1:] == zero[:-1]) & (zero[1:] | (src[1:] == src[:-1] + unit))
    heads = np.concatenate([[0], np.flatnonzero(~follows) + 1])
    lengths = np.diff(np.concatenate([heads, [len(stream)]])) * unit
    return np.stack([src[heads], dst[heads], lengths], axis=1).astype(np.int64)


class _Builder:
    """Lowers recorded operations to rows."""

    def __init__(self, recorder: Recorder) -> None:
        self.segments = _Segments()
        self.rows: list[list[int]] = []
        self.costs: list[float] = []
        self.arguments: list[tuple[int, int]] = []
        self.argument_lists: dict[tuple[tuple[int, int], ...], int] = {}
        self.spans: list[tuple[tuple[int, int, int], ...]] = []  # of calls: (region, first byte, end) per memory
        self.functions: dict[str, int] = {}
        self.constants = bytearray()
        self.staging_bytes = 0
        self.call_ns = {name: max(0.0, ns - CTYPES_NS) for name, ns in recorder.durations.items()}
        saves = self._plan_saves(recorder)
        for order, operation in enumerate(recorder.operations):
            for save in saves.get(order, ()):
                self._copy(save)
            if isinstance(operation, _Copy):
                self._copy(operation)
            elif isinstance(operation, _Call):
                self._call(operation)
            else:
                self._write(operation)

    def _plan_saves(self, recorder: Recorder) -> dict[int, list[_Copy]]:
        """Copies into the staging region, by the order before which they stand; staged copies then read from there."""
        saves: dict[int, list[_Copy]] = {}
        for operation in recorder.operations:
            if isinstance(operation, _Copy) and operation.staged_from is not None:
                linear = Pattern((), operation.count, ())
                place = (STAGING_REGION, self.staging_bytes)
                self.staging_bytes += -(-operation.count // 64) * 64
                save = _Copy(operation.source, operation.source_pattern, operation.first, place, linear, 0,
                             operation.count, operation.check)  # fmt: skip
                saves.setdefault(operation.staged_from, []).append(save)
                operation.source, operation.source_pattern, operation.first = place, linear, 0
                operation.check = False
        return saves

    def _add(self, row: list[int], cost: float) -> None:
        self.rows.append(row + [0] * (COLUMNS - len(row)))
        self.costs.append(cost)

    def _copy(self, c: _Copy) -> None:
        row, rows, length, source, dest = self.segments.of(c.source_pattern, c.first, c.dest_pattern, c.into, c.count)
        self.spans.append(())
        self._add(
            [COPY, row, rows, length, c.source[0], c.source[1] + source, c.dest[0], c.dest[1] + dest, int(c.check)],
            COPY_NS + rows * SEGMENT_NS + c.count * BYTE_NS,
        )

    def _write(self, w: _Write) -> None:
        place = (CONSTANT_REGION, len(self.constants))
        self.constants += w.content
        linear = Pattern((), len(w.content), ())
        self._copy(_Copy(place, linear, 0, w.dest, linear, 0, len(w.content), False))

    def _call(self, c: _Call) -> None:
        key = c.prepared.places
        if key not in self.argument_lists:
            self.argument_lists[key] = len(self.arguments)
            self.arguments.extend(key)
        number = self.functions.setdefault(c.function, len(self.functions))
        memories = c.prepared.memories
        self.spans.append(tuple((m.region, m.base, m.base + m.nbytes) for m in memories))
        self._add([CALL, number, c.core, self.argument_lists[key], len(key)], CALL_NS + self.call_ns[c.function])


def build_schedule(
    recorder: Recorder,
    kernel_calls: tuple[int, ...],
    ddr_bytes: tuple[int, int],
    channel_bytes: tuple[tuple[str, int], ...],
) -> Schedule:
    """Lower what was recorded."""
    builder = _Builder(recorder)
    levels = Levels(builder.rows, builder.spans, builder.segments.tables)
    operations = np.array(builder.rows, np.int64).reshape(-1, COLUMNS)
    order, grouped = phases(levels.levels, np.array(builder.costs))
    segments = np.concatenate(builder.segments.rows) if builder.segments.rows else np.zeros((0, 3), np.int64)
    return Schedule(
        operations=operations[order] if len(order) else operations,
        segments=segments,
        arguments=np.array(builder.arguments, np.int64).reshape(-1, 2),
        phases=grouped,
        poison=levels.poison(),
        constants=np.frombuffer(bytes(builder.constants), np.uint8).copy(),
        functions=tuple(builder.functions),
        staging_bytes=builder.staging_bytes,
        kernel_calls=kernel_calls,
        ddr_bytes=ddr_bytes,
        channel_bytes=channel_bytes,
    )
