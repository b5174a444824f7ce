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
from npu.twin.memory import CONSTANT_REGION, FIRST_HOST_REGION, STAGING_REGION, TILE_REGION, Memory
from npu.twin.pattern import Pattern
from npu.twin.scalar_ops import View

if TYPE_CHECKING:
    from npu.twin.stream import Sending, Transfer

COPY, CALL = 0, 1
# Columns of the operation table.
KIND, SEGMENT, SEGMENTS, LENGTH, SOURCE_REGION, SOURCE, DEST_REGION, DEST, CHECK = range(9)
FUNCTION, CORE, ARGUMENT, ARGUMENTS = 1, 2, 3, 4
COLUMNS = 9
IMMEDIATE = -1  # region of an integer argument
ZERO = -1  # source offset of a segment of zeros

COPY_NS, SEGMENT_NS, BYTE_NS, CALL_NS = 15.0, 1.5, 0.12, 60.0
PARALLEL_NS = 6000.0  # a level with less work is not worth a barrier


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
        self.durations: dict[str, tuple[int, int]] = {}
        self._last_write: dict[tuple[int, int], int] = {}

    def _append(self, operation: _Copy | _Call | _Write) -> None:
        self.operations.append(operation)
        self.count += 1

    @staticmethod
    def _owner(memory: Memory) -> tuple[int, int]:
        return memory.region, memory.base if memory.region == TILE_REGION else 0

    def copy(self, sending: Sending, first: int, transfer: Transfer, into: int, count: int, check: bool) -> None:
        """`count` bytes from byte `first` of an MM2S execution to byte `into` of an S2MM execution."""
        source = sending.transfer
        staged = self._last_write.get(self._owner(source.memory), -1) >= sending.order
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
        self._last_write[self._owner(transfer.memory)] = self.count - 1

    def call(self, core: int, function: str, prepared: PreparedCall, nanoseconds: int) -> None:
        """One kernel call; it may write every buffer that it gets. Its duration only balances the replay's threads."""
        self._append(_Call(core, function, prepared))
        calls, total = self.durations.get(function, (0, 0))
        self.durations[function] = calls + 1, total + nanoseconds
        for memory in prepared.memories:
            self._last_write[self._owner(memory)] = self.count - 1

    def write(self, memory: Memory, start: int, content: bytes) -> None:
        """A constant write: an initial value, rtp_write, a core's store."""
        self._append(_Write((memory.region, memory.base + start), content))
        self._last_write[self._owner(memory)] = self.count - 1


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
        self.call_ns = {name: total / calls for name, (calls, total) in recorder.durations.items()}
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
        words: list[tuple[int, int]] = []
        for argument in c.prepared.arguments:
            if isinstance(argument, View):
                words.append((argument.memory.region, argument.memory.base + argument.byte_offset))
            else:
                words.append((IMMEDIATE, argument))
        key = tuple(words)
        if key not in self.argument_lists:
            self.argument_lists[key] = len(self.arguments)
            self.arguments.extend(key)
        number = self.functions.setdefault(c.function, len(self.functions))
        memories = c.prepared.memories
        self.spans.append(tuple((m.region, m.base, m.base + m.nbytes) for m in memories))
        self._add([CALL, number, c.core, self.argument_lists[key], len(words)], CALL_NS + self.call_ns[c.function])


class _Words:
    """Per-word levels of one region: the last write and the last read. Grown as it is used."""

    def __init__(self) -> None:
        self.write = np.zeros(1024, np.int32)
        self.read = np.zeros(1024, np.int32)

    def grow(self, words: int) -> None:
        if words > len(self.write):
            size = max(words, 2 * len(self.write))
            self.write = np.concatenate([self.write, np.zeros(size - len(self.write), np.int32)])
            self.read = np.concatenate([self.read, np.zeros(size - len(self.read), np.int32)])


class _Levels:
    """Level of each operation: one more than that of everything it must come after."""

    def __init__(self, builder: _Builder) -> None:
        self.builder = builder
        self.regions: dict[int, _Words] = {}
        self.cores: dict[int, int] = {}
        rows = builder.rows
        self.written = {CONSTANT_REGION: False}
        for row in rows:
            if row[KIND] == COPY:
                self.written[row[DEST_REGION]] = True
        self._relative: dict[tuple[int, int], tuple[object, object]] = {}
        self.poison_words = np.zeros(1024, bool)
        self.filled = np.zeros(1024, bool)
        self.levels = np.array([self._level(i, row) for i, row in enumerate(rows)], np.int64)

    def _words(self, region: int) -> _Words | None:
        if region != TILE_REGION and not self.written.get(region, False):
            return None  # nothing writes there: no hazard
        return self.regions.setdefault(region, _Words())

    def _cover(self, row: list[int]) -> tuple[object, object]:
        """(source, dest) word selections of a copy relative to its offsets: a length in words, or an index array."""
        key = (row[SEGMENT], row[SEGMENTS])
        if key not in self._relative:
            table = self.builder.segments.tables[key]
            self._relative[key] = (_selection(table[table[:, 0] >= 0], 0), _selection(table, 1))
        return self._relative[key]

    def _level(self, index: int, row: list[int]) -> int:
        if row[KIND] == CALL:
            return self._call_level(row, self.builder.spans[index])
        source, dest = self._cover(row)
        before = 0
        reads = self._words(row[SOURCE_REGION])
        read_at: object = None
        if reads is not None and source is not None:
            read_at = self._place(reads, row[SOURCE], source)
            before = int(reads.write[read_at].max())
            if row[SOURCE_REGION] == TILE_REGION:
                self._needs(read_at)
        writes = self._words(row[DEST_REGION])
        write_at = self._place(writes, row[DEST], dest)
        before = max(before, int(writes.write[write_at].max()), int(writes.read[write_at].max()))
        level = before + 1
        writes.write[write_at] = level
        if read_at is not None:
            reads.read[read_at] = np.maximum(reads.read[read_at], level)
        if row[DEST_REGION] == TILE_REGION:
            self._fit(write_at)
            if row[DEST] % 4 or row[LENGTH] % 4:
                self._needs(write_at)  # half a word is written: the other half keeps its poison
            self.filled[write_at] = True
        return level

    def _call_level(self, row: list[int], spans: tuple[tuple[int, int, int], ...]) -> int:
        before = self.cores.get(row[CORE], 0)
        places = []
        for region, start, end in spans:
            words = self.regions.setdefault(region, _Words())
            at = slice(start // 4, -(-end // 4))
            words.grow(at.stop)
            before = max(before, int(words.write[at].max()), int(words.read[at].max()))
            places.append((words, at))
            self._needs(at)
        level = before + 1
        for words, at in places:
            words.write[at] = level
        self.cores[row[CORE]] = level
        return level

    @staticmethod
    def _place(words: _Words, offset: int, selection: object) -> object:
        start = offset // 4
        if isinstance(selection, int):
            at: object = slice(start, start + selection + (offset % 4 != 0))
            words.grow(at.stop)  # type: ignore[attr-defined]
        else:
            at = selection + start  # type: ignore[operator]
            words.grow(int(at.max()) + 1)  # type: ignore[attr-defined]
        return at

    def _fit(self, at: object) -> None:
        need = at.stop if isinstance(at, slice) else int(at.max()) + 1  # type: ignore[attr-defined]
        if need > len(self.filled):
            size = max(need, 2 * len(self.filled))
            self.filled = np.concatenate([self.filled, np.zeros(size - len(self.filled), bool)])
            self.poison_words = np.concatenate([self.poison_words, np.zeros(size - len(self.poison_words), bool)])

    def _needs(self, at: object) -> None:
        """Words read before any transfer has filled them keep their poison: configure must put it there."""
        self._fit(at)
        empty = ~self.filled[at]
        if empty.any():
            self.poison_words[at] |= empty
            self.filled[at] = True

    def poison(self) -> np.ndarray:
        """(n, 2) byte ranges."""
        padded = np.concatenate([[False], self.poison_words, [False]])
        edges = np.flatnonzero(padded[1:] != padded[:-1])
        return (edges.reshape(-1, 2) * 4).astype(np.int64)


def _selection(table: np.ndarray, column: int) -> int | np.ndarray | None:
    """Words that the segments touch, relative to the smallest offset (which is 0 after interning)."""
    if len(table) == 0:
        return None
    starts, lengths = table[:, column], table[:, 2]
    if len(table) == 1:
        return int(-(-(starts[0] % 4 + lengths[0]) // 4))
    first = starts // 4
    counts = -(-(starts % 4 + lengths) // 4)
    index = np.repeat(first - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) + np.arange(counts.sum())
    index = np.unique(index)
    if len(index) == index[-1] - index[0] + 1 and index[0] == 0:
        return len(index)
    return index


def _phases(levels: np.ndarray, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(order of operations, phases): rich levels stand alone and run side by side, poor neighbours are one serial run."""
    order = np.lexsort((np.arange(len(levels)), levels))
    phases: list[list[int]] = []
    start = 0
    while start < len(order):
        end = int(np.searchsorted(levels[order], levels[order[start]], side="right"))
        members = order[start:end]
        work = float(costs[members].sum())
        parallel = len(members) > 1 and work >= PARALLEL_NS and float(costs[members].max()) < 0.8 * work
        if parallel:
            order[start:end] = members[np.argsort(-costs[members], kind="stable")]
            phases.append([start, end - start, 1])
        elif phases and not phases[-1][2]:
            phases[-1][1] += end - start
        else:
            phases.append([start, end - start, 0])
        start = end
    return order, np.array(phases, np.int64).reshape(-1, 3)


def build_schedule(
    recorder: Recorder,
    kernel_calls: tuple[int, ...],
    ddr_bytes: tuple[int, int],
    channel_bytes: tuple[tuple[str, int], ...],
) -> Schedule:
    """Lower what was recorded."""
    builder = _Builder(recorder)
    levels = _Levels(builder)
    operations = np.array(builder.rows, np.int64).reshape(-1, COLUMNS)
    order, phases = _phases(levels.levels, np.array(builder.costs))
    segments = np.concatenate(builder.segments.rows) if builder.segments.rows else np.zeros((0, 3), np.int64)
    return Schedule(
        operations=operations[order] if len(order) else operations,
        segments=segments,
        arguments=np.array(builder.arguments, np.int64).reshape(-1, 2),
        phases=phases,
        poison=levels.poison(),
        constants=np.frombuffer(bytes(builder.constants), np.uint8).copy(),
        functions=tuple(builder.functions),
        staging_bytes=builder.staging_bytes,
        kernel_calls=kernel_calls,
        ddr_bytes=ddr_bytes,
        channel_bytes=channel_bytes,
    )


__all__ = ["COLUMNS", "FIRST_HOST_REGION", "Recorder", "Schedule", "build_schedule"]
