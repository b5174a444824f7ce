# SPDX-License-Identifier: Apache-2.0
"""What a core's body calls: kernels, loads and stores of scalars and vectors, copies, its cascade streams."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np

from npu.device import DeviceFault
from npu.program import TileId
from npu.twin import vector_ops
from npu.twin.cascade import CascadeLink
from npu.twin.cores import PreparedCall
from npu.twin.memory import GUARD, POISON
from npu.twin.scalar_ops import View, load_element, store_element
from npu.twin.stream import Process
from npu.twin.waiting_call import WaitingCall

if TYPE_CHECKING:
    from npu.twin.engine import Engine


class Caller:
    """One core's access to the engine."""

    def __init__(self, engine: Engine, core: int, tile: TileId) -> None:
        self.engine = engine
        self.core = core
        self.tile = tile
        self.state = engine.states.pointer(core)
        self.prepared = engine._prepared[core]
        self.guards = engine.placement.tile_guards.get(tile)
        self.words = engine.tiles.words

    def call(self, function: str, arguments: tuple[View | int, ...]) -> None:
        """Run one kernel call, check the bands of this tile, record it."""
        self._finish(function, *self._run(self._prepare(function, arguments)))

    def waiting_call(self, process: Process, function: str, arguments: tuple[View | int, ...]) -> Iterator[None]:
        """The same for a core that a cascade meets: the kernel may wait for another core."""
        prepared, outcome = self._prepare(function, arguments), []
        state = self.engine.states.state(self.core)
        call = WaitingCall(
            lambda: outcome.append(self._run(prepared)), state, lambda put: self.cascade(put, f"kernel {function}")
        )
        yield from call.steps(process)
        self._finish(function, *outcome[0])

    def _prepare(self, function: str, arguments: tuple[View | int, ...]) -> PreparedCall:
        engine = self.engine
        key = (function, arguments)
        prepared = self.prepared.get(key)
        if prepared is None:
            if function not in engine.functions:
                raise DeviceFault(f"{self.tile} calls @{function}, which @{engine.device.name} does not declare")
            prepared = PreparedCall(engine.functions[function], arguments, self.tile)
            self.prepared[key] = prepared
        return prepared

    def _run(self, prepared: PreparedCall) -> tuple[PreparedCall, int, int]:
        """(the call, whether it failed, its nanoseconds)."""
        begin = perf_counter_ns()
        failed = prepared.call(self.state, prepared.address, prepared.words, prepared.count)
        return prepared, failed, perf_counter_ns() - begin

    def _finish(self, function: str, prepared: PreparedCall, failed: int, duration: int) -> None:
        engine = self.engine
        if failed:
            raise DeviceFault(f"{self.tile}, kernel {function}: {engine.why_ended(self.core)}")
        if self.guards is not None and not (self.words[self.guards] == GUARD).all():
            engine.check_guards(self.tile, f"kernel {function} on {self.tile}")
        for memory in prepared.memories:
            if memory.tile != self.tile:
                engine.check_guards(memory.tile, f"kernel {function} on {self.tile}")
        engine.calls[self.core] += 1
        if engine.recorder is not None:
            engine.recorder.call(self.core, function, prepared, duration)

    # ---- memory ------------------------------------------------------------------------------

    def load(self, view: View, indices: tuple[int, ...], where: str) -> int | float:
        """memref.load; a poisoned word was never written."""
        start = view.element(indices)[1] * view.element_bytes // 4 * 4
        word = view.memory.data[start : start + 4]
        if word.nbytes == 4 and word.view(np.uint32)[0] == POISON:
            raise DeviceFault(f"{self.tile} loads byte {start} of {view.memory}, which nobody wrote ({where})")
        return load_element(view, indices)

    def store(self, view: View, indices: tuple[int, ...], value: int | float, where: str) -> None:
        """memref.store of one element."""
        store_element(view, indices, value)
        if self.engine.recorder is not None:
            start = view.element(indices)[1] * view.element_bytes
            content = view.memory.data[start : start + view.element_bytes].tobytes()
            self.engine.recorder.write(view.memory, start, content)

    def load_vector(self, view: View, indices: tuple[int, ...], shape: tuple[int, ...], where: str) -> np.ndarray:
        """vector.load and vector.transfer_read: `shape` elements of the innermost dimensions from `indices`."""
        elements, places = self._places(view, indices, shape, where)
        self._written(view, places, where)
        return vector_ops.from_memory(elements[places].view(vector_ops.MEMORY[view.dtype]), view.dtype)

    def store_vector(self, view: View, indices: tuple[int, ...], value: np.ndarray, where: str) -> None:
        """vector.store and vector.transfer_write."""
        elements, places = self._places(view, indices, np.shape(value), where)
        elements[places] = vector_ops.to_memory(value, view.dtype).view(elements.dtype)
        if self.engine.recorder is not None:
            for place in places.reshape(-1):
                start = int(place) * view.element_bytes
                content = view.memory.data[start : start + view.element_bytes].tobytes()
                self.engine.recorder.write(view.memory, start, content)

    def copy(self, source: View, dest: View, where: str) -> None:
        """memref.copy."""
        zeros = (0,) * len(source.shape)
        elements, places = self._places(source, zeros, source.shape, where)
        self._written(source, places, where)
        target, into = self._places(dest, zeros, dest.shape, where)
        target[into] = elements[places]

    def _places(
        self, view: View, indices: tuple[int, ...], shape: tuple[int, ...], where: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """(the memory in the view's type, flat index of every element). DeviceFault where one lies outside the view."""
        outer = len(indices) - len(shape)
        sizes = (1,) * outer + tuple(shape)
        for index, size, extent in zip(indices, sizes, view.shape, strict=True):
            if not 0 <= index <= extent - size:
                raise DeviceFault(
                    f"{self.tile} reaches {size} elements from {indices} of {view.shape} of {view.memory} ({where})"
                )
        elements, first = view.element(indices)
        places = np.full((), first, np.int64)
        for size, stride in zip(shape, view.strides[outer:], strict=True):
            places = places[..., None] + np.arange(size, dtype=np.int64) * stride
        return elements, places

    def _written(self, view: View, places: np.ndarray, where: str) -> None:
        words = np.unique(places.reshape(-1) * view.element_bytes // 4)
        whole = view.memory.data[: view.memory.nbytes // 4 * 4].view(np.uint32)
        words = words[words < len(whole)]
        poisoned = words[whole[words] == POISON]
        if len(poisoned):
            byte = 4 * int(poisoned[0])
            raise DeviceFault(f"{self.tile} loads byte {byte} of {view.memory}, which nobody wrote ({where})")

    # ---- cascade -----------------------------------------------------------------------------

    def cascade(self, put: bool, where: str) -> CascadeLink:
        """The stream out of (put) or into this core."""
        for link in self.engine.cascades:
            if (link.source if put else link.dest) == self.tile:
                return link
        verb = "starts" if put else "ends"
        raise DeviceFault(f"{self.tile} uses a cascade, but no aie.cascade_flow {verb} there ({where})")
