# SPDX-License-Identifier: Apache-2.0
"""Runtime sequences: from operations to the flat instruction list of `npu.program`.

A dma_memcpy_nd becomes ConfigureTask and StartTask; one into memory (S2MM) always carries a token. A wait
for a symbol awaits the oldest task of its channel that has a token nobody awaited: tokens come in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import IntegerAttr, MemRefType
from xdsl.ir import BlockArgument, Operation, Region, SSAValue

from npu.mlir.aie import BdChainOp, BufferOp, LockOp, _RuntimeSequence, tile_place
from npu.mlir.aie_trace import TraceStartConfigOp
from npu.mlir.aiex import (
    AwaitTaskOp,
    ConfigureOp,
    ConfigureTaskForOp,
    ConfigureTaskOp,
    DmaMemcpyNdOp,
    DmaWaitOp,
    FreeTaskOp,
    RtpWriteOp,
    RunOp,
    SetLockOp,
    StartBdChainForOp,
    StartBdChainOp,
    StartTaskOp,
    SyncOp,
)
from npu.mlir.aiex_registers import (
    AddressPatchOp,
    BlockWriteOp,
    MaskWrite32Op,
    PreemptOp,
    PushQueueOp,
    RegisterOp,
    Write32Op,
    WriteBdOp,
)
from npu.mlir.array_memory import WORD, ArrayMemory
from npu.mlir.memref_data import GlobalOp
from npu.mlir.read_configure import Inlined
from npu.mlir.read_dma import Place, check_product, read_chain, refuse, split_iteration
from npu.mlir.read_registers import FULL, Registers
from npu.mlir.registers import split
from npu.mlir.text import ParsedModule
from npu.mlir.types import dtype_of, has_identity_layout, initial_bytes, memref_of
from npu.program import (
    DTYPE_BYTES,
    ArgumentSlice,
    AwaitTask,
    BufferDescriptor,
    Channel,
    ConfigureTask,
    Dim,
    Direction,
    FreeTask,
    Instruction,
    Run,
    Sequence,
    SetLock,
    StartTask,
    TileId,
    TileKind,
    WriteParameter,
)

_TASK_USES = {AwaitTaskOp: AwaitTask, FreeTaskOp: FreeTask}


class SequenceReader:
    """Reads one runtime sequence."""

    def __init__(
        self,
        parsed: ParsedModule,
        op: _RuntimeSequence,
        shims: Mapping[str, Channel],
        packets: Mapping[str, tuple[int, int]],
        buffer_name: Callable[[BufferOp], str],
        lock_name: Callable[[LockOp], str],
        memory: ArrayMemory,
        globals_: Mapping[str, GlobalOp],
        chains: Mapping[str, BdChainOp],
        inlined: Mapping[ConfigureOp, str],
    ) -> None:
        self.parsed, self.op, self.shims, self.packets = parsed, op, shims, packets
        self.buffer_name, self.lock_name = buffer_name, lock_name
        self.memory, self.globals, self.chains, self.inlined = memory, globals_, chains, inlined
        self.registers = Registers(self, memory, parsed.where)
        self.instructions: list[Instruction | None] = []  # None: a place where a BD is written that nobody pushed yet
        self.task_of: dict[SSAValue, int] = {}
        self.tokens: dict[Channel, list[int]] = {}  # tasks with a token, oldest first, not yet awaited
        self.configured: dict[int, ConfigureTask] = {}

    def read(self, inlined: Inlined | None = None) -> Sequence:
        """The sequence, or the instructions of a configure in it."""
        arguments = tuple(memref_of(value.type) for value in self.op.body.block.args)
        body = self.op.body if inlined is None else inlined.configure.body
        for op in body.block.ops:
            self.instruction(op)
        name = self.op.sym_name.data if inlined is None else inlined.name
        return Sequence(name, arguments, tuple(i for i in self.instructions if i is not None))

    def instruction(self, op: Operation) -> None:
        match op:
            case ConfigureTaskForOp():
                symbol = op.alloc.root_reference.data
                self.configure(op, self.channel(op, symbol), self.packets.get(symbol), op.body)
            case ConfigureTaskOp():
                channel = Channel(
                    TileId(*tile_place(op.tile)), Direction(op.properties["direction"].data), op.channel.value.data
                )
                self.configure(op, channel, op.packet.data if op.packet is not None else None, op.body)
            case StartTaskOp() | AwaitTaskOp() | FreeTaskOp():
                self.use_task(op)
            case StartBdChainOp() | StartBdChainForOp():
                self.start_chain(op)
            case DmaMemcpyNdOp():
                self.memcpy(op)
            case DmaWaitOp():
                self.wait(op)
            case SyncOp():
                self.sync(op)
            case RtpWriteOp():
                name = op.buffer.root_reference.data
                self.instructions.append(WriteParameter(name, op.index.value.data, op.value.value.data))
            case SetLockOp():
                owner = op.lock.owner
                if not isinstance(owner, LockOp):
                    raise refuse(self.parsed, op, "a lock that is not an aie.lock", "an aie.lock")
                self.instructions.append(SetLock(self.lock_name(owner), op.value.value.data))
            case ConfigureOp():
                self.run_all(op)
            case RegisterOp():
                self.register(op)
            case WriteBdOp():
                self.registers.write_bd(op)
            case PushQueueOp():
                self.registers.push_queue(op)
            case AddressPatchOp():
                tile, offset = split(op.addr.value.data)
                self.registers.patch(op, tile, offset, op.arg_idx.value.data, op.arg_plus.value.data)
            case PreemptOp() | memref.GetGlobalOp() | TraceStartConfigOp():
                pass  # values do not depend on it; data of a blockwrite
            case arith.ConstantOp() | memref.SubviewOp() | memref.ReinterpretCastOp() | memref.AssumeAlignmentOp():
                pass  # resolved where they are used
            case _:
                raise refuse(self.parsed, op, f"operation {op.name} in a sequence", "tasks, transfers, rtp_write, runs")

    # ---- tasks --------------------------------------------------------------------------------

    def channel(self, op: Operation, symbol: str) -> Channel:
        if symbol not in self.shims:
            raise refuse(
                self.parsed, op, f"@{symbol}", f"a FIFO or allocation with a shim end: {', '.join(sorted(self.shims))}"
            )
        return self.shims[symbol]

    def new_task(
        self,
        channel: Channel,
        bds: tuple[BufferDescriptor, ...],
        token: bool,
        repeat: int,
        where: str,
        slot: int | None = None,
    ) -> int:
        """A ConfigureTask at the end, or in a place that register writes have kept for it."""
        number = len(self.configured)
        task = ConfigureTask(number, channel, bds, token, repeat, where)
        self.configured[number] = task
        if slot is None:
            self.instructions.append(task)
        else:
            self.instructions[slot] = task
        return number

    def configure(
        self,
        op: ConfigureTaskForOp | ConfigureTaskOp | StartBdChainOp | StartBdChainForOp,
        channel: Channel,
        packet: tuple[int, int] | None,
        body: Region,
    ) -> None:
        shim = channel.tile.kind is TileKind.SHIM
        bds, ring = read_chain(self.parsed, body.blocks.first, self.locate, self.lock_name, shim=shim)
        if ring:
            raise refuse(self.parsed, op, "a ring of BDs in a task", "a chain that ends")
        if packet is not None:
            bds = tuple(bd if bd.packet is not None else replace(bd, packet=packet) for bd in bds)
        token = bool(op.issue_token.value.data) if op.issue_token is not None else False
        repeat = op.repeat_count.value.data if op.repeat_count is not None else 0
        self.task_of[op.result] = self.new_task(channel, bds, token, repeat, self.parsed.where(op))

    def start_chain(self, op: StartBdChainOp | StartBdChainForOp) -> None:
        """A task from an abstract chain, whose buffers and locks are the arguments, and its start."""
        name = op.symbol.root_reference.data
        chain = self.chains.get(name)
        if chain is None:
            raise refuse(self.parsed, op, f"@{name}", f"a bd_chain: {', '.join(sorted(self.chains)) or 'none'}")
        body = chain.body.clone()
        lines = self.parsed.lines
        lines |= {copy: lines[old] for old, copy in zip(chain.body.walk(), body.walk(), strict=True) if old in lines}
        parameters = body.blocks.first.args
        if [value.type for value in op.args] != [value.type for value in parameters]:
            raise refuse(self.parsed, op, f"{len(op.args)} arguments of other types", f"what @{name} takes")
        for parameter, value in zip(parameters, op.args, strict=True):
            parameter.replace_all_uses_with(value)
        if isinstance(op, StartBdChainOp):
            tile = TileId(*tile_place(op.tile))
            channel = Channel(tile, Direction(op.properties["direction"].data), op.channel.value.data)
            packet = None
        else:
            symbol = op.alloc.root_reference.data
            channel, packet = self.channel(op, symbol), self.packets.get(symbol)
        self.configure(op, channel, packet, body)
        self.start(self.task_of[op.result])
        for item in list(body.blocks):  # the values used in the copy belong to the text again
            for inner in item.ops:
                inner.drop_all_references()

    def start(self, number: int) -> None:
        task = self.configured[number]
        if self.traces(task.channel, "task start"):
            return
        if task.issue_token:
            self.tokens.setdefault(task.channel, []).append(number)
        self.instructions.append(StartTask(number))

    def use_task(self, op: StartTaskOp | AwaitTaskOp | FreeTaskOp) -> None:
        number = self.task_of.get(op.task)
        if number is None:
            raise refuse(self.parsed, op, "a task that is not configured in this sequence", "a dma_configure_task")
        task = self.configured[number]
        if isinstance(op, AwaitTaskOp) and self.traces(task.channel, "token wait"):
            return
        if isinstance(op, AwaitTaskOp):
            if not task.issue_token:
                raise refuse(self.parsed, op, "waiting for a task without a token", "issue_token = true on the task")
            waiting = self.tokens.get(task.channel, [])
            if number in waiting:
                waiting.remove(number)
        if isinstance(op, StartTaskOp):
            self.start(number)
        else:
            self.instructions.append(_TASK_USES[type(op)](number))

    def memcpy(self, op: DmaMemcpyNdOp) -> None:
        channel = self.channel(op, op.metadata.root_reference.data)
        offsets, sizes, strides = ([self.constant(op, item) for item in items] for items in op.written)
        place = self.locate(op, op.memref)
        dims, iteration = split_iteration(tuple(Dim(*pair) for pair in zip(sizes, strides, strict=True)))
        length = sizes[1] * sizes[2] * sizes[3]
        check_product(self.parsed, op, dims, length)
        token = bool(op.issue_token.value.data) if op.issue_token is not None else False
        token |= channel.direction is Direction.S2MM
        assert isinstance(op.memref.type, MemRefType)
        zeros = [key for key in op.properties if "_zero_" in key and op.properties[key].value.data]
        if zeros:
            raise refuse(self.parsed, op, f"padding {', '.join(zeros)}", "none: a shim cannot pad")
        bd = BufferDescriptor(
            element_bytes=DTYPE_BYTES[dtype_of(op.memref.type.element_type)],
            offset=place.offset + sum(a * b for a, b in zip(offsets, strides, strict=True)),
            length=length,
            buffer=place.buffer,
            argument=place.argument,
            dims=dims,
            iteration=iteration,
            bd_id=op.id.value.data,
            packet=op.packet.data if op.packet is not None else self.packets.get(op.metadata.root_reference.data),
            burst_bytes=op.burst_length.value.data if op.burst_length is not None else 0,
            where=self.parsed.where(op),
        )
        self.registers.forget(channel.tile, [op.id.value.data])
        self.start(self.new_task(channel, (bd,), token, sizes[0] - 1, self.parsed.where(op)))

    def traces(self, channel: Channel, what: str) -> bool:
        """Whether the channel takes trace packets alone: it is not started then, and nobody waits for it."""
        if channel not in self.memory.trace_channels:
            return False
        self.memory.watched[f"{what}s of {channel}, which takes trace packets, are left out"] += 1
        return True

    def wait(self, op: DmaWaitOp) -> None:
        symbol = op.symbol.root_reference.data
        if self.traces(self.channel(op, symbol), "token wait"):
            return
        waiting = self.tokens.get(self.channel(op, symbol), [])
        if not waiting:
            raise refuse(self.parsed, op, f"a wait on @{symbol}", "a started transfer there whose token nobody awaited")
        self.instructions.append(AwaitTask(waiting.pop(0)))

    def sync(self, op: SyncOp) -> None:
        """The token wait at register level: one channel of each tile of a rectangle."""
        direction = Direction.MM2S if op.direction.value.data else Direction.S2MM
        columns, rows = range(max(1, op.column_num.value.data)), range(max(1, op.row_num.value.data))
        for tile in (TileId(op.column.value.data + c, op.row.value.data + r) for c in columns for r in rows):
            channel = Channel(tile, direction, op.channel.value.data)
            if self.traces(channel, "token wait"):
                continue
            waiting = self.tokens.get(channel, [])
            if not waiting:
                raise refuse(self.parsed, op, f"a wait for {channel}", "a started transfer there with a token")
            self.instructions.append(AwaitTask(waiting.pop(0)))

    # ---- register writes ----------------------------------------------------------------------

    def register(self, op: RegisterOp) -> None:
        """write32, maskwrite32 and blockwrite: words to consecutive addresses."""
        mask = FULL
        if isinstance(op, BlockWriteOp):
            words = self.words(op)
        else:
            assert isinstance(op, Write32Op | MaskWrite32Op)
            words = [op.value.value.data & FULL]
            mask = op.mask.value.data & FULL if isinstance(op, MaskWrite32Op) else FULL
        address = op.address.value.data
        if op.buffer is not None:
            name = op.buffer.root_reference.data
            found = next((buffer for buffer in self.memory.buffers if buffer.name == name), None)
            if found is None or (address + len(words)) * WORD > found.type.nbytes:
                raise refuse(
                    self.parsed, op, f"{len(words)} words at word {address} of @{name}", "words of an aie.buffer"
                )
            self.instructions += [WriteParameter(name, address + n, word, mask) for n, word in enumerate(words)]
            return
        tile, offset = split(address)
        if op.column is not None and op.row is not None:
            tile = TileId(op.column.value.data, op.row.value.data)
        for number, word in enumerate(words):
            self.registers.write(op, tile, offset + WORD * number, word, mask)

    def words(self, op: BlockWriteOp) -> list[int]:
        owner = op.data.owner
        found = self.globals.get(owner.name_.root_reference.data) if isinstance(owner, memref.GetGlobalOp) else None
        if found is None or found.initial_value is None or dtype_of(found.type.element_type) not in ("i32", "ui32"):
            raise refuse(self.parsed, op, "a blockwrite of something else", "a memref.global of i32 with a value")
        data = initial_bytes(found.initial_value)
        return [int.from_bytes(data[at : at + WORD], "little") for at in range(0, len(data), WORD)]

    # ---- values -------------------------------------------------------------------------------

    def constant(self, op: Operation, item: int | SSAValue) -> int:
        if isinstance(item, int):
            return item
        owner = item.owner
        if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
            return owner.value.value.data
        raise refuse(self.parsed, op, "a computed offset, size or stride", "constants: an instruction stream is fixed")

    def locate(self, op: Operation, value: SSAValue) -> Place:
        """The argument or buffer behind a chain of constant views, and the offset in elements."""
        offset = 0
        while not isinstance(value, BlockArgument):
            owner = value.owner
            if isinstance(owner, BufferOp):
                return Place(self.buffer_name(owner), None, offset)
            if not isinstance(owner, memref.SubviewOp | memref.ReinterpretCastOp):
                raise refuse(self.parsed, op, f"a view made by {owner.name}", "memref.subview or reinterpret_cast")
            offset += self.view_offset(owner)
            value = owner.source
        if value.block is not self.op.body.block:
            raise refuse(self.parsed, op, "a value of another region", "an argument of the sequence")
        return Place(None, value.index, offset)

    def view_offset(self, op: memref.SubviewOp | memref.ReinterpretCastOp) -> int:
        """Elements that a contiguous constant view skips of its source."""
        if len(op.operands) != 1:
            raise refuse(self.parsed, op, "a view with computed offsets", "constants")
        offsets = list(op.static_offsets.get_values())
        sizes = list(op.static_sizes.get_values())
        strides = list(op.static_strides.get_values())
        if isinstance(op, memref.ReinterpretCastOp):
            dense = 1
            for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
                if size > 1 and stride != dense:
                    raise refuse(self.parsed, op, f"strides {strides}", "a dense view")
                dense *= size
            return offsets[0]
        shape = list(op.source.type.get_shape())
        if any(stride != 1 for stride in strides):
            raise refuse(self.parsed, op, f"strides {strides}", "1s: a dense view")
        # Dense: only leading dimensions of size 1 before the first partial one, whole ones after it.
        partial = next((axis for axis, size in enumerate(sizes) if size != 1), len(sizes))
        if any(sizes[axis] != shape[axis] for axis in range(partial + 1, len(sizes))):
            raise refuse(self.parsed, op, f"sizes {sizes} of shape {shape}", "a contiguous view")
        if not has_identity_layout(op.source.type) and len(shape) > 1:
            raise refuse(self.parsed, op, "a view of a strided view", "a view of an argument")
        skipped, pitch = 0, 1
        for size, offset in zip(reversed(shape), reversed(offsets), strict=True):
            skipped += offset * pitch
            pitch *= size
        return skipped

    # ---- runs ---------------------------------------------------------------------------------

    def run_all(self, configure: ConfigureOp) -> None:
        device = configure.symbol.root_reference.data
        name = self.inlined.get(configure)
        if name is not None:
            types = [memref_of(value.type) for value in self.op.body.block.args]
            whole = tuple(ArgumentSlice(index, 0, type) for index, type in enumerate(types))
            self.instructions.append(Run(device, name, whole, reconfigure=True))
            return
        first = True
        for op in configure.body.block.ops:
            if isinstance(op, RunOp):
                arguments = tuple(self.slice(op, value) for value in op.args)
                sequence = op.runtime_sequence_symbol.root_reference.data
                self.instructions.append(Run(device, sequence, arguments, reconfigure=first))
                first = False
            elif not isinstance(op, memref.SubviewOp | memref.ReinterpretCastOp | arith.ConstantOp):
                raise refuse(self.parsed, op, f"{op.name} in aiex.configure", "aiex.run and views of arguments")

    def slice(self, op: RunOp, value: SSAValue) -> ArgumentSlice:
        place = self.locate(op, value)
        assert isinstance(value.type, MemRefType)
        if place.argument is None:
            raise refuse(self.parsed, op, "a buffer as argument of a run", "a slice of the sequence's arguments")
        type = memref_of(value.type)
        return ArgumentSlice(place.argument, place.offset * type.element_bytes, type)
