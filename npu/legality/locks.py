# SPDX-License-Identifier: Apache-2.0
"""Locks: 16 a core, 64 a memtile, 16 a shim; values 0..63.

Rules: the number of locks declared on a tile and their ids (target model, aie-assign-lock-ids
refuses two locks with one id); initial values, acquired, released and set values fit the 6-bit
counter. The tools do not check the values: 74 was truncated and the design deadlocked (mlir-air).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from npu.array import SOURCES, Array
from npu.legality.statements import walk
from npu.legality.violation import Violation
from npu.program import ConfigureTask, Core, DeviceProgram, Lock, LockUse, Program, Release, SetLock, TileId, UseLock


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Numbers, ids and values of locks."""
    by_tile: dict[TileId, list[Lock]] = defaultdict(list)
    for lock in device.locks:
        by_tile[lock.tile].append(lock)
    for tile, locks in by_tile.items():
        yield from _count_and_ids(locks, array.limits(tile).locks, f"@{device.name}, {tile}")
    for lock in device.locks:
        yield from _value(lock.init, array, f"@{device.name}, initial value of lock {lock.name}")
    for where, use in _uses(device):
        yield from _value(use.value, array, f"{where}, lock {use.lock}")


def _count_and_ids(locks: list[Lock], available: int, where: str) -> Iterator[Violation]:
    if len(locks) > available:
        yield Violation(
            limit="locks",
            asked=len(locks),
            available=available,
            unit="locks",
            where=where,
            source=SOURCES["locks"],
            change="end fewer FIFOs on this tile; each pool takes two locks, a joined or distributed one two a part",
        )
    for lock in locks:
        if lock.id is not None and not 0 <= lock.id < available:
            yield Violation(
                limit="lock id",
                asked=lock.id,
                available=f"0..{available - 1}",
                where=f"{where}, lock {lock.name}",
                source=SOURCES["locks"],
                change="leave the id out so that the compiler assigns it",
            )
    for lock_id, count in Counter(lock.id for lock in locks if lock.id is not None).items():
        if count > 1:
            yield Violation(
                limit="locks with one id",
                asked=count,
                available=1,
                where=f"{where}, lock id {lock_id}",
                source="pass aie-assign-lock-ids",
                change="give each lock an id of its own, or none",
            )


def _value(value: int, array: Array, where: str) -> Iterator[Violation]:
    if not 0 <= value <= array.lock_value_max:
        yield Violation(
            limit="lock value",
            asked=value,
            available=f"0..{array.lock_value_max}",
            where=where,
            source=SOURCES["lock_value_max"],
            change="count in larger elements, so that fewer are free or full at once",
        )


def _uses(device: DeviceProgram) -> Iterator[tuple[str, LockUse]]:
    for dma in device.dmas:
        for n, bd in enumerate(dma.bds):
            for use in (bd.acquire, bd.release):
                if use:
                    yield bd.where or f"@{device.name}, {dma.channel}, BD {n}", use
    for core in device.cores:
        for use in _core_uses(core):
            yield f"@{device.name}, {core.tile}", use
    for sequence in device.sequences:
        for instruction in sequence.instructions:
            if isinstance(instruction, SetLock):
                yield f"@{device.name}, @{sequence.name}, set_lock", LockUse(instruction.lock, instruction.value)
            if isinstance(instruction, ConfigureTask):
                for bd in instruction.bds:
                    for use in (bd.acquire, bd.release):
                        if use:
                            yield instruction.where or f"@{device.name}, task {instruction.task}", use


def _core_uses(core: Core) -> Iterator[LockUse]:
    for statement in walk(core.body):
        if isinstance(statement, UseLock):
            yield statement.use
        elif isinstance(statement, Release) and (lock := core.ends[statement.end].release_lock):
            yield LockUse(lock, statement.count * core.ends[statement.end].repeat)
