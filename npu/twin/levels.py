# SPDX-License-Identifier: Apache-2.0
"""Levels and phases: which recorded operations may run side by side.

An operation's level is one more than the highest level among those that it must come after: writers of words that it
reads, readers and writers of words that it writes, earlier calls on its core. Hazards are kept per 32-bit word, so that
four transfers into one memtile buffer are independent. A kernel call counts as a write of every buffer that it gets.
"""

from __future__ import annotations

import numpy as np

from npu.twin.memory import CONSTANT_REGION, TILE_REGION
from npu.twin.tables import (
    CALL,
    COPY,
    CORE,
    DEST,
    DEST_REGION,
    KIND,
    LENGTH,
    SEGMENT,
    SEGMENTS,
    SOURCE,
    SOURCE_REGION,
)

PARALLEL_NS = 6000.0  # a level with less work is not worth a barrier

Spans = tuple[tuple[int, int, int], ...]  # (region, first byte, end) of each memory that a call gets


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


class Levels:
    """Level of each operation: one more than that of everything it must come after."""

    def __init__(self, rows: list[list[int]], spans: list[Spans], tables: dict[tuple[int, int], np.ndarray]) -> None:
        """rows: the operation table. tables: segment rows by (first, count)."""
        self.tables = tables
        self.regions: dict[int, _Words] = {}
        self.cores: dict[int, int] = {}
        self.written = {CONSTANT_REGION: False}
        for row in rows:
            if row[KIND] == COPY:
                self.written[row[DEST_REGION]] = True
        self._relative: dict[tuple[int, int], tuple[object, object]] = {}
        self.poison_words = np.zeros(1024, bool)
        self.filled = np.zeros(1024, bool)
        self.levels = np.array([self._level(row, span) for row, span in zip(rows, spans, strict=True)], np.int64)

    def _words(self, region: int) -> _Words | None:
        if region != TILE_REGION and not self.written.get(region, False):
            return None  # nothing writes there: no hazard
        return self._region(region)

    def _region(self, region: int) -> _Words:
        words = self.regions.get(region)
        if words is None:
            words = self.regions[region] = _Words()
        return words

    def _cover(self, row: list[int]) -> tuple[object, object]:
        """(source, dest) word selections of a copy relative to its offsets: a length in words, or an index array."""
        key = (row[SEGMENT], row[SEGMENTS])
        if key not in self._relative:
            table = self.tables[key]
            self._relative[key] = (_selection(table[table[:, 0] >= 0], 0), _selection(table, 1))
        return self._relative[key]

    def _level(self, row: list[int], spans: Spans) -> int:
        if row[KIND] == CALL:
            return self._call_level(row, spans)
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

    def _call_level(self, row: list[int], spans: Spans) -> int:
        before = self.cores.get(row[CORE], 0)
        places = []
        for region, start, end in spans:
            words = self._region(region)
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
