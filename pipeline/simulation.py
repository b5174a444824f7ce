# SPDX-License-Identifier: Apache-2.0
"""One run of a design that others wrote, on the twin: arguments in, values, counts and resources out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from npu.array import array_of
from npu.legality import Violation, check
from npu.legality.access_patterns import extent
from npu.program import ConfigureTask, DeviceProgram, MemRef, Program, Run, TileId, TileKind
from npu.program import Sequence as RuntimeSequence
from npu.twin.cascade import connect_by_default
from npu.twin.cores import COUNTERS
from npu.twin.device import TwinDevice
from npu.twin.hostcc import KernelLibrary
from npu.twin.kernel_guard import CALL_SECONDS
from npu.twin.linking import link
from refusal import Refusal

NUMPY = {
    "i1": "uint8", "i8": "int8", "ui8": "uint8", "i16": "int16", "i32": "int32", "ui32": "uint32", "index": "int32",
    "i64": "int64", "f32": "float32", "f16": "float16", "bf16": "uint16",
    # Blocks of significands and an exponent: their bytes, a last dimension more.
    "v8bfp16ebs8": "uint8", "v16bfp16ebs16": "uint8", "i72": "uint8", "i136": "uint8",
}  # fmt: skip


_FORMS = {
    "bf16": ", as uint16 bit patterns or as float32 values",
    "v8bfp16ebs8": ", as uint8: blocks of an exponent and 8 significands",
    "v16bfp16ebs16": ", as uint8: blocks of an exponent and 16 significands",
}


@dataclass(frozen=True)
class TileUse:
    """What one tile uses of its memory, locks and BDs, and how much of each there is."""

    tile: TileId
    memory_bytes: int
    memory_limit: int
    locks: int
    lock_limit: int
    bds: int
    bd_limit: int

    def __str__(self) -> str:
        memory = f"{self.memory_bytes} of {self.memory_limit} bytes, " if self.memory_limit else ""
        return f"{self.tile}: {memory}{self.locks} of {self.lock_limit} locks, {self.bds} of {self.bd_limit} BDs"


@dataclass(frozen=True)
class CoreCount:
    """What one core did: kernel calls, and the counters of the emulation headers by name."""

    tile: tuple[int, int]
    calls: int
    counters: dict[str, int]


@dataclass(frozen=True)
class Outcome:
    """A completed run. outputs: by argument. DDR bytes crossed the shims."""

    outputs: dict[int, np.ndarray]
    cores: tuple[CoreCount, ...]
    ddr_read_bytes: int
    ddr_write_bytes: int
    notes: tuple[str, ...]


def choose(program: Program, device: str | None, sequence: str | None) -> tuple[DeviceProgram, RuntimeSequence]:
    """The device and sequence that are named, or the only ones there are; a device that runs others goes first."""
    found = [d for d in program.devices if device in (None, d.name) and d.sequences]
    runners = [d for d in found if any(isinstance(i, Run) for s in d.sequences for i in s.instructions)]
    found = runners if device is None and runners else found
    if len(found) != 1:
        names = ", ".join(f"@{d.name}" for d in program.devices if d.sequences)
        raise Refusal(
            f"{'no device @' + device if device else 'no choice of device'}",
            expected=f"one of {names}",
            where="the design",
            next_step="name one with --device",
        )
    chosen = [s for s in found[0].sequences if sequence in (None, s.name)]
    if len(chosen) != 1:
        names = ", ".join(f"@{s.name}" for s in found[0].sequences)
        raise Refusal(
            f"{'no sequence @' + sequence if sequence else 'no choice of sequence'}",
            expected=f"one of {names}",
            where=f"device @{found[0].name}",
            next_step="name one with --sequence",
        )
    return found[0], chosen[0]


def directions(program: Program, sequence: RuntimeSequence) -> list[tuple[bool, bool]]:
    """Per argument: whether a transfer reads it, and whether one writes it; runs are followed."""
    reads, writes = [False] * len(sequence.arguments), [False] * len(sequence.arguments)
    for instruction in sequence.instructions:
        if isinstance(instruction, ConfigureTask):
            for bd in instruction.bds:
                if bd.argument is not None:
                    (writes if instruction.channel.direction == "S2MM" else reads)[bd.argument] = True
        elif isinstance(instruction, Run):
            inner = directions(program, program.device(instruction.device).sequence(instruction.sequence))
            for piece, (read, write) in zip(instruction.arguments, inner, strict=True):
                reads[piece.argument] |= read
                writes[piece.argument] |= write
    return list(zip(reads, writes, strict=True))


def widened(program: Program) -> tuple[Program, list[str]]:
    """The program with arguments as large as what its transfers reach, and what was widened.

    mlir-aie checks no bounds of an argument, and some designs declare one tile of a larger array: the array decides there.
    """
    notes: list[str] = []
    devices = []
    for device in program.devices:
        sequences = []
        for sequence in device.sequences:
            arguments = list(sequence.arguments)
            for index, nbytes in _reach(sequence).items():
                declared = arguments[index]
                if nbytes > declared.nbytes:
                    arguments[index] = MemRef((-(-nbytes // declared.element_bytes),), declared.dtype)
                    notes.append(
                        f"@{device.name}:{sequence.name}, argument {index}: declared as {declared} of {declared.nbytes} bytes, and "
                        f"transfers reach {nbytes}: taken as {arguments[index]}"
                    )
            sequences.append(replace(sequence, arguments=tuple(arguments)))
        devices.append(replace(device, sequences=tuple(sequences)))
    return (replace(program, devices=tuple(devices)) if notes else program), notes


def _reach(sequence: RuntimeSequence) -> dict[int, int]:
    """Argument -> one past the last byte that a transfer touches."""
    reach: dict[int, int] = {}
    for task in sequence.instructions:
        for bd in task.bds if isinstance(task, ConfigureTask) else ():
            if bd.argument is not None and bd.argument < len(sequence.arguments):
                end = (bd.offset + extent(bd, 1 + task.repeat_count)) * bd.element_bytes
                reach[bd.argument] = max(reach.get(bd.argument, 0), end)
    return reach


def to_argument(array: np.ndarray, declared: MemRef, where: str) -> tuple[np.ndarray, str]:
    """(the argument's bytes, how they were taken). float32 for a bf16 argument is rounded to nearest even.

    Raises:
        Refusal: another number of bytes than the argument has.
    """
    raw = np.ascontiguousarray(array).reshape(-1)
    if declared.dtype == "bf16" and raw.dtype == np.float32 and raw.size == declared.elements:
        bits = raw.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return np.where(np.isnan(raw), 0x7FC0, rounded).astype(np.uint16), "float32 rounded to bf16"
    if raw.nbytes != declared.nbytes:
        raise Refusal(
            f"{raw.size} elements of {raw.dtype}, {raw.nbytes} bytes",
            expected=f"{declared}: {declared.nbytes} bytes" + _FORMS.get(declared.dtype, ""),
            where=where,
            next_step="give an array of that size and type",
        )
    how = "" if raw.dtype == np.dtype(NUMPY[declared.dtype]) else f"bytes of {raw.dtype} as {declared.dtype}"
    return raw.view(np.uint8), how


def from_argument(raw: np.ndarray, declared: MemRef, dtype: str | None, shape: tuple[int, ...] | None) -> np.ndarray:
    """An output's bytes as an array. bf16 becomes float32 values; `dtype` names another view ("bf16", numpy names)."""
    kind = dtype or declared.dtype
    if kind == "bf16":
        values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        try:
            values = raw.view(np.dtype(NUMPY.get(kind, kind)))
        except (TypeError, ValueError) as error:
            raise Refusal(f"dtype {kind}", expected="bf16 or a NumPy type that divides the output's bytes") from error
    own = declared.shape if declared.elements == values.size else (*declared.shape, declared.element_bytes)
    wanted = shape if shape is not None else (own if dtype is None else (-1,))
    try:
        return values.reshape(wanted)
    except ValueError as error:
        raise Refusal(f"shape {wanted}", expected=f"a shape of {values.size} elements", where="--shape") from error


def resources(device: DeviceProgram) -> list[TileUse]:
    """Every tile that uses anything. BDs of tasks count as many as are configured at once at most by their ids."""
    array = array_of(device.target)
    uses = []
    tiles = sorted({*device.tiles, *(b.tile for b in device.buffers), *(lock.tile for lock in device.locks)})
    for tile in tiles:
        limits = array.limits(tile)
        stack = sum(core.stack_bytes for core in device.cores if core.tile == tile)
        memory = stack + sum(b.type.nbytes for b in device.buffers if b.tile == tile)
        locks = sum(lock.tile == tile for lock in device.locks)
        static = sum(len(dma.bds) for dma in device.dmas if dma.channel.tile == tile)
        bds = static + max((_live_bds(sequence, tile) for sequence in device.sequences), default=0)
        if memory or locks or bds:
            limit = 0 if tile.kind is TileKind.SHIM else limits.data_memory_bytes
            uses.append(TileUse(tile, memory, limit, locks, limits.locks, bds, limits.bds))
    return uses


def _live_bds(sequence: RuntimeSequence, tile: TileId) -> int:
    """The most BDs of a tile that tasks of a sequence hold at one time; a fixed id counts once."""
    live: dict[int, tuple[tuple[object, ...], ...]] = {}
    most = 0
    for instruction in sequence.instructions:
        if isinstance(instruction, ConfigureTask):
            if instruction.channel.tile == tile:
                live[instruction.task] = tuple(
                    ("id", bd.bd_id) if bd.bd_id is not None else (instruction.task, n)
                    for n, bd in enumerate(instruction.bds)
                )
                most = max(most, len({bd for bds in live.values() for bd in bds}))
        elif type(instruction).__name__ in ("AwaitTask", "FreeTask"):
            live.pop(instruction.task, None)
    return most


def findings(program: Program) -> list[Violation]:
    """What legality says; house rules of this pack are left out, for they bind nobody else."""
    return [violation for violation in check(program) if violation.severity != "house rule"]


def simulate(
    program: Program,
    device: DeviceProgram,
    sequence: RuntimeSequence,
    libraries: Mapping[str, KernelLibrary],
    inputs: Mapping[int, np.ndarray],
    outputs: Sequence[int],
    cache: Path,
    call_seconds: float = CALL_SECONDS,
    allow_unwritten: bool = False,
) -> Outcome:
    """Run one sequence in the event tier, which checks everything. call_seconds: how long one kernel call may last.
    allow_unwritten: a DMA may send words of a tile that nobody wrote; they arrive as poison and are noted.

    Raises:
        DeviceFault: a deadlock (with its wait graph), or anything that silicon leaves undefined.
    """
    linked = connect_by_default(link(program, libraries), libraries)
    session = TwinDevice(cache, tier="event", foreign=True, call_seconds=call_seconds).open_program(
        linked, device.name, libraries
    )
    session.allow_unwritten = allow_unwritten
    names = {index: f"argument {index}" for index in range(len(sequence.arguments))}
    session.bind(sequence.name, names)
    for index, declared in enumerate(sequence.arguments):
        session.allocate(names[index], declared.nbytes)
        if index in inputs:
            session.write(names[index], 0, inputs[index])
    session.run(sequence.name)
    cores, notes, read, written = [], set(), 0, 0
    for totals in session.totals().values():
        read, written = read + totals.ddr_read_bytes, written + totals.ddr_write_bytes
        notes |= totals.notes
        for place in sorted(set(totals.kernel_calls) | set(totals.counters)):
            counters = dict(zip(COUNTERS, (int(n) for n in totals.counters.get(place, ())), strict=False))
            cores.append(CoreCount(place, totals.kernel_calls[place], counters))
    raw = {i: session.read(names[i], 0, (sequence.arguments[i].nbytes,), np.uint8) for i in outputs}
    notes |= set(session.notes())
    return Outcome(raw, tuple(cores), read, written, tuple(sorted(notes)))
