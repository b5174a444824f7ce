# SPDX-License-Identifier: Apache-2.0
"""Buffer descriptors that a runtime sequence holds at once: 16 a shim.

Rules, as mlir-aie 2026-03 assigns them (pass aie-assign-runtime-sequence-bd-ids):

- every configured task takes one id per descriptor on its tile, the lowest free ones, until it is awaited or
  freed. Starting it, the end of a run and aiex.configure free nothing, so every input (MM2S) task that is
  not awaited must be freed, or a list of runs ends after a dozen ("Allocator exhausted ...");
- all sequences of one device are counted in one pass, in text order: what one leaves behind is missing in
  the next;
- the allocator ignores channels. It hands out a memtile's ids 0-23 only.

- a task with a fixed id that is live is refused. The ids of a dma_memcpy_nd are always fixed, and the allocator knows
  nothing of them.

Two further findings are warnings. The id of a dma_memcpy_nd may be reused without a word to the compiler; if no
output was awaited since, the first may still be in flight. And the allocator does not see the ids
that aie.mem or aie.memtile_dma took on the same tile.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from npu.array import SOURCES, Array, memtile_bd_range
from npu.legality.dispatch_list import RunBegin, RunEnd, Step, from_memcpy, is_leaf, unfold
from npu.legality.violation import Basis, Severity, Violation
from npu.program import AwaitTask, ConfigureTask, DeviceProgram, Direction, FreeTask, Program, TileId, TileKind

_SOURCE = "pass aie-assign-runtime-sequence-bd-ids"
_Task = tuple[int, int]  # run, task


class _Allocator:
    """BD ids of the tiles of one device, over all of its sequences."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self._live: dict[TileId, dict[int, _Task]] = defaultdict(dict)
        self._memcpy: dict[tuple[TileId, int], tuple[ConfigureTask, int]] = {}
        self._configured: dict[_Task, tuple[ConfigureTask, int, tuple[int, ...]]] = {}
        self._since_await = 0  # the step of the last awaited output
        self._exhausted: set[TileId] = set()
        self._fixed = False  # whether any task named its ids
        self._peak: Counter[TileId] = Counter()

    def configure(self, key: _Task, task: ConfigureTask, now: int, where: str) -> Iterator[Violation]:
        live, tile = self._live[task.channel.tile], task.channel.tile
        fixed = [bd.bd_id for bd in task.bds if bd.bd_id is not None]
        there = self._array.limits(tile).bds
        for bd_id in fixed:
            if not 0 <= bd_id < there:
                yield Violation(
                    limit="BD id", asked=bd_id, available=f"0..{there - 1}", where=f"{where}, {task.channel}",
                    source=SOURCES["bds"], change="name an id that the tile has, or leave it to the compiler",
                )  # fmt: skip
        for bd_id in fixed:
            if bd_id in live:
                yield _taken(bd_id, task, self._configured[live[bd_id]][0], where, refused=not from_memcpy(task))
            elif (tile, bd_id) in self._memcpy and self._memcpy[tile, bd_id][1] > self._since_await:
                yield _taken(bd_id, task, self._memcpy[tile, bd_id][0], where, refused=False)
        if from_memcpy(task):
            self._memcpy |= {(tile, bd_id): (task, now) for bd_id in fixed}
            self._configured[key] = task, now, ()
            return
        taken = list(fixed)
        self._fixed |= bool(fixed)
        live |= dict.fromkeys(fixed, key)
        needed = sum(bd.bd_id is None for bd in task.bds)
        usable = self._usable(tile)
        free = [bd_id for bd_id in usable if bd_id not in live]
        if needed > len(free) and tile not in self._exhausted:
            self._exhausted.add(tile)
            yield _exhausted(len(live) + needed, len(usable), self._holders(tile), task, where)
        for bd_id in free[:needed]:
            live[bd_id] = key
            taken.append(bd_id)
        self._configured[key] = task, now, tuple(taken)
        self._peak[tile] = max(self._peak[tile], len(live))

    def peak(self) -> Counter[TileId] | None:
        """Most ids that were live on each tile, None where the count does not tell all: fixed ids, or ids still live."""
        if any(self._live.values()) or self._memcpy or self._exhausted or self._fixed:
            return None
        return self._peak

    def has_room(self, peak: Counter[TileId]) -> bool:
        """Whether `peak` further ids fit on each tile, beside what is live."""
        return all(len(self._live[tile]) + count <= len(self._usable(tile)) for tile, count in peak.items())

    def _usable(self, tile: TileId) -> range:
        return (
            memtile_bd_range(self._array, 0) if tile.kind is TileKind.MEMTILE else range(self._array.limits(tile).bds)
        )

    def release(self, key: _Task, now: int, *, awaited: bool) -> None:
        if key not in self._configured:
            return
        task, _, taken = self._configured[key]
        if awaited and task.channel.direction is Direction.S2MM:
            self._since_await = now
        for bd in task.bds if from_memcpy(task) else ():
            self._memcpy.pop((task.channel.tile, bd.bd_id), None)
        for bd_id in taken:
            if self._live[task.channel.tile].get(bd_id) == key:
                del self._live[task.channel.tile][bd_id]

    def forget_names(self) -> None:
        """A new sequence numbers its runs and tasks anew; what is live stays live under names of its own."""
        renamed = {}
        for tile, live in self._live.items():
            for bd_id, key in live.items():
                fresh = renamed.setdefault(key, (-1 - len(renamed) - len(self._configured), key[1]))
                self._live[tile][bd_id] = fresh
        self._configured = {renamed[k]: v for k, v in self._configured.items() if k in renamed}

    def _holders(self, tile: TileId) -> str:
        counts: dict[Direction, int] = defaultdict(int)
        for key in self._live[tile].values():
            counts[self._configured[key][0].channel.direction] += 1
        return ", ".join(f"{count} held by {direction} tasks" for direction, count in sorted(counts.items()))


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Live ids over every sequence of the device, runs unfolded."""
    allocator = _Allocator(array)
    peaks: dict[tuple[str, str], Counter[TileId] | None] = {}

    def enter(run: RunBegin) -> bool:
        """A run that gives back all it takes changes nothing if it has room, so it need not be followed."""
        name = run.device.name, run.sequence.name
        if name not in peaks:
            peaks[name] = _peak_alone(run, array)
        peak = peaks[name]
        return peak is None or not allocator.has_room(peak)

    now = 0
    for sequence in device.sequences:
        allocator.forget_names()
        for step in unfold(program, device, sequence, enter=enter):
            now += 1
            if isinstance(step, RunBegin | RunEnd):
                continue
            yield from _apply(allocator, step, now, f"@{device.name} @{sequence.name}")
    yield from _against_in_array(device, array)


def _peak_alone(run: RunBegin, array: Array) -> Counter[TileId] | None:
    """What the run's sequence needs at most per tile if it starts with nothing live, None if that does not tell all."""
    if not is_leaf(run.sequence):
        return None
    alone = _Allocator(array)
    for now, instruction in enumerate(run.sequence.instructions):
        for _ in _apply(alone, Step(0, run.device, run.sequence, run.arguments, instruction), now, ""):
            return None
    return alone.peak()


def _apply(allocator: _Allocator, step: Step, now: int, entry: str) -> Iterator[Violation]:
    instruction = step.instruction
    if isinstance(instruction, ConfigureTask):
        where = f"{entry}, {step.where}" if step.run else entry
        yield from allocator.configure((step.run, instruction.task), instruction, now, where)
    elif isinstance(instruction, AwaitTask | FreeTask):
        allocator.release((step.run, instruction.task), now, awaited=isinstance(instruction, AwaitTask))


def _exhausted(asked: int, available: int, holders: str, task: ConfigureTask, where: str) -> Violation:
    return Violation(
        limit="BDs live at once in the sequence",
        asked=asked,
        available=available,
        unit="BDs",
        where=f"{where}, task {task.task} on {task.channel}",
        source=f"{_SOURCE}; {SOURCES['bds']}",
        change="free each input task (dma_free_task) once an output that needs it was awaited, and await each output",
        detail=holders,
    )


def _taken(bd_id: int, task: ConfigureTask, earlier: ConfigureTask, where: str, *, refused: bool) -> Violation:
    return Violation(
        limit="BD id in use",
        asked=f"id {bd_id} for task {task.task}",
        available=f"an id that is free; {bd_id} belongs to task {earlier.task}, not awaited or freed",
        where=f"{where}, {task.channel}",
        source=f"{_SOURCE}; rewriting a BD in flight is undefined",
        change="use another id, or await an output first",
        severity=Severity.ERROR if refused else Severity.WARNING,
        basis=Basis.STATED if refused else Basis.INFERRED,
    )


def _against_in_array(device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Tiles on which both the sequence and the in-array DMA program take descriptors."""
    static: dict[TileId, set[int]] = defaultdict(set)
    for dma in device.dmas:
        static[dma.channel.tile] |= {bd.bd_id for bd in dma.bds if bd.bd_id is not None}
    for dma in device.dmas:
        tile = dma.channel.tile
        memtile = tile.kind is TileKind.MEMTILE
        usable = memtile_bd_range(array, dma.channel.index) if memtile else range(array.limits(tile).bds)
        for bd in dma.bds:
            free = next((i for i in usable if i not in static[tile]), None)
            if bd.bd_id is None and free is not None:
                static[tile].add(free)
    for sequence in device.sequences:
        asked: dict[TileId, set[int]] = defaultdict(set)
        for task in sequence.instructions:
            if isinstance(task, ConfigureTask) and task.channel.tile.kind is not TileKind.SHIM:
                asked[task.channel.tile] |= {n if bd.bd_id is None else bd.bd_id for n, bd in enumerate(task.bds)}
        for tile, ids in asked.items():
            if both := ids & static.get(tile, set()):
                yield Violation(
                    limit="BD ids shared by a sequence and the tile's own DMA",
                    asked=f"ids {', '.join(map(str, sorted(both)))}",
                    available="ids that the other does not use",
                    where=f"@{device.name}, @{sequence.name}, {tile}",
                    source=f"{_SOURCE}, which starts at 0 and does not look at aie.mem",
                    change="fix bd_id in the sequence to ids that the tile's own DMA leaves free",
                    severity=Severity.WARNING,
                    basis=Basis.INFERRED,
                )
