# SPDX-License-Identifier: Apache-2.0
"""The event tier: one configured device of the array, run process by process until nothing can go on.

Processes (cores, DMA channels, the sequence) are generators; the scheduler resumes them in the order in which they
became able to go on, so a run is deterministic and needs no threads. The grain is one BD execution or one kernel call.
Everything that silicon leaves undefined ends the dispatch with a `DeviceFault`; so does a deadlock, with its wait graph.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping

import numpy as np

from npu.device import DeviceFault
from npu.program import Channel, Core, DeviceProgram, DmaProgram, TileId, TileKind
from npu.twin.caller import Caller
from npu.twin.cascade import CascadeLink
from npu.twin.control_port import add_control_routes
from npu.twin.core_body import compile_body, walk
from npu.twin.cores import BoundFunction, CoreStates, PreparedCall
from npu.twin.dma import Port, TaskChannel, make_transfer, run_programs
from npu.twin.kernel_guard import CALL_SECONDS, explain
from npu.twin.memory import GUARD, HostSlice, Memory, Placement, TileMemory
from npu.twin.packets import PacketNetwork, PacketSink, PacketStream
from npu.twin.scalar_ops import View
from npu.twin.schedule import Recorder
from npu.twin.sequence import SequenceRun
from npu.twin.stream import LockState, Process, Sink, Stream
from npu.twin.wait_graph import explain_deadlock, unfinished_business

A_CORE = "a core"  # how the scalar operations begin, which do not know where they run
STEP_BUDGET = 4_000_000  # process steps without a byte crossing a shim: the array only turns in circles


class Engine:
    """One device of a session, configured afresh by `configure`."""

    def __init__(
        self,
        device: DeviceProgram,
        functions: Mapping[str, BoundFunction],
        placement: Placement,
        foreign: bool = False,
        watch: int = 0,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self.foreign = foreign  # a design of others: what it leaves behind is noted, not refused
        self.allow_unwritten = False  # a DMA may send tile memory that nobody wrote: noted, not refused
        self.notes: list[str] = []
        self.device = device
        self.functions = functions
        self.tiles = tiles = TileMemory(placement)
        self.placement = placement
        self.call_seconds = call_seconds  # how long a kernel call may last
        self.states = CoreStates(tuple(core.tile for core in device.cores), watch)
        self.buffers = {b.name: tiles.view(b, placement.offsets[b.name]) for b in device.buffers}
        self.views = {name: View.of(memory) for name, memory in self.buffers.items()}
        self.ready: deque[Process] = deque()
        self.locks: dict[str, LockState] = {}
        self.streams: dict[Channel, Stream | PacketStream] = {}
        self.sinks: dict[Channel, Sink | PacketSink] = {}
        self.cascades: list[CascadeLink] = []
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
        self.tiles.poison()
        for memory, content in self._initial:
            memory.data[: len(content)] = np.frombuffer(content, np.uint8)
            if recorder is not None:
                recorder.write(memory, 0, content)
        self._end_processes()
        self.transfers = 0
        self.calls = Counter()
        self.states.reset_registers()
        self.states.take_counters()
        self.locks = {lock.name: LockState(lock, self.ready) for lock in self.device.locks}
        self._connect()
        self._start_channels()
        for index, core in enumerate(self.device.cores):
            self._start_core(index, core)

    def _end_processes(self) -> None:
        """No core goes on, nor a kernel call of it that still waits for its cascade."""
        self.ready.clear()
        for process in self.processes:
            process.close()
        self.processes.clear()

    def _connect(self) -> None:
        self.streams, self.sinks = {}, {}
        self.cascades = [CascadeLink(source, dest, self.ready) for source, dest in self.device.cascades]
        packets = PacketNetwork(self.ready, self.recorder)
        for route in self.device.routes:
            if route.packet_id is not None:
                packets.add(route)
                continue
            stream = self.streams.get(route.source)
            if stream is None:
                stream = self.streams[route.source] = Stream(route.source, route.name or str(route.source), self.ready)
                stream.recorder = self.recorder
            for dest in route.dests:
                if dest in self.sinks:
                    raise DeviceFault(f"two routes end at {dest}: '{self.sinks[dest].stream.name}' and '{route.name}'")
                sink = self.sinks[dest] = Sink(dest, stream)
                stream.sinks.append(sink)
        add_control_routes(self, packets, self.device.control_routes)
        for channel in (*packets.streams, *packets.sinks):
            if channel in self.streams or channel in self.sinks:
                raise DeviceFault(
                    f"{channel} has a circuit and packets; a port of the stream switch is one or the other"
                )
        self.streams.update(packets.streams)
        self.sinks.update(packets.sinks)

    def _port(self, channel: Channel) -> Port:
        return Port(channel, self.streams.get(channel), self.sinks.get(channel))

    def _start_channels(self) -> None:
        queued: dict[Channel, list[DmaProgram]] = {}
        for program in self.device.dmas:
            queued.setdefault(program.channel, []).append(program)
        for channel, programs in queued.items():
            process = self._process(str(channel))
            work = []
            for program in programs:
                transfers = [
                    make_transfer(bd, self._tile_buffer(bd.buffer, channel), 0, self.locks, channel)
                    for bd in program.bds
                ]
                work.append((program, transfers))
                for transfer in transfers:
                    self._name_lock_users(process, transfer.acquire, transfer.release, transfer.acquire_equal)
            process.start(run_programs(self, process, self._port(channel), work))
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
        waits = any(core.tile in (link.source, link.dest) for link in self.cascades)
        body = compile_body(core, frozenset(self.views), waits)
        caller = Caller(self, index, core.tile)
        process.start(body(process, self, self.views, self.locks, caller.call, caller.store, caller.load, caller))
        self.ready.append(process)

    # ---- running -----------------------------------------------------------------------------

    def run_sequence(self, name: str, slices: list[HostSlice], regions: tuple[tuple[int, int], ...]) -> None:
        """Run one sequence to its end and the array to rest. DeviceFault on every other outcome."""
        run = SequenceRun(self, self.device.sequence(name), slices, regions)
        self.sequence_run = run
        run.process.start(run.body())
        self.ready.append(run.process)
        try:
            self._run_until_rest()
            if not run.finished:
                raise DeviceFault(explain_deadlock(self, run))
            problem = unfinished_business(self, run)
            if problem:
                raise DeviceFault(problem)
            self.check_guards()
        except DeviceFault:
            self._end_processes()
            raise

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
                except DeviceFault as fault:
                    said = str(fault)
                    if not said.startswith(A_CORE):
                        raise
                    raise DeviceFault(process.name + said.removeprefix(A_CORE)) from fault
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
        """DeviceFault; a note for a design of others, whose lock then counts on, as the hardware's does: a value above
        what the lock's field holds, or an element written while it is read, is still a fault of its own."""
        fault = DeviceFault(f"{process.name} releases {asked} elements of '{fifo}' and holds {held}")
        if not self.foreign:
            raise fault
        if str(fault) not in self.notes:
            self.notes.append(str(fault))

    def spinning(self, process: Process) -> None:
        raise DeviceFault(
            f"{process.name} loops on without ever waiting for a lock or a FIFO: the core never gives way"
        )

    # ---- checks and counts -------------------------------------------------------------------

    def why_ended(self, core: int) -> str:
        """Why a core's kernel did not return as it should."""
        return explain(self.states.state(core), self.buffers.values(), self.call_seconds)

    def check_guards(self, tile: TileId | None = None, context: str = "a kernel") -> None:
        """DeviceFault if a band beside a tile buffer has changed."""
        if tile is None and (word := self.tiles.changed_slack()) >= 0:
            raise DeviceFault(f"{context} stored out of bounds: {self.describe_guard(word)}")
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


def argument_memory(index: int, piece: HostSlice, region: int, base: int) -> Memory:
    """Argument `index` of a dispatch as memory of host region `region`, `base` bytes into it."""
    data = piece.buffer.data[piece.offset : piece.offset + piece.type.nbytes]
    return Memory(f"{index} (buffer '{piece.buffer.name}' + {piece.offset})", data, piece.type, region, base)
