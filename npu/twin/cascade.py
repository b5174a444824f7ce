# SPDX-License-Identifier: Apache-2.0
"""Cascade streams between neighbouring cores, for aie.put_cascade and aie.get_cascade in a core's own code, and for kernels
that others wrote (waiting_call.py)."""

from __future__ import annotations

from collections import deque
from typing import Any

from npu.program import TileId
from npu.twin.stream import Process

DEPTH = 2  # values under way; not published for AIE2P, so that a design must not rely on more


class CascadeLink:
    """One cascade stream. Values are vectors, in order."""

    __slots__ = ("dest", "ready", "source", "values", "waiters")

    def __init__(self, source: TileId, dest: TileId, ready: deque[Process]) -> None:
        self.source, self.dest, self.ready = source, dest, ready
        self.values: deque[Any] = deque()
        self.waiters: list[Process] = []

    @property
    def full(self) -> bool:
        return len(self.values) >= DEPTH

    def put(self, value: Any) -> None:
        """Append; the caller has waited for room."""
        self.values.append(value)
        self._wake()

    def get(self) -> Any:
        """Take the oldest; the caller has waited for it."""
        value = self.values.popleft()
        self._wake()
        return value

    def _wake(self) -> None:
        self.ready.extend(self.waiters)
        self.waiters.clear()
