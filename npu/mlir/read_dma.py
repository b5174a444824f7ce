# SPDX-License-Identifier: Apache-2.0
"""Explicit DMA programs: aie.mem, aie.memtile_dma and the BD chains of tasks, to `npu.program`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Block, Operation, Region, SSAValue

from npu.array import Array
from npu.mlir.aie import (
    BufferOp,
    DmaBdOp,
    DmaBdPacketOp,
    DmaStartOp,
    EndOp,
    LockOp,
    MemOp,
    MemTileDmaOp,
    NextBdOp,
    ShimDmaOp,
    UseLockOp,
    tile_place,
)
from npu.mlir.aie_streams import DmaOp
from npu.mlir.fifo_spec import by_length, moved, ring
from npu.mlir.read_core import lock_use
from npu.mlir.text import ParsedModule
from npu.mlir.types import dtype_of, has_identity_layout
from npu.program import DTYPE_BYTES, BufferDescriptor, Channel, Dim, Direction, DmaProgram, LockUse, TileId
from refusal import Refusal


@dataclass(frozen=True)
class Place:
    """What a BD's memref is: a buffer's name or a sequence argument, and the offset into it in elements."""

    buffer: str | None
    argument: int | None
    offset: int


Locate = Callable[[Operation, SSAValue], Place]


def refuse(parsed: ParsedModule, op: Operation, found: str, expected: str) -> Refusal:
    """A Refusal that names the operation."""
    return Refusal(found, expected=expected, where=parsed.where(op), next_step="change the operation")


def read_chain(
    parsed: ParsedModule,
    first: Block,
    locate: Locate,
    lock_name: Callable[[LockOp], str],
    *,
    shim: bool,
    wrap_dims: int | None = None,
) -> tuple[tuple[BufferDescriptor, ...], bool]:
    """The BDs reached from `first`, and whether they form a ring."""
    order: list[Block] = []
    index: dict[Block, int] = {}
    block: Block | None = first
    while block is not None and block not in index:
        last = block.last_op
        if not isinstance(last, NextBdOp | EndOp):
            owner = last if last is not None else block.parent_op()
            raise refuse(parsed, owner, "a BD block without end", "aie.next_bd or aie.end")
        only_jump = block.first_op is last
        if not only_jump:
            index[block] = len(order)
            order.append(block)
        block = last.dest if isinstance(last, NextBdOp) else None
    ring = block is not None
    bds = []
    for place, each in enumerate(order):
        last = each.last_op
        after: int | None = None
        if isinstance(last, NextBdOp):
            after = index.get(_skip_jumps(last.dest))
            if after is not None and after <= place and after != 0:
                raise refuse(parsed, last, "a chain that loops back into its middle", "a ring or a chain that ends")
        bds.append(read_bd(parsed, each, after, locate, lock_name, shim=shim, wrap_dims=wrap_dims))
    return tuple(bds), ring


def _skip_jumps(block: Block) -> Block:
    seen = set()
    while isinstance(block.first_op, NextBdOp) and block not in seen:
        seen.add(block)
        block = block.first_op.dest
    return block


def read_bd(
    parsed: ParsedModule,
    block: Block,
    after: int | None,
    locate: Locate,
    lock_name: Callable[[LockOp], str],
    *,
    shim: bool,
    wrap_dims: int | None = None,
) -> BufferDescriptor:
    """One BD block: acquire, packet, dma_bd, release. In a shim the fourth dimension is the iteration. wrap_dims: of a
    DMA in the array, whose BDs are written as they stand (see by_length); None for a task, whose sizes are checked."""
    acquire: LockUse | None = None
    release: LockUse | None = None
    packet: tuple[int, int] | None = None
    bd: DmaBdOp | None = None
    for op in block.ops:
        match op:
            case UseLockOp():
                releases = op.properties["action"].data == "Release"
                if (release if releases else acquire) is not None:
                    what = "release" if releases else "acquire"
                    raise refuse(parsed, op, f"a second {what} in a BD block", f"one: a BD has one {what} field")
                if releases:
                    release = lock_use(parsed, op, lock_name)
                else:
                    acquire = lock_use(parsed, op, lock_name)
            case DmaBdPacketOp():
                packet = (op.packet_type.value.data, op.packet_id.value.data)
            case DmaBdOp():
                if bd is not None:
                    raise refuse(parsed, op, "a second dma_bd in a block", "one")
                bd = op
            case NextBdOp() | EndOp():
                pass
            case _:
                raise refuse(parsed, op, f"{op.name} in a BD block", "use_lock, dma_bd_packet, dma_bd")
    if bd is None:
        raise refuse(parsed, block.last_op, "a BD block without dma_bd", "one dma_bd")
    if bd.packet is not None:
        packet = bd.packet.data
    if bd.next_bd_id is not None and after is None:
        raise refuse(parsed, bd, "next_bd_id on a BD that ends its chain", "aie.next_bd")
    memref = bd.buffer.type
    assert isinstance(memref, MemRefType)
    dtype = dtype_of(memref.element_type)
    place = locate(bd, bd.buffer)
    dims = tuple(Dim(size, stride) for size, stride in bd.dimensions.data) if bd.dimensions is not None else ()
    dims, iteration = split_iteration(dims) if shim else (dims, Dim(1, 0))
    length = bd.len.value.data if bd.len is not None else _whole(parsed, bd, memref, dims)
    padding = bd.pad_dimensions.data if bd.pad_dimensions is not None else ()
    if len(padding) > len(dims):
        raise refuse(parsed, bd, f"{len(padding)} pads of {len(dims)} data dimensions", "at most one pad per dimension")
    if padding:
        padding = ((0, 0),) * (len(dims) - len(padding)) + tuple(padding)  # pads that are left out are the outer ones
    counted = None
    if wrap_dims is not None and dims and not padding and moved(dims, padding) != length:
        counted = by_length(dims, length, wrap_dims)
    if counted is None:
        check_product(parsed, bd, dims, length, padding)
    else:
        dims = counted
    return BufferDescriptor(
        element_bytes=DTYPE_BYTES[dtype],
        offset=place.offset + (bd.offset.value.data if bd.offset is not None else 0),
        length=length,
        buffer=place.buffer,
        argument=place.argument,
        dims=dims,
        iteration=iteration,
        padding=padding,
        acquire=acquire,
        release=release,
        next=after,
        bd_id=bd.bd_id.value.data if bd.bd_id is not None else None,
        packet=packet,
        burst_bytes=bd.burst_length.value.data if bd.burst_length is not None else 0,
        where=parsed.where(bd),
    )


def split_iteration(dims: tuple[Dim, ...]) -> tuple[tuple[Dim, ...], Dim]:
    """(data dimensions, iteration) of a shim BD. The outermost of four is the iteration; size 1 or stride 0 is none."""
    if len(dims) < 4:
        return dims, Dim(1, 0)
    outer = dims[0]
    return dims[1:], outer if outer.size > 1 and outer.stride else Dim(1, 0)


def check_product(
    parsed: ParsedModule, op: Operation, dims: tuple[Dim, ...], length: int, padding: tuple[tuple[int, int], ...] = ()
) -> None:
    """The data dimensions, with their padding, move exactly `length` elements, as AIEDMATasksToNPU checks too."""
    product = moved(dims, padding)
    if dims and product != length:
        raise refuse(
            parsed, op, f"sizes {[dim.size for dim in dims]} ({product} elements) and length {length}",
            "a length equal to their product (without the iteration)",
        )  # fmt: skip


def _whole(parsed: ParsedModule, bd: DmaBdOp, memref: MemRefType, dims: tuple[Dim, ...]) -> int:
    if not has_identity_layout(memref):
        raise refuse(parsed, bd, "a strided view without length", "an explicit length")
    length = 1
    for size in memref.get_shape():
        length *= size
    return length


def read_dma_region(
    parsed: ParsedModule,
    op: MemOp | MemTileDmaOp | ShimDmaOp,
    buffer_name: Callable[[BufferOp], str],
    lock_name: Callable[[LockOp], str],
    array: Array,
) -> Iterator[DmaProgram]:
    """The channels of one tile, in the order of their dma_start."""
    if isinstance(op, ShimDmaOp):
        raise refuse(parsed, op, "aie.shim_dma", "shim transfers in the runtime sequence")
    tile = TileId(*tile_place(op.tile))
    wrap_dims = array.limits(tile).pattern.wrap_dims

    def locate(bd: Operation, value: SSAValue) -> Place:
        if not isinstance(value.owner, BufferOp):
            raise refuse(parsed, bd, "a BD on something else than an aie.buffer", "an aie.buffer")
        return Place(buffer_name(value.owner), None, 0)

    for start in _starts(parsed, op.body):
        channel = Channel(tile, Direction(start.properties["channel_dir"].data), start.channel_index.value.data)
        repeat = start.repeat_count.value.data if start.repeat_count is not None else 0
        if isinstance(start, DmaOp):
            blocks = [region.block for region in start.bds]
            bds = [read_bd(parsed, block, 0, locate, lock_name, shim=False, wrap_dims=wrap_dims) for block in blocks]
            loop = start.loop is None or bool(start.loop.value.data)
            yield ring(channel, bds, None if loop else 1 + repeat)
            continue
        chain, is_ring = read_chain(parsed, start.dest, locate, lock_name, shim=False, wrap_dims=wrap_dims)
        # A ring never ends, so that its repeat count never comes to be used.
        yield DmaProgram(channel, chain, repeat_count=0 if is_ring else repeat)


def _starts(parsed: ParsedModule, region: Region) -> Iterator[DmaStartOp | DmaOp]:
    """The channels in the order in which the DMA program starts them; buffers and locks may be declared between."""
    block = region.blocks.first
    seen: set[Block] = set()
    while block is not None and block not in seen:
        seen.add(block)
        following: Block | None = None
        for op in block.ops:
            match op:
                case BufferOp() | LockOp() | EndOp():
                    pass
                case DmaOp():
                    yield op
                case DmaStartOp():
                    following = op.chain
                    yield op
                case NextBdOp():
                    following = op.dest
                case _:
                    raise refuse(parsed, op, f"{op.name} where a channel starts", "aie.dma_start, aie.dma or aie.end")
        block = following
