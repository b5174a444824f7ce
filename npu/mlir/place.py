# SPDX-License-Identifier: Apache-2.0
"""Buffer addresses and BD ids, as mlir-aie's aie-assign-buffer-addresses and aie-assign-bd-ids give them.

Placement works per tile. Bank-aware: the stack lies at the start of bank 0; buffers with an address stay,
buffers with a bank come next, the others from the largest down, each in the next bank in turn that has room.
Where that fails the compiler only warns and places one after another from the largest down; then
`Placement.fallback` says why, and legality refuses the design.

One place where we differ on purpose: the compiler of 2026-03 moves a buffer with a written address up by its own size
(it takes the bank that it just derived for a request); we keep the address, so that a module which aie-opt has placed
reads back unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from npu.array import TileLimits
from npu.program import Buffer, Channel, DmaProgram, TileKind

BANK_AWARE = "bank-aware"
SEQUENTIAL = "basic-sequential"


@dataclass(frozen=True)
class Placement:
    """Placed buffers in text order; `fallback` says why bank-aware placement failed, "" if it did not."""

    buffers: tuple[Buffer, ...]
    fallback: str = ""


def place(buffers: Sequence[Buffer], stack_bytes: int, limits: TileLimits, scheme: str | None = None) -> Placement:
    """Give the buffers of one tile addresses. `scheme` is the tile's allocation_scheme."""
    if scheme != SEQUENTIAL:
        placed, reason = _bank_aware(buffers, stack_bytes, limits)
        if not reason:
            return Placement(placed)
    else:
        reason = "the tile asks for basic-sequential allocation"
    return Placement(_sequential(buffers, stack_bytes), reason)


def _bank_aware(buffers: Sequence[Buffer], stack_bytes: int, limits: TileLimits) -> tuple[tuple[Buffer, ...], str]:
    size = limits.bank_bytes
    if not size:
        return tuple(buffers), "buffers on a tile without data memory" if buffers else ""
    free = [bank * size for bank in range(limits.banks)]
    free[0] += stack_bytes
    done: dict[int, Buffer] = {}
    for index, buffer in enumerate(buffers):
        nbytes = buffer.type.nbytes
        if buffer.address is not None:
            bank = buffer.address // size
            if not 0 <= bank < limits.banks or buffer.address < free[bank]:
                return (), f"{buffer.name} at {buffer.address} lies on what is placed already"
            free[bank] = buffer.address + nbytes
            done[index] = replace(buffer, bank=bank)
        elif buffer.bank is not None:
            if free[buffer.bank] + nbytes > (buffer.bank + 1) * size:
                return (), f"{buffer.name} of {nbytes} bytes does not fit bank {buffer.bank}"
            done[index] = replace(buffer, address=free[buffer.bank])
            free[buffer.bank] += nbytes
    turn = 0
    floating = [index for index in range(len(buffers)) if index not in done]
    for index in sorted(floating, key=lambda i: -buffers[i].type.nbytes):
        nbytes = buffers[index].type.nbytes
        for step in range(limits.banks):
            bank = (turn + step) % limits.banks
            if free[bank] + nbytes <= (bank + 1) * size:
                break
        else:
            return (), f"{buffers[index].name} of {nbytes} bytes fits no bank"
        done[index] = replace(buffers[index], address=free[bank], bank=bank)
        free[bank] += nbytes
        turn = (bank + 1) % limits.banks
    over = [bank for bank in range(limits.banks) if free[bank] > (bank + 1) * size]
    if over:
        return (), f"bank {over[0]} is overfull"
    return tuple(done[index] for index in range(len(buffers))), ""


def _sequential(buffers: Sequence[Buffer], stack_bytes: int) -> tuple[Buffer, ...]:
    fixed = sorted((b.address, b.address + b.type.nbytes) for b in buffers if b.address is not None)
    done = {index: buffer for index, buffer in enumerate(buffers) if buffer.address is not None}
    address = stack_bytes
    floating = [index for index in range(len(buffers)) if index not in done]
    for index in sorted(floating, key=lambda i: -buffers[i].type.nbytes):
        nbytes = buffers[index].type.nbytes
        while fixed and address + nbytes > fixed[0][0]:
            address = fixed.pop(0)[1]
        done[index] = replace(buffers[index], address=address)
        address += nbytes
    return tuple(done[index] for index in range(len(buffers)))


def assign_bd_ids(dmas: Sequence[DmaProgram], limits: TileLimits) -> list[DmaProgram]:
    """BD ids of one tile's channels, in the order of its BDs; past the last id they go on, legality counts them.

    In a memtile even channels reach BDs 0-23 and odd ones 24-47 (AIE2TargetModel).
    """
    taken = {bd.bd_id for dma in dmas for bd in dma.bds if bd.bd_id is not None}
    result = []
    for dma in dmas:
        bds = []
        for bd in dma.bds:
            if bd.bd_id is None:
                bd = replace(bd, bd_id=_lowest(taken, dma.channel, limits))
                taken.add(bd.bd_id)
            bds.append(bd)
        result.append(replace(dma, bds=tuple(bds)))
    return result


def _lowest(taken: set[int], channel: Channel, limits: TileLimits) -> int:
    half = limits.bds // 2
    odd = channel.tile.kind is TileKind.MEMTILE and channel.index % 2 == 1
    candidate = half if odd else 0
    while candidate in taken:
        candidate += 1
    if channel.tile.kind is TileKind.MEMTILE and not odd and candidate >= half:
        # The even half is full: an id that no channel has, so that the count shows.
        candidate = max(limits.bds, *taken) + 1
    return candidate
