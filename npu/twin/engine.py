# SPDX-License-Identifier: Apache-2.0
"""The event tier: one configured device of the array, run process by process until nothing can go on.

Processes (cores, DMA channels, the sequence) are generators; the scheduler resumes them in the order in which they
became able to go on, so a run is deterministic and needs no threads. The grain is one BD execution or one kernel call.
Everything that silicon leaves undefined ends the dispatch with a `DeviceFault`; so does a deadlock, with its wait graph.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from time import perf_counter_ns

import numpy as np

from npu.device import DeviceFault
from npu.program import Channel, Core, DeviceProgram, TileId, TileKind
from npu.twin.core_body import compile_body, walk
from npu.twin.cores import BoundFunction, CoreStates, PreparedCall
from npu.twin.dma import Port, TaskChannel, make_transfer, run_program
from npu.twin.memory import GUARD, POISON, HostSlice, Memory, Placement, TileMemory
from npu.twin.scalar_ops import View, load_element, store_element
from npu.twin.schedule import Recorder
from npu.twin.sequence import SequenceRun
from npu.twin.stream import LockState, Process, Sink, Stream
from npu.twin.wait_graph import explain_deadlock, unfinished_business

STEP_BUDGET = 4_000_000  # process steps without a byte crossing a shim: the array only turns in circles


class Engine:
    """One device of a session, configured afresh by `configure`."""

    def __init__(
        self, device: DeviceProgram, functions: Mapping[str, BoundFunction], tiles: TileMemory, placement: Placement
    ) -> None:
        self.device = device
        self.functions = functions
        self.tiles = tiles
        self.placement = placement
        self.states = CoreStates(tuple(core.tile for core in device.cores))
        self.buffers = {b.name: tiles.view(b, placement.offsets[b.name]) for b in device.buffers}
        self.views = {name: View.of(memory) for name, memory in self.buffers.items()}
        self.ready: deque[Process] = deque()
        self.locks: dict[str, LockState] = {}
        self.streams: dict[Channel, Stream] = {}
        self.sinks: dict[Channel, Sink] = {}
        self.processes: list[Process] = []
        self.task_channels: dict[Channel, TaskChannel] = {}
        self.transfers = 0
        self.calls: Counter[int] = Counter()
        self.recorder: Recorder | None = None
        self._prepared: list[dict[tuple[object, ...], PreparedCall]] = [{} for _ in device.cores]
        self.sequence_run: SequenceRun | None = None
        self._initial = [(self.buffers[b.name], b.initial) for b in device.buffers if b.initial is not None]

    # ---- configuration -----------------------------------------------------------------------

    def configure(self, recorder: Recorder | None = None) -> None:
        """Poison memory, set locks to their initial values, restart cores and channels; registers are reset."""
        self.recorder = recorder
        self.tiles.words.fill(POISON)
        self.tiles.words[self.placement.guard_words] = GUARD
        for memory, content in self._initial:
            memory.data[: len(content)] = np.frombuffer(content, np.uint8)
            if recorder is not None:
                recorder.write(memory, 0, content)
        self.ready.clear()
        self.processes.clear()
        self.transfers = 0
        self.calls = Counter()
        self.states.reset_registers()
        self.states.take_counters()
        self.locks = {lock.name: LockState(lock, self.ready) for lock in self.device.locks}
        self._connect()
        self._start_channels()
        for index, core in enumerate(self.device.cores):
            self._start_core(index, core)

    def _connect(self) -> None:
        self.streams, self.sinks = {}, {}
        for route in self.device.routes:
            if route.packet_id is not None:
                raise DeviceFault(
                    f"route '{route.name}' is packet-switched; the twin runs circuit-switched routes only"
                )
            stream = self.streams.get(route.source)
            if stream is None:
                stream = self.streams[route.source] = Stream(route.source, route.name or str(route.source), self.ready)
                stream.recorder = self.recorder
            for dest in route.dests:
                if dest in self.sinks:
                    raise DeviceFault(f"two routes end at {dest}: '{self.sinks[dest].stream.name}' and '{route.name}'")
                sink = self.sinks[dest] = Sink(dest, stream)
                stream.sinks.append(sink)

    def _port(self, channel: Channel) -> Port:
        return Port(channel, self.streams.get(channel), self.sinks.get(channel))

    def _start_channels(self) -> None:
        for program in self.device.dmas:
            process = self._process(str(program.channel))
            transfers = [
                make_transfer(bd, self._tile_buffer(bd.buffer, program.channel), 0, self.locks, program.channel)
                for bd in program.bds
            ]
            for transfer in transfers:
                self._name_lock_users(process, transfer.acquire, transfer.release, transfer.acquire_equal)
            process.start(run_program(self, process, self._port(program.channel), program, transfers))
            self.ready.append(process)
        self.task_channels = {}

    def _tile_buffer(self, name: str | None, channel: Channel) -> Memory:
        if name is None or name not in self.buffers:
            raise DeviceFault(
                f"a BD of {channel} names buffer {name!r}, which device @{self.device.name} does not have"
            )
        return self.buffers[name]

    def _name_lock_users(
        self, process: Process, acquire: LockState | None, release: LockState | None, equal: bool
    ) -> None:
        if acquire is not None:
            acquire.acquirers.append(process.name)
            acquire.equal |= equal
        if release is not None:
            release.releasers.append(process.name)

    def _process(self, name: str) -> Process:
        process = Process(name)
        self.processes.append(process)
        return process

    def _start_core(self, index: int, core: Core) -> None:
        process = self._process(str(core.tile))
        for end in core.ends:
            if end.acquire_lock:
                self.locks[end.acquire_lock].acquirers.append(process.name)
            if end.release_lock:
                self.locks[end.release_lock].releasers.append(process.name)
        for statement in walk(core.body):
            use = getattr(statement, "use", None)
            if use is not None:
                lock = self.locks[use.lock]
                acquire, release = (lock, None) if statement.acquire else (None, lock)
                self._name_lock_users(process, acquire, release, use.equal)
        body = compile_body(core, frozenset(self.views))
        caller = _Caller(self, index, core.tile)
        process.start(body(process, self, self.views, self.locks, caller.call, caller.store, caller.load))
        self.ready.append(process)

    # ---- running -----------------------------------------------------------------------------

    def run_sequence(self, name: str, slices: list[HostSlice], regions: tuple[tuple[int, int], ...]) -> None:
        """Run one sequence to its end and the array to rest. DeviceFault on every other outcome."""
        run = SequenceRun(self, self.device.sequence(name), slices, regions)
        self.sequence_run = run
        run.process.start(run.body())
        self.ready.append(run.process)
        self._run_until_rest()
        if not run.finished:
            raise DeviceFault(explain_deadlock(self, run))
        problem = unfinished_business(self, run)
        if problem:
            raise DeviceFault(problem)
        self.check_guards()

    def task_channel(self, channel: Channel) -> TaskChannel:
        """The queue of a channel that takes tasks; made on first use, kept until the next configure."""
        if channel not in self.task_channels:
            if any(program.channel == channel for program in self.device.dmas):
                raise DeviceFault(f"{channel} runs a program of the array and takes no tasks")
            made = self.task_channels[channel] = TaskChannel(self, self._port(channel))
            self.processes.append(made.process)
            made.process.start(made.serve(lambda task, index: self.sequence_run.transfer(task, index)))
            self.ready.append(made.process)
        return self.task_channels[channel]

    def _run_until_rest(self) -> None:
        ready = self.ready
        pop = ready.popleft
        budget, crossed = STEP_BUDGET, sum(self.shim_bytes())
        while ready:
            for _ in range(min(len(ready), 4096)):
                process = pop()
                try:
                    process.resume()
                except StopIteration:
                    process.wait = ("ended",)
                budget -= 1
            if budget < 0:
                now = sum(self.shim_bytes())
                if now == crossed:
                    raise DeviceFault(
                        f"@{self.device.name} took {STEP_BUDGET} steps and moved no byte through a shim: processes hand "
                        f"locks to each other in a circle, among them {', '.join(p.name for p in list(ready)[:6])}"
                    )
                budget, crossed = STEP_BUDGET, now

    def over_release(self, process: Process, fifo: str, asked: int, held: int) -> None:
        raise DeviceFault(f"{process.name} releases {asked} elements of '{fifo}' and holds {held}")

    def spinning(self, process: Process) -> None:
        raise DeviceFault(
            f"{process.name} loops on without ever waiting for a lock or a FIFO: the core never gives way"
        )

    # ---- checks and counts -------------------------------------------------------------------

    def check_guards(self, tile: TileId | None = None, context: str = "a kernel") -> None:
        """DeviceFault if a band beside a tile buffer has changed."""
        words = self.placement.guard_words if tile is None else self.placement.tile_guards.get(tile)
        if words is None:
            return
        intact = self.tiles.words[words] == GUARD
        if not intact.all():
            raise DeviceFault(f"{context} stored out of bounds: {self.describe_guard(int(words[np.argmin(intact)]))}")

    def describe_guard(self, word: int) -> str:
        """Which buffer a guard word lies beside."""
        byte = 4 * word
        name = min(self.buffers, key=lambda n: self._distance(self.buffers[n], byte))
        memory = self.buffers[name]
        side = f"{memory.base - byte} bytes before" if byte < memory.base else f"{byte - memory.base} bytes after"
        return f"the guard word {side} the start of {memory} ({memory.nbytes} bytes) has changed"

    @staticmethod
    def _distance(memory: Memory, byte: int) -> int:
        return memory.base - byte if byte < memory.base else max(0, byte - memory.base - memory.nbytes)

    def shim_bytes(self) -> tuple[int, int]:
        """Bytes (read from, written to) DDR since configuration."""
        read = sum(s.moved for c, s in self.streams.items() if c.tile.kind is TileKind.SHIM)
        written = sum(s.moved for c, s in self.sinks.items() if c.tile.kind is TileKind.SHIM)
        return read, written

    def channel_bytes(self) -> dict[Channel, int]:
        """Bytes through each connected channel since configuration."""
        moved: dict[Channel, int] = {c: s.moved for c, s in self.streams.items()}
        moved.update({c: s.moved for c, s in self.sinks.items()})
        return moved

    def channels(self) -> Iterator[Channel]:
        yield from self.streams
        yield from self.sinks


class _Caller:
    """What a core's body calls: kernels, and scalar loads and stores."""

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
        engine = self.engine
        key = (function, arguments)
        prepared = self.prepared.get(key)
        if prepared is None:
            if function not in engine.functions:
                raise DeviceFault(f"{self.tile} calls @{function}, which @{engine.device.name} does not declare")
            prepared = PreparedCall(engine.functions[function], arguments, self.tile)
            self.prepared[key] = prepared
        begin = perf_counter_ns()
        failed = prepared.call(self.state, prepared.address, prepared.words, prepared.count)
        duration = perf_counter_ns() - begin
        if failed:
            raise DeviceFault(f"{self.tile}, kernel {function}: {engine.states.trap_message(self.core)}")
        if self.guards is not None and not (self.words[self.guards] == GUARD).all():
            engine.check_guards(self.tile, f"kernel {function} on {self.tile}")
        for memory in prepared.memories:
            if memory.tile != self.tile:
                engine.check_guards(memory.tile, f"kernel {function} on {self.tile}")
        engine.calls[self.core] += 1
        if engine.recorder is not None:
            engine.recorder.call(self.core, function, prepared, duration)

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


def argument_memory(index: int, piece: HostSlice, region: int, base: int) -> Memory:
    """Argument `index` of a dispatch as memory of host region `region`, `base` bytes into it."""
    data = piece.buffer.data[piece.offset : piece.offset + piece.type.nbytes]
    return Memory(f"{index} (buffer '{piece.buffer.name}' + {piece.offset})", data, piece.type, region, base)
