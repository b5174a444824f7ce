# SPDX-License-Identifier: Apache-2.0
"""Register writes of a lowered sequence, to tasks, lock values and parameters.

An instruction stream has no branches, so what a BD holds when its number is pushed into a task queue is known here:
each push becomes a ConfigureTask with the chain as the registers then say it, and a StartTask. The ConfigureTask
stands where the first of the chain's BDs was first written after its last push, so that the twin finds a BD that is
rewritten in flight. A write to a register that is not modelled is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from xdsl.ir import Operation

from npu.mlir.aiex_registers import PushQueueOp, WriteBdOp
from npu.mlir.array_memory import WORD, ArrayMemory
from npu.mlir.registers import (
    BURST_BYTES,
    FIELDS,
    Register,
    bd_offset,
    bd_words,
    decode,
    encode,
    register_at,
    signed,
)
from npu.program import (
    BufferDescriptor,
    Channel,
    Dim,
    Direction,
    LockUse,
    SetLock,
    StartTask,
    TileId,
    TileKind,
    WriteParameter,
)
from refusal import Refusal

if TYPE_CHECKING:
    from npu.mlir.read_sequence import SequenceReader

FULL = 0xFFFFFFFF
CONTROLLER = 0xFF00  # who gets a channel's tokens: the twin hands them to the sequence anyway
_MODELLED = (
    "a BD, a task queue, a channel's controller, a lock, data memory, or a timer, event, counter or trace register"
)


class Registers:
    """The registers that one sequence has written."""

    def __init__(self, reader: SequenceReader, memory: ArrayMemory, where: Callable[[Operation], str]) -> None:
        self.reader, self.memory, self.where = reader, memory, where
        self.words: dict[tuple[TileId, int], list[int | None]] = {}
        self.patches: dict[tuple[TileId, int], tuple[int, int]] = {}
        self.slots: dict[tuple[TileId, int], int] = {}  # where the first write since the last push stands
        self.pushed: dict[tuple[Channel, int, bool, int], int] = {}

    def refuse(self, op: Operation, found: str, expected: str) -> Refusal:
        return Refusal(found, expected=expected, where=self.where(op), next_step="change the operation")

    # ---- writes -------------------------------------------------------------------------------

    def write(self, op: Operation, tile: TileId, offset: int, value: int, mask: int = FULL) -> None:
        """The bits of `mask` of one register."""
        known = self.memory.array.contains(tile)
        register = register_at(tile.kind, offset) if known and offset % WORD == 0 else None
        if register is None:
            raise self.refuse(op, f"a write of {value:#x} to offset {offset:#x} of {tile}", _MODELLED)
        match register.kind:
            case "memory":
                self.write_memory(op, tile, register.index, value, mask)
            case "bd":
                self.write_bd_word(op, tile, register, value, mask)
            case "queue":
                self.write_queue(op, Channel(tile, register.direction, register.index), value, mask)
            case "channel":
                self.write_channel(op, tile, value & mask)
            case "lock":
                if mask & 0x3F != 0x3F:
                    raise self.refuse(op, f"a part of lock {register.index} of {tile}", "its whole value")
                self.reader.instructions.append(SetLock(self.memory.lock(tile, register.index), value & 0x3F))
            case "core":
                self.write_core(op, tile, value, mask)
            case _:
                self.memory.watched[f"writes to {register.name} registers: no value depends on them"] += 1

    def write_channel(self, op: Operation, tile: TileId, value: int) -> None:
        if value & ~CONTROLLER:
            raise self.refuse(
                op, f"bits {value:#x} of a channel's control register of {tile}", "its controller id alone"
            )
        self.memory.watched["writes to token controller registers: no value depends on them"] += 1

    def write_core(self, op: Operation, tile: TileId, value: int, mask: int) -> None:
        """A configured core runs: enabling it changes nothing. Stopping or resetting it is not modelled."""
        if value & mask & 2 or (mask & 1 and not value & 1):
            raise self.refuse(op, f"{value:#x} in the control register of {tile}", "1: the core is enabled")
        self.memory.watched["writes that enable a core: it runs already"] += 1

    def write_memory(self, op: Operation, tile: TileId, byte: int, value: int, mask: int) -> None:
        name, offset = self.locate(op, tile, byte)
        self.memory.reach(name, offset + WORD)
        self.reader.instructions.append(WriteParameter(name, offset // WORD, value, mask))

    def write_bd_word(self, op: Operation, tile: TileId, register: Register, value: int, mask: int) -> None:
        key = (tile, register.index)
        if key in self.memory.static:
            raise self.refuse(
                op, f"BD {key[1]} of {tile}, which a program of the array uses", "a BD that only tasks use"
            )
        words = self.words.setdefault(key, [None] * bd_words(tile.kind))
        before = words[register.word]
        if mask != FULL and before is None:
            raise self.refuse(
                op, f"a masked write to word {register.word} of BD {key[1]} of {tile}", "a whole write before"
            )
        words[register.word] = value if before is None else before & ~mask & FULL | value & mask
        if tile.kind is TileKind.SHIM and register.word == 1:
            self.patches.pop(key, None)
        self.touch(key)

    def touch(self, key: tuple[TileId, int]) -> None:
        """The BD changes here: a place for its ConfigureTask, unless it has one since its last push."""
        if key not in self.slots:
            self.slots[key] = len(self.reader.instructions)
            self.reader.instructions.append(None)

    def forget(self, tile: TileId, ids: list[int]) -> None:
        """Another operation has configured these BDs."""
        for number in ids:
            for table in (self.words, self.patches, self.slots):
                table.pop((tile, number), None)

    def patch(self, op: Operation, tile: TileId, offset: int, argument: int, plus: int) -> None:
        """The address of an argument into a shim BD."""
        register = register_at(tile.kind, offset)
        if register is None or register.kind != "bd" or tile.kind is not TileKind.SHIM or register.word != 1:
            raise self.refuse(op, f"an address patch at {offset:#x} of {tile}", "word 1 of a shim BD")
        key = (tile, register.index)
        self.words.setdefault(key, [None] * bd_words(tile.kind))[1] = 0
        self.patches[key] = (argument, plus)
        self.touch(key)

    def write_bd(self, op: WriteBdOp) -> None:
        """aiex.npu.writebd, as mlir-aie of 2026-03 encodes it (it leaves out a memtile's third size)."""
        tile = TileId(op.column.value.data, op.row.value.data)
        kind = tile.kind
        given = {
            "length": op.buffer_length, "packet": op.enable_packet, "packet_id": op.packet_id,
            "packet_type": op.packet_type, "size0": op.d0_size, "step0": op.d0_stride, "size1": op.d1_size,
            "step1": op.d1_stride, "step2": op.d2_stride, "iteration": op.iteration_current,
            "iterations": op.iteration_size, "iteration_step": op.iteration_stride, "next": op.next_bd,
            "use_next": op.use_next_bd, "valid": op.valid_bd, "release_value": op.lock_rel_val,
            "release_id": op.lock_rel_id, "acquire": op.lock_acq_enable, "acquire_value": op.lock_acq_val,
            "acquire_id": op.lock_acq_id, "before0": op.d0_zero_before, "before1": op.d1_zero_before,
            "before2": op.d2_zero_before, "after0": op.d0_zero_after, "after1": op.d1_zero_after,
            "after2": op.d2_zero_after,
        }  # fmt: skip
        values = {name: item.value.data for name, item in given.items() if item is not None and name in FIELDS[kind]}
        if kind is not TileKind.SHIM:
            values["address"] = op.buffer_offset.value.data // (WORD if kind is TileKind.CORE else 1)
        for word, value in enumerate(encode(kind, values)):
            self.write(op, tile, bd_offset(kind, op.bd_id.value.data) + WORD * word, value)
        if op.ddr_id is not None:
            at = bd_offset(kind, op.bd_id.value.data) + WORD
            self.patch(op, tile, at, op.ddr_id.value.data, op.buffer_offset.value.data)

    # ---- pushes -------------------------------------------------------------------------------

    def push_queue(self, op: PushQueueOp) -> None:
        channel = Channel(
            TileId(op.column.value.data, op.row.value.data),
            Direction(op.properties["direction"].data),
            op.channel.value.data,
        )
        self.push(op, channel, op.bd_id.value.data, bool(op.issue_token.value.data), op.repeat_count.value.data)

    def write_queue(self, op: Operation, channel: Channel, value: int, mask: int) -> None:
        if mask != FULL:
            raise self.refuse(op, f"a part of the task queue of {channel}", "a whole write")
        number = value & (0x3F if channel.tile.kind is TileKind.MEMTILE else 0xF)
        self.push(op, channel, number, bool(value >> 31), value >> 16 & 0xFF)

    def push(self, op: Operation, channel: Channel, first: int, token: bool, repeat: int) -> None:
        """Start the chain that begins at BD `first`."""
        if self.reader.traces(channel, "task start"):
            return
        ids, bds = self.chain(op, channel, first)
        key = (channel, first, token, repeat)
        fresh = [self.slots[channel.tile, n] for n in ids if (channel.tile, n) in self.slots]
        number = self.pushed.get(key)
        if fresh or number is None or self.reader.configured[number].bds != bds:
            slot = min(fresh) if fresh else None
            number = self.pushed[key] = self.reader.new_task(channel, bds, token, repeat, self.where(op), slot)
        for each in ids:
            self.slots.pop((channel.tile, each), None)
        self.reader.instructions.append(StartTask(number))
        if token:
            self.reader.tokens.setdefault(channel, []).append(number)

    def chain(self, op: Operation, channel: Channel, first: int) -> tuple[list[int], tuple[BufferDescriptor, ...]]:
        ids: list[int] = []
        bds: list[BufferDescriptor] = []
        number: int | None = first
        while number is not None and number not in ids:
            ids.append(number)
            bd, number = self.descriptor(op, channel, number)
            bds.append(bd)
        for index, bd in enumerate(bds):
            bds[index] = replace(bd, next=ids.index(bd.next) if bd.next is not None else None)
        return ids, tuple(bds)

    def descriptor(self, op: Operation, channel: Channel, number: int) -> tuple[BufferDescriptor, int | None]:
        """One BD as its registers say it, `next` being a BD number, and that number again."""
        tile = channel.tile
        name = f"BD {number} of {tile}"
        words = self.words.get((tile, number))
        if words is None or None in words:
            raise self.refuse(
                op, f"{name}, of which the sequence has not written all words", "a BD that it has written"
            )
        f = decode(tile.kind, tuple(word or 0 for word in words))
        for key, meaning in (
            ("compress", "compression"),
            ("suppress_tlast", "suppressed TLAST"),
            ("iteration", "an iteration under way"),
        ):
            if f.get(key):
                raise self.refuse(op, f"{name} with {meaning}", "none")
        if not f["valid"]:
            raise self.refuse(op, f"{name}, which is not valid", "its valid bit")
        dims, padding = self.pattern(op, name, f)
        iteration = Dim(f["iterations"] + 1, f["iteration_step"] + 1) if f["iterations"] else Dim(1, 0)
        buffer, argument, offset = self.place(op, tile, number, f.get("address"))
        if buffer is not None:
            span = sum((dim.size - 1) * dim.stride for dim in dims) + 1 if dims else f["length"]
            self.memory.reach(buffer, offset + WORD * (span + (iteration.size - 1) * iteration.stride))
        after = f["next"] if f["use_next"] else None
        acquire, release = self.lock_uses(op, tile, name, f)
        bd = BufferDescriptor(
            element_bytes=WORD, offset=offset // WORD, length=f["length"], buffer=buffer, argument=argument, dims=dims,
            iteration=iteration, padding=padding, acquire=acquire, release=release, next=after, bd_id=number,
            packet=(f["packet_type"], f["packet_id"]) if f["packet"] else None,
            burst_bytes=BURST_BYTES[f["burst"]] if f.get("burst") else 0, where=self.where(op),
        )  # fmt: skip
        return bd, after

    def place(
        self, op: Operation, tile: TileId, number: int, address: int | None
    ) -> tuple[str | None, int | None, int]:
        """(buffer, argument, byte offset)."""
        if address is None:
            patch = self.patches.get((tile, number))
            if patch is None:
                raise self.refuse(op, f"BD {number} of {tile} without an argument's address", "aiex.npu.address_patch")
            argument, plus = patch
            if not 0 <= argument < len(self.reader.op.body.block.args) or plus % WORD:
                raise self.refuse(
                    op, f"argument {argument} + {plus} bytes", "an argument of the sequence and whole words"
                )
            return None, argument, plus
        byte = WORD * address
        where = self.memory.window(tile, byte) if tile.kind is TileKind.MEMTILE else (tile, byte)
        return self.locate(op, *where)[0], None, self.locate(op, *where)[1]

    def locate(self, op: Operation, tile: TileId, byte: int) -> tuple[str, int]:
        found = self.memory.memory(tile, byte) if self.memory.array.contains(tile) else f"{tile}, outside the array"
        if isinstance(found, str):
            raise self.refuse(op, found, "a word of a tile's data memory")
        return found

    def lock_uses(
        self, op: Operation, tile: TileId, name: str, f: dict[str, int]
    ) -> tuple[LockUse | None, LockUse | None]:
        """Acquire (a negative value: at least, a positive one: exactly) and release."""
        acquire = release = None
        if f["acquire"]:
            value = signed(f["acquire_value"])
            acquire = LockUse(self.lock(op, tile, f["acquire_id"]), abs(value), equal=value > 0)
        value = signed(f["release_value"])
        if value < 0:
            raise self.refuse(op, f"{name}, which releases {value}", "a release of 0 or more")
        if value:
            release = LockUse(self.lock(op, tile, f["release_id"]), value)
        return acquire, release

    def lock(self, op: Operation, tile: TileId, number: int) -> str:
        owner, index = self.memory.lock_window(tile, number)
        if not self.memory.array.contains(owner):
            raise self.refuse(
                op, f"lock {number} in a BD of {tile}, of {owner} outside the array", "a lock of the array"
            )
        return self.memory.lock(owner, index)

    def pattern(
        self, op: Operation, name: str, f: dict[str, int]
    ) -> tuple[tuple[Dim, ...], tuple[tuple[int, int], ...]]:
        """Dimensions and padding, outermost first; a size of 0 takes what is left of the length."""
        last = 3 if "step3" in f else 2
        rest, dims, pads = f["length"], [], []
        for axis in range(last + 1):
            pad = (f.get(f"before{axis}", 0), f.get(f"after{axis}", 0))
            size = f.get(f"size{axis}", 0) if axis < last else 0
            if size == 0 or size + sum(pad) > rest:
                size = rest - sum(pad)
            if size <= 0 or rest % (size + sum(pad)):
                raise self.refuse(op, f"{name} with {f['length']} words, which its sizes do not divide", "whole rows")
            dims.append(Dim(size, f[f"step{axis}"] + 1))
            pads.append(pad)
            rest //= size + sum(pad)
            if rest == 1:
                break
        kept = [i for i, dim in enumerate(dims) if dim.size > 1 or any(pads[i])] or [0]
        shape = tuple(dims[i] for i in reversed(kept))
        padding = tuple(pads[i] for i in reversed(kept)) if any(any(pads[i]) for i in kept) else ()
        return (() if len(shape) == 1 and shape[0].stride == 1 and not padding else shape), padding
