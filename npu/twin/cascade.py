# SPDX-License-Identifier: Apache-2.0
"""Cascade streams between neighbouring cores, for aie.put_cascade and aie.get_cascade in a core's own code, and for kernels
that others wrote (waiting_call.py)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from npu.program import Program, TileId
from npu.twin.hostcc import KernelLibrary
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


def connect_by_default(program: Program, libraries: Mapping[str, KernelLibrary]) -> Program:
    """The program with the cascades that a design leaves to the reset state: each core's goes to its southern neighbour.

    For a device whose text has no aie.cascade_flow while a kernel that it links uses the cascade. libraries: by the
    object names that the functions link with.
    """
    devices = []
    for device in program.devices:
        linked = {function.link_with for function in device.functions}
        if not device.cascades and any(library.uses_cascade for name, library in libraries.items() if name in linked):
            cores = {core.tile for core in device.cores}
            south = ((tile, TileId(tile.col, tile.row - 1)) for tile in sorted(cores))
            device = replace(device, cascades=tuple(pair for pair in south if pair[1] in cores))
        devices.append(device)
    return replace(program, devices=tuple(devices))
