# SPDX-License-Identifier: Apache-2.0
"""TwinDevice: the digital twin as a `npu.device.Device`. It runs the artifact that `aiecc` gets, and no NPU is touched.

A dispatch is one configure with the runs inside it. A sequence of the entry device that runs other devices is a list
of dispatches; a sequence with tasks of its own is one dispatch, configured afresh each time. The first run of a
dispatch goes through the event tier, which checks everything and records a schedule; later runs replay it. A design
whose control flow depends on data runs in the event tier each time, and its records say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from npu.artifact import Artifact
from npu.device import DeviceFault
from npu.program import DeviceProgram, Program, Run
from npu.twin.core_body import data_dependence, parameter_buffers
from npu.twin.cores import BoundFunction, bind_functions
from npu.twin.engine import Engine
from npu.twin.hostcc import KernelLibrary, compile_kernel
from npu.twin.kept_memory import MemtileContents
from npu.twin.kernel_guard import CALL_SECONDS, guard_kernels
from npu.twin.log import DesignTotals, Log, TwinDispatch
from npu.twin.memory import HostBuffer, HostSlice, Placement, Regions
from npu.twin.packets import unrecordable
from npu.twin.replay import Replay, load_replayer
from npu.twin.schedule import Recorder, Schedule, build_schedule
from npu.twin.schedule_store import ScheduleStore, device_digest, schedule_key
from npu.twin.sequence import masked_write

Tier = Literal["auto", "event", "replay"]


@dataclass
class _Design:
    """One device of the module, made ready when it is first dispatched."""

    program: DeviceProgram
    functions: dict[str, BoundFunction]
    engine: Engine
    digest: str
    depends_on_data: str | None


@dataclass
class _Dispatch:
    """One configure with its runs, on fixed slices."""

    design: str
    sequences: list[str]
    slices: list[list[HostSlice]]
    arguments: list[tuple[int, int, int]]  # of the entry: (argument, offset_bytes, nbytes)
    regions: Regions | None = None
    addresses: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    key: str = ""
    replay: Replay | None = None

    @property
    def title(self) -> str:
        return "+".join(self.sequences)


class TwinSession:
    """One artifact with its buffers. See `npu.device.Session` for the methods that it shares with the hardware."""

    def __init__(
        self,
        program: Program,
        entry_device: str,
        libraries: Mapping[str, KernelLibrary],
        cache: Path,
        tier: Tier,
        threads: int,
        foreign: bool = False,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self._call_seconds = call_seconds
        self._watch = guard_kernels(cache / "kernels", call_seconds)
        self._program = program
        self._entry = program.device(entry_device)
        self._libraries = libraries
        self._cache = cache
        self._tier = tier
        self._threads = threads
        self._foreign = foreign
        self.allow_unwritten = False  # set before the first run: see Engine.allow_unwritten
        # A schedule knows nothing of what was there before.
        self._memtiles = MemtileContents() if foreign and tier == "event" else None
        self._store = ScheduleStore(cache / "schedules")
        self._placements = {device.name: Placement.of(device) for device in program.devices}
        self._designs: dict[str, _Design] = {}
        self._replays: dict[str, Replay] = {}
        self._buffers: dict[str, HostBuffer] = {}
        self._bindings: dict[str, dict[int, str]] = {}
        self._prepared: dict[str, list[_Dispatch]] = {}
        self._log = Log()
        self.host_bytes_written = 0

    # ---- buffers -----------------------------------------------------------------------------

    def bind(self, entry: str, buffers: dict[int, str]) -> None:
        """Say which named buffer is argument i of sequence `entry`."""
        sequence = self._entry.sequence(entry)
        wrong = sorted(set(buffers) ^ set(range(len(sequence.arguments))))
        if wrong:
            raise DeviceFault(f"@{entry} takes arguments 0..{len(sequence.arguments) - 1}; binding differs at {wrong}")
        if self._bindings.get(entry) != buffers:
            self._bindings[entry] = dict(buffers)
            self._prepared.pop(entry, None)

    def allocate(self, name: str, nbytes: int) -> None:
        """Make a page-aligned buffer of poison."""
        self._buffers[name] = HostBuffer(name, nbytes)
        self._prepared.clear()

    def _buffer(self, name: str) -> HostBuffer:
        if name not in self._buffers:
            raise DeviceFault(f"no host buffer '{name}'; allocated are {sorted(self._buffers)}")
        return self._buffers[name]

    def _range(self, name: str, offset: int, nbytes: int) -> np.ndarray:
        buffer = self._buffer(name)
        if offset < 0 or offset + nbytes > buffer.nbytes:
            raise DeviceFault(
                f"bytes {offset}..{offset + nbytes} of host buffer '{name}' were asked for; it has {buffer.nbytes}"
            )
        return buffer.data[offset : offset + nbytes]

    def write(self, name: str, offset_bytes: int, data: np.ndarray) -> None:
        """Copy `data` into the buffer and make it visible to the device."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._range(name, offset_bytes, raw.nbytes)[:] = raw
        self.host_bytes_written += raw.nbytes

    def read(self, name: str, offset_bytes: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Copy out of the buffer."""
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        return self._range(name, offset_bytes, nbytes).copy().view(kind).reshape(shape)

    def map(self, name: str) -> np.ndarray:
        """A writable uint8 view of the whole buffer. The device must not see it again before `sync(name)`."""
        buffer = self._buffer(name)
        buffer.mapped = True
        return buffer.data

    def sync(self, name: str) -> None:
        """Make what was written through `map` visible to the device; counted as if all of it was written."""
        buffer = self._buffer(name)
        if buffer.mapped:
            self.host_bytes_written += buffer.nbytes
        buffer.mapped = False

    # ---- running -----------------------------------------------------------------------------

    def run(self, entry: str) -> None:
        """Run one sequence of the entry device; DeviceFault on anything but completion."""
        dispatches = self._prepared.get(entry)
        if dispatches is None:
            dispatches = self._prepared[entry] = self._prepare(entry)
        for number, dispatch in enumerate(dispatches):
            try:
                self._dispatch(entry, dispatch)
            except DeviceFault as fault:
                if dispatch.design in self._designs:  # what the faulty dispatch counted belongs to no later one
                    self._designs[dispatch.design].engine.states.take_counters()
                place = f"@{entry}, dispatch {number} of {len(dispatches)}, @{dispatch.design}:{dispatch.title}"
                raise DeviceFault(f"{place}: {fault}") from fault

    def _prepare(self, entry: str) -> list[_Dispatch]:
        sequence = self._entry.sequence(entry)
        binding = self._bindings.get(entry)
        if binding is None:
            raise DeviceFault(f"@{entry} is not bound; call bind('{entry}', {{argument: buffer}}) first")
        slices = [HostSlice(self._buffer(binding[i]), 0, a) for i, a in enumerate(sequence.arguments)]
        roots = [(i, 0, a.nbytes) for i, a in enumerate(sequence.arguments)]
        dispatches: list[_Dispatch] = []
        self._flatten(self._entry.name, entry, slices, roots, True, dispatches)
        for dispatch in dispatches:
            every = [piece for group in dispatch.slices for piece in group]
            dispatch.regions = Regions.of(every)
            dispatch.addresses = np.array(dispatch.regions.addresses, np.uint64)
        return dispatches

    def _flatten(
        self,
        device: str,
        name: str,
        slices: list[HostSlice],
        roots: list[tuple[int, int, int]],
        configure: bool,
        into: list[_Dispatch],
    ) -> None:
        sequence = self._program.device(device).sequence(name)
        runs = [i for i in sequence.instructions if isinstance(i, Run)]
        if not runs:
            if configure or not into or into[-1].design != device:
                into.append(_Dispatch(device, [], [], []))
            into[-1].sequences.append(name)
            into[-1].slices.append(slices)
            into[-1].arguments.extend(roots)
            return
        if len(runs) != len(sequence.instructions):
            raise DeviceFault(f"@{device}:{name} mixes runs of other devices with tasks of its own; split it")
        for run in runs:
            inner, inner_roots = [], []
            for piece in run.arguments:
                outer, (root, base, _) = slices[piece.argument], roots[piece.argument]
                inside = HostSlice(outer.buffer, outer.offset + piece.offset_bytes, piece.type)
                if piece.offset_bytes + piece.type.nbytes > outer.type.nbytes:
                    raise DeviceFault(
                        f"@{device}:{name} gives @{run.device}:{run.sequence} bytes {piece.offset_bytes}.."
                        f"{piece.offset_bytes + piece.type.nbytes} of argument {piece.argument} ({outer.type}, "
                        f"{outer.type.nbytes} bytes): argument slice out of range"
                    )
                inner.append(inside)
                inner_roots.append((root, base + piece.offset_bytes, piece.type.nbytes))
            self._flatten(run.device, run.sequence, inner, inner_roots, run.reconfigure, into)

    def _design(self, name: str) -> _Design:
        if name not in self._designs:
            program = self._program.device(name)
            functions = bind_functions(program, self._libraries)
            engine = Engine(program, functions, self._placements[name], self._foreign, self._watch, self._call_seconds)
            engine.allow_unwritten = self.allow_unwritten
            parameters = parameter_buffers(program)
            reasons = [reason for reason in (unrecordable(program), masked_write(program)) if reason]
            reasons += [r for core in program.cores if (r := data_dependence(core, parameters))]
            self._designs[name] = _Design(
                program, functions, engine, device_digest(program), reasons[0] if reasons else None
            )
        return self._designs[name]

    def _dispatch(self, entry: str, dispatch: _Dispatch) -> None:
        design = self._design(dispatch.design)
        if self._tier == "replay" and design.depends_on_data:
            raise DeviceFault(f"tier 'replay' was asked for, but {design.depends_on_data}; use tier 'auto' or 'event'")
        note = design.depends_on_data or ""
        replay = None if self._tier == "event" or note else self._find_replay(dispatch, design)
        if replay is not None:
            for group in dispatch.slices:
                for index, piece in enumerate(group):
                    if piece.buffer.mapped:
                        piece.check(index)
            replay.run(dispatch.addresses)
            schedule = replay.schedule
            calls, ddr, channels = schedule.kernel_calls, schedule.ddr_bytes, schedule.channel_bytes
        else:
            calls, ddr, channels = self._event(dispatch, design, record=self._tier != "event" and not note)
        states = design.engine.states
        self._log.add(
            TwinDispatch(
                entry,
                dispatch.design,
                dispatch.title,
                tuple(dispatch.arguments),
                "event" if replay is None else "replay",
                *ddr,
                states.tiles,
                calls,
                states.take_counters()[: len(states.tiles)],
                channels,
                f"event tier only: {note}" if note else "",
            )
        )

    def _find_replay(self, dispatch: _Dispatch, design: _Design) -> Replay | None:
        if dispatch.replay is not None:
            return dispatch.replay
        if not dispatch.key:
            keys = tuple(self._split(dispatch))
            dispatch.key = schedule_key(design.digest, tuple(dispatch.sequences), keys, design.functions)
        found = self._replays.get(dispatch.key)
        if found is None:
            schedule = self._store.load(dispatch.key)
            if schedule is None:
                return None
            for group in dispatch.slices:
                for index, piece in enumerate(group):
                    piece.check(index)
            found = self._bind_schedule(dispatch.key, schedule, design)
        dispatch.replay = found
        return found

    def _bind_schedule(self, key: str, schedule: Schedule, design: _Design) -> Replay:
        library = load_replayer(self._cache / "kernels")
        replay = self._replays[key] = Replay(schedule, design.engine, library, self._threads)
        return replay

    @staticmethod
    def _split(dispatch: _Dispatch) -> list[tuple[tuple[int, int], ...]]:
        """Region keys per sequence of the dispatch."""
        keys, start = [], 0
        for group in dispatch.slices:
            keys.append(dispatch.regions.key[start : start + len(group)])
            start += len(group)
        return keys

    def _event(
        self, dispatch: _Dispatch, design: _Design, record: bool
    ) -> tuple[tuple[int, ...], tuple[int, int], tuple[tuple[str, int], ...]]:
        engine = design.engine
        recorder = Recorder() if record else None
        engine.configure(recorder)
        if self._memtiles is not None:
            self._memtiles.restore(engine)
        for name, slices, key in zip(dispatch.sequences, dispatch.slices, self._split(dispatch), strict=True):
            engine.run_sequence(name, slices, key)
        if self._memtiles is not None:
            self._memtiles.save(engine)
        for piece in {id(p.buffer): p for group in dispatch.slices for p in group}.values():
            piece.buffer.check_guards()
        calls = tuple(engine.calls[i] for i in range(len(engine.states.tiles)))
        ddr = engine.shim_bytes()
        channels = tuple((str(channel), moved) for channel, moved in engine.channel_bytes().items())
        if recorder is not None:
            schedule = build_schedule(recorder, calls, ddr, channels)
            self._store.save(dispatch.key, schedule)
            self._bind_schedule(dispatch.key, schedule, design)
        return calls, ddr, channels

    # ---- log ---------------------------------------------------------------------------------

    def log(self) -> Iterable[TwinDispatch]:
        """What ran so far, in order."""
        return self._log.records()

    def notes(self) -> list[str]:
        """What designs of others ask for without effect (trace) or left behind (tokens, bytes in streams); our own may
        do neither."""
        return [
            note
            for name, design in self._designs.items()
            for note in (*(f"@{name}: {note}" for note in design.program.notes), *design.engine.notes)
        ]

    def totals(self) -> dict[str, DesignTotals]:
        """Sums per design over everything that ran."""
        return self._log.totals()

    def clear_log(self) -> None:
        """Start a new log; buffers and schedules stay."""
        self._log.clear()
        self.host_bytes_written = 0


class TwinDevice:
    """The digital twin.

    cache: directory for compiled kernels and schedules. tier: "auto" replays where it can, "event" checks everything
    each time, "replay" refuses designs that cannot be replayed (a first run still goes through the event tier, which
    records). threads: that share a replay; results do not depend on it. foreign: for designs of others, which may end
    with tokens, stream bytes or FIFO elements left over; `TwinSession.notes` lists them. call_seconds: how long one
    kernel call may last before it is ended as a fault; the last session's counts in a process.
    """

    name = "twin"

    def __init__(
        self,
        cache: Path,
        *,
        tier: Tier = "auto",
        threads: int = 2,
        foreign: bool = False,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        if tier not in ("auto", "event", "replay"):
            raise ValueError(f"tier {tier!r}; expected auto, event or replay")
        self.cache = cache
        self.tier: Tier = tier
        self.threads = threads
        self.foreign = foreign
        self.call_seconds = call_seconds

    def open(self, artifact: Artifact) -> TwinSession:
        """Load the text, compile its kernels (or find them), and make a session."""
        from npu.mlir.load import load_program

        program = load_program(artifact.text, cache=self.cache)
        libraries = {
            obj.name: KernelLibrary(
                compile_kernel(obj.source, {k: v or None for k, v in obj.defines}, cache=self.cache / "kernels")
            )
            for obj in artifact.objects
        }
        return self.open_program(program, artifact.entry_device, libraries)

    def open_program(self, program: Program, entry_device: str, libraries: Mapping[str, KernelLibrary]) -> TwinSession:
        """A session of a Program that is at hand, with libraries by object name."""
        return TwinSession(
            program, entry_device, libraries, self.cache, self.tier, self.threads, self.foreign, self.call_seconds
        )
