# SPDX-License-Identifier: Apache-2.0
"""The twin's log: one record a dispatch, and totals per design that stay small however long a run is."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from npu.device import DispatchRecord
from npu.program import TileId
from npu.twin.cores import COUNTERS

KEPT_RECORDS = 20_000
_VECTOR = COUNTERS.index("mul_adds_vector")
_MATRIX = COUNTERS.index("matrix_macs")
_SCALAR = COUNTERS.index("mul_adds_scalar")
_OPS = COUNTERS.index("vector_ops")


@dataclass(frozen=True)
class TwinDispatch(DispatchRecord):
    """A dispatch on the twin.

    cores: the placed cores, in the order of `calls` and of the rows of `counters` (columns: cores.COUNTERS).
    channel_bytes: (channel, bytes) of every connected DMA channel. note: why the event tier ran, where it matters.
    """

    cores: tuple[TileId, ...] = ()
    calls: tuple[int, ...] = ()
    counters: np.ndarray = field(default_factory=lambda: np.zeros((0, len(COUNTERS)), np.uint64), compare=False)
    channel_bytes: tuple[tuple[str, int], ...] = ()
    note: str = ""

    @property
    def kernel_calls(self) -> dict[tuple[int, int], int]:
        """(col, row) -> kernel calls."""
        return {(t.col, t.row): n for t, n in zip(self.cores, self.calls, strict=True)}

    @property
    def vector_ops(self) -> dict[tuple[int, int], int]:
        """(col, row) -> vector operations."""
        return {(t.col, t.row): int(n) for t, n in zip(self.cores, self.counters[:, _OPS], strict=False)}

    @property
    def mul_adds(self) -> dict[tuple[int, int], int]:
        """(col, row) -> multiply-adds of every kind."""
        sums = self.counters[:, _VECTOR] + self.counters[:, _MATRIX] + self.counters[:, _SCALAR]
        return {(t.col, t.row): int(n) for t, n in zip(self.cores, sums, strict=False)}

    @property
    def vector_mul_adds(self) -> dict[tuple[int, int], int]:
        """(col, row) -> multiply-adds that went through mmul, mac and their relatives."""
        sums = self.counters[:, _VECTOR] + self.counters[:, _MATRIX]
        return {(t.col, t.row): int(n) for t, n in zip(self.cores, sums, strict=False)}


@dataclass
class DesignTotals:
    """Sums over every dispatch of one design."""

    design: str
    dispatches: int = 0
    tiers: Counter[str] = field(default_factory=Counter)
    ddr_read_bytes: int = 0
    ddr_write_bytes: int = 0
    kernel_calls: Counter[tuple[int, int]] = field(default_factory=Counter)
    counters: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    channel_bytes: Counter[str] = field(default_factory=Counter)
    notes: set[str] = field(default_factory=set)

    def counter(self, name: str) -> dict[tuple[int, int], int]:
        """(col, row) -> one of cores.COUNTERS."""
        column = COUNTERS.index(name)
        return {core: int(row[column]) for core, row in self.counters.items()}


class Log:
    """Records in order (the last `KEPT_RECORDS`), totals over all."""

    def __init__(self) -> None:
        self._records: deque[TwinDispatch] = deque(maxlen=KEPT_RECORDS)
        self._pending: dict[tuple[str, tuple[TileId, ...], tuple[int, ...], tuple[tuple[str, int], ...]], list] = {}
        self._totals: dict[str, DesignTotals] = {}

    def add(self, record: TwinDispatch) -> None:
        """Append, and add to the design's totals."""
        self._records.append(record)
        totals = self._totals.setdefault(record.design, DesignTotals(record.design))
        totals.dispatches += 1
        totals.tiers[record.tier] += 1
        totals.ddr_read_bytes += record.ddr_read_bytes
        totals.ddr_write_bytes += record.ddr_write_bytes
        if record.note:
            totals.notes.add(record.note)
        # What a schedule fixes is multiplied out when totals are read; only counters are added each time.
        key = (record.design, record.cores, record.calls, record.channel_bytes)
        entry = self._pending.get(key)
        if entry is None:
            self._pending[key] = [1, record.counters.copy()]
        else:
            entry[0] += 1
            entry[1] += record.counters

    def records(self) -> Iterator[TwinDispatch]:
        return iter(tuple(self._records))

    def totals(self) -> dict[str, DesignTotals]:
        """Totals by design."""
        for (design, cores, calls, channels), (times, counters) in self._pending.items():
            totals = self._totals[design]
            for index, tile in enumerate(cores):
                place = (tile.col, tile.row)
                totals.kernel_calls[place] += calls[index] * times
                totals.counters[place] = totals.counters.get(place, 0) + counters[index]
            for channel, moved in channels:
                totals.channel_bytes[channel] += moved * times
        self._pending.clear()
        return dict(self._totals)

    def clear(self) -> None:
        """Forget everything, for instance between two measurements."""
        self._records.clear()
        self._pending.clear()
        self._totals.clear()
