# SPDX-License-Identifier: Apache-2.0
"""Core bodies: from operations to the statement tree of `npu.program`.

Values are named `%<hint>`, made unique within the core; buffers and functions keep their symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, MemRefType
from xdsl.dialects.func import CallOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from npu.mlir.aie import BufferOp, CoreOp, EndOp, LockOp, UseLockOp, tile_place
from npu.mlir.aie_fifo import AcquireOp, ReleaseOp, SubviewAccessOp
from npu.mlir.fifo_spec import AcquireSpec, EndKey
from npu.mlir.text import ParsedModule
from npu.mlir.types import dtype_of, memref_of
from npu.program import (
    Acquire,
    Call,
    Core,
    FifoEnd,
    For,
    If,
    LockUse,
    Op,
    Release,
    Statement,
    TileId,
    UseLock,
    While,
)
from refusal import Refusal

DEFAULT_STACK_BYTES = 1024
ENDLESS_FROM = (1 << 31) - 1
_CMPI = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")

# Operations without regions that a core may compute with; all others are refused.
SCALAR_OPS = frozenset(
    f"arith.{name}"
    for name in (
        "addi", "subi", "muli", "divsi", "divui", "remsi", "remui", "ceildivsi", "ceildivui", "floordivsi", "minsi",
        "maxsi", "minui", "maxui", "andi", "ori", "xori", "shli", "shrsi", "shrui", "addf", "subf", "mulf", "divf",
        "maximumf", "minimumf", "maxnumf", "minnumf", "negf", "cmpi", "cmpf", "select", "index_cast", "index_castui",
        "extsi", "extui", "trunci", "extf", "truncf", "sitofp", "uitofp", "fptosi", "fptoui", "bitcast",
    )
)  # fmt: skip


def core_tile(op: CoreOp) -> TileId:
    """The tile of a core operation."""
    return TileId(*tile_place(op.tile))


def acquires_of(op: CoreOp) -> Iterator[AcquireSpec]:
    """Every acquire in a core: what decides pool sizes."""
    tile = core_tile(op)
    for inner in op.walk():
        if isinstance(inner, AcquireOp):
            yield AcquireSpec(tile, inner.fifo, inner.port_name, inner.count)


class CoreReader:
    """Reads one core."""

    def __init__(
        self,
        parsed: ParsedModule,
        op: CoreOp,
        ends: Mapping[EndKey, FifoEnd],
        buffer_name: Callable[[BufferOp], str],
        lock_name: Callable[[LockOp], str],
        link_files: Mapping[str, str | None],
    ) -> None:
        self.parsed, self.op, self.all_ends = parsed, op, ends
        self.buffer_name, self.lock_name, self.functions = buffer_name, lock_name, link_files
        self.tile = core_tile(op)
        self.names: dict[SSAValue, str] = {}
        self.taken: dict[str, int] = {}
        self.ends: list[FifoEnd] = []
        self.end_index: dict[tuple[str, str], int] = {}
        self.files: dict[str, None] = {}

    def refuse(self, op: Operation, found: str, expected: str) -> Refusal:
        return Refusal(found, expected=expected, where=self.parsed.where(op), next_step="change the core's body")

    # ---- names --------------------------------------------------------------------------------

    def name(self, value: SSAValue) -> str:
        """The value's name; buffers by their symbol."""
        known = self.names.get(value)
        if known is not None:
            return known
        owner = value.owner
        if isinstance(owner, BufferOp):
            name = self.buffer_name(owner)
        else:
            hint = value.name_hint or "v"
            count = self.taken.get(hint, 0)
            self.taken[hint] = count + 1
            # `:` cannot stand in a name, so numbered names never meet written ones.
            name = f"%{hint}:{count}" if count else f"%{hint}"
        self.names[value] = name
        return name

    def read(self) -> Core:
        op = self.op
        blocks = list(op.body.blocks)
        if len(blocks) != 1:
            raise self.refuse(op, f"a body of {len(blocks)} blocks", "structured control flow (scf) in one block")
        if op.elf_file is not None:
            raise self.refuse(op, f"elf_file {op.elf_file.data}", "a body: a finished ELF cannot run here")
        if op.link_with is not None and op.link_files is not None:
            raise self.refuse(op, "link_with and link_files", "one of them")
        body = self.block(blocks[0])
        if op.link_with is not None:
            self.files[op.link_with.data] = None
        for file in op.link_files.data if op.link_files is not None else ():
            self.files[file.data] = None
        dynamic = op.dynamic_objfifo_lowering
        return Core(
            tile=self.tile,
            body=body,
            ends=tuple(self.ends),
            stack_bytes=op.stack_size.value.data if op.stack_size is not None else DEFAULT_STACK_BYTES,
            dynamic_fifo_lowering=bool(dynamic.value.data) if dynamic is not None else False,
            link_files=tuple(self.files),
        )

    # ---- statements ---------------------------------------------------------------------------

    def block(self, block: Block) -> tuple[Statement, ...]:
        statements: list[Statement] = []
        for op in block.ops:
            statement = self.statement(op)
            if statement is not None:
                statements.append(statement)
        return tuple(statements)

    def statement(self, op: Operation) -> Statement | None:
        match op:
            case EndOp() | scf.YieldOp():
                return None
            case SubviewAccessOp():
                return None  # named by its acquire
            case AcquireOp():
                return self.acquire(op)
            case ReleaseOp():
                return Release(self.end(op, op.fifo, op.port_name), op.count)
            case UseLockOp():
                return self.use_lock(op)
            case CallOp():
                return self.call(op)
            case scf.ForOp():
                return self.loop(op)
            case scf.IfOp():
                if op.results:
                    raise self.refuse(op, "scf.if with results", "scf.if without, or arith.select")
                then, otherwise = self.region(op.true_region), self.region(op.false_region)
                return If(self.name(op.cond), then, otherwise)
            case scf.WhileOp():
                return self.endless(op)
            case scf.IndexSwitchOp():
                return self.switch(op)
        return self.scalar(op)

    def region(self, region) -> tuple[Statement, ...]:
        block = region.blocks.first
        return self.block(block) if block is not None else ()

    def end(self, op: Operation, fifo: str, port: str) -> int:
        key = (fifo, port)
        if key not in self.end_index:
            end = self.all_ends.get((self.tile, fifo, port))
            if end is None:
                raise self.refuse(op, f"@{fifo} ({port}) in {self.tile}", "an object FIFO with that end in this core")
            self.end_index[key] = len(self.ends)
            self.ends.append(end)
        return self.end_index[key]

    def acquire(self, op: AcquireOp) -> Acquire:
        end = self.end(op, op.fifo, op.port_name)
        results: list[str | None] = [None] * op.count
        for use in op.subview.uses:
            access = use.operation
            if not isinstance(access, SubviewAccessOp):
                raise self.refuse(access, f"a FIFO view in {access.name}", "aie.objectfifo.subview.access")
            index = access.index.value.data
            if not 0 <= index < op.count:
                raise self.refuse(access, f"element {index}", f"0..{op.count - 1}: {op.count} are acquired")
            if results[index] is None:
                results[index] = self.name(access.output)
            else:
                self.names[access.output] = results[index]
        for index, name in enumerate(results):
            if name is None:
                results[index] = self.unnamed(op.fifo)
        return Acquire(end, op.count, tuple(results))

    def unnamed(self, hint: str) -> str:
        count = self.taken.get(hint, 0)
        self.taken[hint] = count + 1
        return f"%{hint}:{count}"

    def use_lock(self, op: UseLockOp) -> UseLock:
        return UseLock(lock_use(self.parsed, op, self.lock_name), acquire=op.properties["action"].data != "Release")

    def call(self, op: CallOp) -> Call:
        if op.results:
            raise self.refuse(op, f"a result of @{op.callee.string_value()}", "a function without results")
        callee = op.callee.string_value()
        if callee not in self.functions:
            raise self.refuse(op, f"a call of @{callee}", "a private func.func of that name in the device or module")
        if self.functions[callee] is not None:
            self.files[self.functions[callee]] = None
        return Call(callee, tuple(self.name(value) for value in op.arguments), self.parsed.where(op))

    def loop(self, op: scf.ForOp) -> For | While:
        if op.iter_args:
            raise self.refuse(op, "scf.for with iter_args", "a loop without; keep state in a buffer")
        block = op.body.block
        bounds = [_constant(value) for value in (op.lb, op.ub, op.step)]
        variable = block.args[0]
        if (
            bounds[0] == 0 and bounds[2] == 1 and bounds[1] is not None
            and bounds[1] >= ENDLESS_FROM and not variable.uses.get_length()
        ):  # fmt: skip
            return While(self.block(block))
        return For(self.name(variable), self.name(op.lb), self.name(op.ub), self.name(op.step), self.block(block))

    def endless(self, op: scf.WhileOp) -> While:
        before = list(op.before_region.block.ops)
        condition = before[-1]
        if op.results or op.arguments or len(before) > 2 or _constant(condition.operands[0]) not in (1, -1, True):
            raise self.refuse(op, "scf.while with a condition", "an endless one, or scf.for")
        return While(self.block(op.after_region.block))

    def switch(self, op: scf.IndexSwitchOp) -> Op:
        """How aie-opt writes FIFO rotation: a choice between buffers. Operands: index, default, then the cases."""
        chosen = []
        for region in (op.default_region, *op.case_regions):
            last = region.block.last_op
            if region.block.first_op is not last or len(last.operands) != 1:
                raise self.refuse(op, "scf.index_switch with computing cases", "cases that only yield a buffer")
            chosen.append(self.name(last.operands[0]))
        cases = tuple(op.cases.get_values())
        type = memref_of(op.results[0].type)
        operands = (self.name(op.arg), *chosen)
        return Op(
            op.name, self.name(op.results[0]), operands, (("cases", cases), ("type", type)), self.parsed.where(op)
        )

    def scalar(self, op: Operation) -> Op:
        where = self.parsed.where(op)
        operands = tuple(self.name(value) for value in op.operands)
        if isinstance(op, arith.ConstantOp):
            return Op(
                op.name, self.name(op.result), (), (("value", _value(op.value)), ("type", dtype_of(op.result.type)))
            )
        if isinstance(op, memref.StoreOp):
            return Op(op.name, None, operands, (("type", dtype_of(op.value.type)),), where)
        if isinstance(op, memref.LoadOp):
            return Op(op.name, self.name(op.res), operands, (("type", dtype_of(op.res.type)),), where)
        if isinstance(op, memref.SubviewOp | memref.ReinterpretCastOp):
            return self.view(op, operands, where)
        if op.name not in SCALAR_OPS or op.regions:
            raise self.refuse(op, f"operation {op.name}", "scf.for, scf.if, func.call, arith, memref.load and store")
        attributes: list[tuple[str, object]] = [("type", dtype_of(op.results[0].type))]
        first = op.operands[-1].type
        attributes.append(("operand_type", dtype_of(first)))
        if isinstance(op, arith.CmpiOp):
            attributes.append(("predicate", _CMPI[op.predicate.value.data]))
        elif isinstance(op, arith.CmpfOp):
            attributes.append(("predicate", op.predicate.value.data))
        return Op(op.name, self.name(op.results[0]), operands, tuple(attributes), where)

    def view(self, op: memref.SubviewOp | memref.ReinterpretCastOp, operands: tuple[str, ...], where: str) -> Op:
        if len(op.operands) != 1 and isinstance(op, memref.ReinterpretCastOp):
            raise self.refuse(op, "a cast with computed offsets", "constants")
        result: Attribute = op.result.type
        assert isinstance(result, MemRefType)
        attributes = (
            ("offsets", tuple(op.static_offsets.get_values())),
            ("sizes", tuple(op.static_sizes.get_values())),
            ("strides", tuple(op.static_strides.get_values())),
            ("type", memref_of(result)),
        )
        return Op(op.name, self.name(op.result), operands, attributes, where)


def lock_use(parsed: ParsedModule, op: UseLockOp, lock_name: Callable[[LockOp], str]) -> LockUse:
    """What a use_lock does to which lock."""
    owner = op.lock.owner
    if not isinstance(owner, LockOp):
        raise Refusal("a lock that is not an aie.lock", where=parsed.where(op), next_step="name an aie.lock")
    value = op.value.value.data if op.value is not None else 1
    return LockUse(lock_name(owner), value, equal=op.properties["action"].data == "Acquire")


def _constant(value: SSAValue) -> int | None:
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        return owner.value.value.data
    return None


def _value(attribute: Attribute) -> int | float:
    if isinstance(attribute, IntegerAttr | FloatAttr):
        return attribute.value.data
    raise Refusal(f"constant {attribute}", expected="an integer or float")
