# SPDX-License-Identifier: Apache-2.0
"""Runs a Schedule through the compiled replayer, with the same kernel libraries as the event tier."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from npu.device import DeviceFault
from npu.twin.cores import BoundFunction
from npu.twin.engine import Engine
from npu.twin.hostcc import compile_kernel
from npu.twin.memory import CONSTANT_REGION, FIRST_HOST_REGION, STAGING_REGION, TILE_REGION
from npu.twin.schedule import Schedule
from npu.twin.tables import CORE, DEST, DEST_REGION, FUNCTION, IMMEDIATE, SOURCE_REGION

SOURCE_FILE = Path(__file__).parent / "replay.cc"


class _Plan(ctypes.Structure):
    _fields_ = (
        ("operations", ctypes.c_void_p), ("segments", ctypes.c_void_p), ("words", ctypes.c_void_p),
        ("phases", ctypes.c_void_p), ("phase_count", ctypes.c_int64), ("poison", ctypes.c_void_p),
        ("poison_count", ctypes.c_int64), ("guards", ctypes.c_void_p), ("guard_count", ctypes.c_int64),
        ("bases", ctypes.c_void_p), ("functions", ctypes.c_void_p), ("callers", ctypes.c_void_p),
        ("states", ctypes.c_void_p), ("state_stride", ctypes.c_int64),
    )  # fmt: skip


class _Fault(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int64), ("operation", ctypes.c_int64), ("detail", ctypes.c_int64))


@lru_cache(maxsize=4)
def load_replayer(cache: Path) -> ctypes.CDLL:
    """The replayer, compiled once per content into `cache`."""
    library = ctypes.CDLL(str(compile_kernel(SOURCE_FILE, {}, cache=cache, flags=("-pthread",)).resolve()))
    library.twin_replay.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    library.twin_plan_size.restype = ctypes.c_int64
    if library.twin_plan_size() != ctypes.sizeof(_Plan):
        raise DeviceFault("replay.cc and replay.py disagree on the layout of a plan")
    return library


class Replay:
    """A schedule bound to one engine's memory; only the bases of the host regions change between dispatches."""

    def __init__(self, schedule: Schedule, engine: Engine, library: ctypes.CDLL, threads: int) -> None:
        self.schedule = schedule
        self.engine = engine
        self.threads = threads
        self._run = library.twin_replay
        self._fault = _Fault()
        self._fault_address = ctypes.addressof(self._fault)
        self._staging = np.zeros(max(64, schedule.staging_bytes), np.uint8)
        regions = int(max(schedule.operations[:, [SOURCE_REGION, DEST_REGION]].max(initial=0), FIRST_HOST_REGION)) + 1
        # Calls keep other things in those columns, small numbers too: a few spare bases do no harm.
        self._bases = np.zeros(max(regions, 64), np.uint64)
        self._bases[TILE_REGION] = engine.tiles.bytes.ctypes.data
        self._bases[STAGING_REGION] = self._staging.ctypes.data
        self._bases[CONSTANT_REGION] = schedule.constants.ctypes.data
        self._host = self._bases[FIRST_HOST_REGION:]
        self._words = self._resolve_arguments(schedule.arguments, int(self._bases[TILE_REGION]))
        self._functions, self._callers = self._resolve_functions(engine.functions)
        self._guards = np.ascontiguousarray(engine.placement.guard_words, np.int32)
        self._plan = self._make_plan()
        self._plan_address = ctypes.addressof(self._plan)

    @staticmethod
    def _resolve_arguments(arguments: np.ndarray, tile_base: int) -> np.ndarray:
        """Words of all calls: buffers lie in tile memory, whose address is fixed."""
        integers = arguments[:, 0] == IMMEDIATE
        if not (integers | (arguments[:, 0] == TILE_REGION)).all():
            raise DeviceFault("a schedule gives a kernel memory that is not a tile's")
        return np.where(integers, arguments[:, 1], arguments[:, 1] + tile_base).astype(np.int64)

    def _resolve_functions(self, bound: Mapping[str, BoundFunction]) -> tuple[np.ndarray, np.ndarray]:
        found = [bound[name] for name in self.schedule.functions]
        return np.array([f.address for f in found], np.uint64), np.array([f.call_address for f in found], np.uint64)

    def _make_plan(self) -> _Plan:
        s = self.schedule
        # Tables are used where they lie; the attributes above keep them alive.
        self._tables = [np.ascontiguousarray(a) for a in (s.operations, s.segments, s.phases, s.poison)]
        operations, segments, phases, poison = (a.ctypes.data for a in self._tables)
        return _Plan(
            operations, segments, self._words.ctypes.data, phases, len(s.phases), poison, len(s.poison),
            self._guards.ctypes.data, len(self._guards), self._bases.ctypes.data, self._functions.ctypes.data,
            self._callers.ctypes.data, self.engine.states.address, self.engine.states.stride,
        )  # fmt: skip

    def run(self, host_addresses: np.ndarray) -> None:
        """One dispatch; host_addresses: uint64 address of each host region. DeviceFault as in the event tier."""
        self._host[: len(host_addresses)] = host_addresses
        self.engine.states.reset_registers()
        if self._run(self._plan_address, self.threads, self._fault_address):
            raise DeviceFault(self._explain())

    def _explain(self) -> str:
        fault = self._fault
        if fault.kind == 3:
            return f"a kernel stored out of bounds: {self.engine.describe_guard(int(fault.operation))}"
        row = self.schedule.operations[fault.operation]
        if fault.kind == 2:
            core = int(row[CORE])
            name = self.schedule.functions[int(row[FUNCTION])]
            return f"{self.engine.states.tiles[core]}, kernel {name}: {self.engine.why_ended(core)}"
        target = self._place(int(row[DEST_REGION]), int(row[DEST]))
        region = int(row[SOURCE_REGION])
        if region >= FIRST_HOST_REGION:
            return (
                f"a DMA reads byte {fault.detail} of host region {region - FIRST_HOST_REGION} into {target}, which was "
                "never written. Write the buffer before the dispatch"
            )
        return f"a DMA reads {self._place(region, int(fault.detail))} into {target}, which nobody wrote"

    def _place(self, region: int, byte: int) -> str:
        if region >= FIRST_HOST_REGION:
            return f"byte {byte} of host region {region - FIRST_HOST_REGION}"
        for memory in self.engine.buffers.values():
            if memory.base <= byte < memory.base + memory.nbytes:
                return f"byte {byte - memory.base} of {memory}"
        return f"byte {byte} of tile memory"
