# SPDX-License-Identifier: Apache-2.0
"""Levels and phases: which recorded operations may run side by side.

An operation's level is one more than the highest level among those that it must come after: writers of what it reads,
readers and writers of what it writes, earlier calls on its core. In tile memory a transfer covers the range from its
first byte to its last, so four transfers into parts of one memtile buffer are independent; in host memory hazards are
kept per 32-bit word, since the columns of the array write interleaved parts of one output. A kernel call counts as a
write of every buffer that it gets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npu.twin.memory import TILE_REGION
from npu.twin.tables import (
    CALL,
    COPY,
    CORE,
    DEST,
    DEST_REGION,
    KIND,
    SEGMENT,
    SEGMENTS,
    SOURCE,
    SOURCE_REGION,
)

PARALLEL_NS = 10_000.0  # a level with less work is not worth a barrier

Selection = int | np.ndarray  # so many words from the offset, or word indices
Spans = tuple[tuple[int, int, int], ...]  # (region, first byte, end) of each memory that a call gets


class _Words:
    """Per-word levels of one host or staging region: the last write and the last read. Grown as it is used."""

    def __init__(self) -> None:
        self.write = np.zeros(1024, np.int32)
        self.read = np.zeros(1024, np.int32)

    def place(self, offset: int, selection: Selection) -> slice | np.ndarray:
        """The words of a selection at byte `offset`."""
        start = offset // 4
        if isinstance(selection, int):
            at: slice | np.ndarray = slice(start, start + selection + (offset % 4 != 0))
            need = at.stop
        else:
            at = selection + start
            need = int(at.max()) + 1
        if need > len(self.write):
            more = np.zeros(max(need, 2 * len(self.write)) - len(self.write), np.int32)
            self.write = np.concatenate([self.write, more])
            self.read = np.concatenate([self.read, more])
        return at

    def before_read(self, at: slice | np.ndarray) -> int:
        return int(self.write[at].max())

    def before_write(self, at: slice | np.ndarray) -> int:
        return max(int(self.write[at].max()), int(self.read[at].max()))

    def read_at(self, at: slice | np.ndarray, level: int) -> None:
        self.read[at] = np.maximum(self.read[at], level)

    def write_at(self, at: slice | np.ndarray, level: int) -> None:
        self.write[at] = level


class _Cells:
    """The same for tile memory, in cells: the pieces between all bounds that operations use. Few cells make an operation."""

    def __init__(self, bounds: list[int]) -> None:
        """bounds: sorted byte offsets."""
        self.bounds = bounds
        self.number = {byte: i for i, byte in enumerate(bounds)}
        self.write = [0] * len(bounds)
        self.read = [0] * len(bounds)
        self.filled = [False] * len(bounds)
        self.poison = [False] * len(bounds)

    def place(self, start: int, end: int) -> range:
        return range(self.number[start], self.number[end])

    def before_read(self, cells: range) -> int:
        write = self.write
        return max(write[c] for c in cells)

    def before_write(self, cells: range) -> int:
        write, read = self.write, self.read
        return max(max(write[c], read[c]) for c in cells)

    def read_at(self, cells: range, level: int) -> None:
        read = self.read
        for c in cells:
            if read[c] < level:
                read[c] = level

    def write_at(self, cells: range, level: int) -> None:
        for c in cells:
            self.write[c] = level

    def needs(self, cells: range) -> None:
        """What is read before a transfer has filled it keeps its poison: configure must put it there."""
        for c in cells:
            if not self.filled[c]:
                self.filled[c] = self.poison[c] = True

    def fill(self, cells: range) -> None:
        for c in cells:
            self.filled[c] = True


class Levels:
    """Level of each operation: one more than that of everything it must come after."""

    def __init__(self, rows: list[list[int]], spans: list[Spans], tables: dict[tuple[int, int], np.ndarray]) -> None:
        """rows: the operation table. spans: memories of each call. tables: segment rows by (first, count)."""
        self.tables = tables
        self._covers: dict[tuple[int, int], tuple[_Cover | None, _Cover]] = {}
        self.written = {row[DEST_REGION] for row in rows if row[KIND] == COPY}
        self.cells = _Cells(self._bounds(rows, spans))
        self.words: dict[int, _Words] = {}
        self.cores: dict[int, int] = {}
        self.levels = np.array(
            [
                self._call(row, span) if row[KIND] == CALL else self._copy(row)
                for row, span in zip(rows, spans, strict=True)
            ],
            np.int64,
        )

    def _bounds(self, rows: list[list[int]], spans: list[Spans]) -> list[int]:
        found: set[int] = set()
        for row, span in zip(rows, spans, strict=True):
            if row[KIND] == CALL:
                for _, start, end in span:
                    found.update((start, end))
                continue
            source, dest = self._cover(row)
            if source is not None and row[SOURCE_REGION] == TILE_REGION:
                found.update((row[SOURCE], row[SOURCE] + source.extent))
            if row[DEST_REGION] == TILE_REGION:
                found.update((row[DEST], row[DEST] + dest.extent))
        return sorted(found)

    def _cover(self, row: list[int]) -> tuple[_Cover | None, _Cover]:
        """What a copy reads and writes, relative to its offsets; nothing is read where all is zeros."""
        key = (row[SEGMENT], row[SEGMENTS])
        if key not in self._covers:
            table = self.tables[key]
            real = table[table[:, 0] >= 0]
            self._covers[key] = (_Cover.of(real, 0) if len(real) else None, _Cover.of(table, 1))
        return self._covers[key]

    def _region(self, region: int) -> _Words:
        words = self.words.get(region)
        if words is None:
            words = self.words[region] = _Words()
        return words

    def _copy(self, row: list[int]) -> int:
        source, dest = self._cover(row)
        cells = self.cells
        before = 0
        reads: _Words | _Cells | None = None
        if source is not None and row[SOURCE_REGION] == TILE_REGION:
            reads = cells
            read_at = cells.place(row[SOURCE], row[SOURCE] + source.extent)
            cells.needs(read_at)
        elif source is not None and row[SOURCE_REGION] in self.written:  # else nothing writes there: no hazard
            reads = self._region(row[SOURCE_REGION])
            read_at = reads.place(row[SOURCE], source.words)
        if reads is not None:
            before = reads.before_read(read_at)
        if row[DEST_REGION] == TILE_REGION:
            writes: _Words | _Cells = cells
            write_at = cells.place(row[DEST], row[DEST] + dest.extent)
        else:
            writes = self._region(row[DEST_REGION])
            write_at = writes.place(row[DEST], dest.words)
        level = 1 + max(before, writes.before_write(write_at))
        writes.write_at(write_at, level)
        if reads is not None:
            reads.read_at(read_at, level)
        if writes is cells:
            if not dest.whole or row[DEST] % 4:
                cells.needs(write_at)  # what is not written keeps its poison
            cells.fill(write_at)
        return level

    def _call(self, row: list[int], spans: Spans) -> int:
        cells = self.cells
        before = self.cores.get(row[CORE], 0)
        places = [cells.place(start, end) for _, start, end in spans]
        for at in places:
            before = max(before, cells.before_write(at))
            cells.needs(at)
        level = before + 1
        for at in places:
            cells.write_at(at, level)
        self.cores[row[CORE]] = level
        return level

    def poison(self) -> np.ndarray:
        """(n, 2) byte ranges of tile memory, in whole words."""
        ranges: list[list[int]] = []
        for number, poisoned in enumerate(self.cells.poison[:-1]):
            if not poisoned:
                continue
            start, end = self.cells.bounds[number] // 4 * 4, -(-self.cells.bounds[number + 1] // 4) * 4
            if ranges and ranges[-1][1] >= start:
                ranges[-1][1] = max(end, ranges[-1][1])
            else:
                ranges.append([start, end])
        return np.array(ranges, np.int64).reshape(-1, 2)


@dataclass(frozen=True)
class _Cover:
    """One side of a copy: words relative to its offset, bytes from first to last, and whether it has no holes."""

    words: Selection
    extent: int
    whole: bool

    @staticmethod
    def of(table: np.ndarray, column: int) -> _Cover:
        extent = int((table[:, column] + table[:, 2]).max())
        return _Cover(_selection(table, column), extent, int(table[:, 2].sum()) == extent and extent % 4 == 0)


def _selection(table: np.ndarray, column: int) -> Selection:
    """Words that the segments touch, relative to the smallest offset (which is 0 after interning)."""
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


def phases(levels: np.ndarray, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(order of operations, phases): rich levels stand alone and run side by side, poor neighbours are one serial run."""
    order = np.lexsort((np.arange(len(levels)), levels))
    found: list[list[int]] = []
    start = 0
    while start < len(order):
        end = int(np.searchsorted(levels[order], levels[order[start]], side="right"))
        members = order[start:end]
        work = float(costs[members].sum())
        parallel = len(members) > 1 and work >= PARALLEL_NS and float(costs[members].max()) < 0.8 * work
        if parallel:
            order[start:end] = members[np.argsort(-costs[members], kind="stable")]
            found.append([start, end - start, 1])
        elif found and not found[-1][2]:
            found[-1][1] += end - start
        else:
            found.append([start, end - start, 0])
        start = end
    return order, np.array(found, np.int64).reshape(-1, 3)
