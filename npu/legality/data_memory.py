# SPDX-License-Identifier: Apache-2.0
"""Data memory of cores (64 KiB with the stack) and memtiles (512 KiB), and placement in banks.

Rules, all from the target model and from mlir-aie's buffer placement (aie-assign-buffer-addresses):

- stack + every buffer of a tile fit its data memory. A FIFO pool counts with its depth, since the
  program holds one buffer per element;
- placed buffers neither overlap one another nor the stack, which lies at address 0 of a core;
- every buffer lies within one bank (16 KiB in a core, 64 KiB in a memtile). The compiler places by
  banks first: fixed addresses, then fixed banks, then the rest from the largest down, each in the
  next bank in turn that has room. If that fails it warns and places buffers one after another,
  across banks, where two loads of a cycle may collide. That is a house rule here, not an error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from npu.array import SOURCES, Array, TileLimits
from npu.legality.violation import Severity, Violation
from npu.program import Buffer, DeviceProgram, Program, TileId


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Capacity, overlap and bank placement of each tile that has buffers."""
    stacks = {core.tile: core.stack_bytes for core in device.cores}
    buffers: dict[TileId, list[Buffer]] = defaultdict(list)
    for tile in stacks:
        buffers[tile] = []
    for buffer in device.buffers:
        buffers[buffer.tile].append(buffer)
    fallbacks = dict(device.placement_fallbacks)
    for tile, held in buffers.items():
        where = f"@{device.name}, {tile}"
        yield from check_tile(
            held, stacks.get(tile, 0), array.limits(tile), where=where, fallback=fallbacks.get(tile, "")
        )


def check_tile(
    buffers: Sequence[Buffer], stack_bytes: int, limits: TileLimits, *, where: str, fallback: str = ""
) -> Iterator[Violation]:
    """Findings of one tile; `stack_bytes` is 0 where no core stands, `fallback` the loader's own reason if it fell back."""
    asked = stack_bytes + sum(b.type.nbytes for b in buffers)
    if asked > limits.data_memory_bytes:
        yield Violation(
            limit="data memory",
            asked=asked,
            available=limits.data_memory_bytes,
            unit="bytes",
            where=where,
            source=SOURCES["data_memory_bytes"],
            change="use smaller tiles or fewer FIFO elements, or move data to another tile",
            detail=_account(buffers, stack_bytes),
        )
        return
    wrong = list(_misplaced(buffers, stack_bytes, limits, where))
    yield from wrong
    if not wrong and (reason := fallback or bank_placement_failure(buffers, stack_bytes, limits)):
        yield Violation(
            limit="bank-aware placement",
            asked=reason,
            available=f"{limits.banks} banks of {limits.bank_bytes} bytes",
            where=where,
            source=SOURCES["banks"] + "; placement as in AIEAssignBuffers",
            change="make each buffer fit one bank with its neighbours (a smaller tile, a lower depth, a smaller stack)",
            detail="the compiler falls back from bank-aware placement; " + _account(buffers, stack_bytes),
            severity=Severity.HOUSE,
        )


def bank_placement_failure(buffers: Sequence[Buffer], stack_bytes: int, limits: TileLimits) -> str:
    """Why bank-aware placement fails, or "" if it succeeds. Sizes in bytes."""
    size = limits.bank_bytes
    if not size:
        return "buffers on a tile without data memory" if buffers else ""
    free_from = [bank * size for bank in range(limits.banks)]
    free_from[0] += stack_bytes
    if stack_bytes > size:
        return f"a stack of {stack_bytes} bytes, more than a bank"
    floating = []
    # In address order here, in text order in the compiler: a text whose fixed addresses descend within a bank is refused
    # there outright, but addresses that our own loader filled in carry no such order.
    for buffer in sorted(buffers, key=lambda b: -1 if b.address is None else b.address):
        if buffer.address is None:
            floating.append(buffer)
            continue
        bank = buffer.address // size
        end = buffer.address + buffer.type.nbytes
        if end > (bank + 1) * size:
            return f"buffer {buffer.name} of {buffer.type.nbytes} bytes at {buffer.address}, across banks"
        free_from[bank] = max(free_from[bank], end)
    for buffer in [b for b in floating if b.bank is not None]:
        if free_from[buffer.bank] + buffer.type.nbytes > (buffer.bank + 1) * size:
            return f"buffer {buffer.name} of {buffer.type.nbytes} bytes in bank {buffer.bank}, which has no room for it"
        free_from[buffer.bank] += buffer.type.nbytes
    turn = 0
    for buffer in sorted((b for b in floating if b.bank is None), key=lambda b: -b.type.nbytes):
        for step in range(limits.banks):
            bank = (turn + step) % limits.banks
            if free_from[bank] + buffer.type.nbytes <= (bank + 1) * size:
                free_from[bank] += buffer.type.nbytes
                turn = (bank + 1) % limits.banks
                break
        else:
            return f"buffer {buffer.name} of {buffer.type.nbytes} bytes, for which no bank has room left"
    return ""


def _misplaced(buffers: Sequence[Buffer], stack_bytes: int, limits: TileLimits, where: str) -> Iterator[Violation]:
    placed = sorted((b.address, b.address + b.type.nbytes, b.name) for b in buffers if b.address is not None)
    ranges = [(0, stack_bytes, "the stack"), *placed] if stack_bytes else placed
    for (_, end, first), (start, _, second) in pairwise(ranges):
        if start < end:
            yield Violation(
                limit="overlap in data memory",
                asked=f"{second} at {start}",
                available=f"free bytes from {end}, after {first}",
                where=where,
                source=SOURCES["data_memory_bytes"],
                change=f"give {second} an address from {end} on, or none so that the compiler places it",
            )
    for start, end, name in placed:
        if end > limits.data_memory_bytes:
            yield Violation(
                limit="data memory",
                asked=end,
                available=limits.data_memory_bytes,
                unit="bytes",
                where=f"{where}, buffer {name}",
                source=SOURCES["data_memory_bytes"],
                change=f"move {name} below {limits.data_memory_bytes}",
                detail=f"{name} ends there, starting at {start}",
            )


def _account(buffers: Sequence[Buffer], stack_bytes: int) -> str:
    groups: dict[tuple[str, int], int] = {}
    for buffer in buffers:
        key = (buffer.fifo or buffer.name, buffer.type.nbytes)
        groups[key] = groups.get(key, 0) + 1
    parts = [f"stack {stack_bytes}"] if stack_bytes else []
    parts += [
        f"{name} {count} x {nbytes}" if count > 1 else f"{name} {nbytes}" for (name, nbytes), count in groups.items()
    ]
    return ", ".join(parts)
