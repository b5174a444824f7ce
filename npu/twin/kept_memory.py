# SPDX-License-Identifier: Apache-2.0
"""What memtiles hold from one design to the next.

Loading a design sets cores, locks, BDs and switches, and leaves the words of memtiles as they are; designs of others
rely on that (mlir-aie's test of a load_pdi with a persistent memtile does). Our own designs may not: there every
configure poisons all memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npu.array import array_of
from npu.program import Buffer, TileId, TileKind
from npu.twin.memory import POISON

if TYPE_CHECKING:
    from npu.twin.engine import Engine


class MemtileContents:
    """The words of every memtile that some design has used, poison where nobody wrote."""

    def __init__(self) -> None:
        self._tiles: dict[TileId, np.ndarray] = {}

    def save(self, engine: Engine) -> None:
        """After a dispatch."""
        for buffer in self._buffers(engine):
            if buffer.tile not in self._tiles:
                size = array_of(engine.device.target).limits(buffer.tile).data_memory_bytes
                self._tiles[buffer.tile] = np.full(size // 4, POISON, np.uint32).view(np.uint8)
            end = buffer.address + buffer.type.nbytes
            self._tiles[buffer.tile][buffer.address : end] = engine.buffers[buffer.name].data

    def restore(self, engine: Engine) -> None:
        """After a configure; initial values go before."""
        for buffer in self._buffers(engine):
            words = self._tiles.get(buffer.tile)
            if words is not None and buffer.initial is None:
                engine.buffers[buffer.name].data[:] = words[buffer.address : buffer.address + buffer.type.nbytes]

    @staticmethod
    def _buffers(engine: Engine) -> list[Buffer]:
        """Memtile buffers that lie within their tile."""
        limit = array_of(engine.device.target).memtile.data_memory_bytes
        return [
            buffer
            for buffer in engine.device.buffers
            if buffer.tile.kind is TileKind.MEMTILE
            and buffer.address is not None
            and buffer.address + buffer.type.nbytes <= limit
        ]
