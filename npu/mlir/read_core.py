# SPDX-License-Identifier: Apache-2.0
"""Core bodies: from operations to the statement tree of `npu.program`.

What loops carry, branches yield, blocks take and functions return becomes assignments; a function with a body is put
in place of its call. Values are named `%<hint>`, made unique within the core; buffers and functions keep their symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from xdsl.dialects import affine, arith, cf, memref, scf
from xdsl.dialects.builtin import IntegerAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from npu.mlir import read_affine
from npu.mlir.aie import BufferOp, CoreOp, EndOp, LockOp, UseLockOp, tile_place
from npu.mlir.aie_fifo import AcquireOp, ReleaseOp, SubviewAccessOp
from npu.mlir.aie_streams import GetCascadeOp, PutCascadeOp
from npu.mlir.fifo_spec import AcquireSpec, EndKey
from npu.mlir.read_values import ValueReader
from npu.mlir.text import ParsedModule
from npu.mlir.types import dtype_of, memref_of
from npu.program import (
    Acquire,
    Assign,
    Blocks,
    Call,
    Core,
    FifoEnd,
    For,
    If,
    Jump,
    LockUse,
    Loop,
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
        bodies: Mapping[str, FuncOp] | None = None,
        global_name: Callable[[Operation, TileId, str], str] | None = None,
    ) -> None:
        self.parsed, self.op, self.all_ends = parsed, op, ends
        self.buffer_name, self.lock_name, self.functions = buffer_name, lock_name, link_files
        self.tile = core_tile(op)
        self.names: dict[SSAValue, str] = {}
        self.taken: dict[str, int] = {}
        self.ends: list[FifoEnd] = []
        self.end_index: dict[tuple[str, str], int] = {}
        self.files: dict[str, None] = {}
        self.bodies = bodies or {}
        self.inside: list[str] = []  # functions that are being put in place
        self._global_name = global_name
        self.values = ValueReader(self.name, parsed.where)

    def global_name(self, op: Operation, symbol: str) -> str:
        """The buffer that holds a memref.global in this core's memory."""
        if self._global_name is None:
            raise self.refuse(op, f"@{symbol}", "a memref.global of this device or module")
        return self._global_name(op, self.tile, symbol)

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
        if op.elf_file is not None:
            raise self.refuse(op, f"elf_file {op.elf_file.data}", "a body: a finished ELF cannot run here")
        if op.link_with is not None and op.link_files is not None:
            raise self.refuse(op, "link_with and link_files", "one of them")
        body = self.graph(op.body, None)
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

    def block(self, block: Block, results: tuple[str, ...] | None = None) -> tuple[Statement, ...]:
        """The statements of a block; `results` are the names that its yield or return assigns."""
        statements: list[Statement] = []
        for op in block.ops:
            if isinstance(op, EndOp | SubviewAccessOp | BufferOp | LockOp):
                continue  # a view is named by its acquire; memory and locks are the device's, wherever they stand
            if isinstance(op, scf.YieldOp | affine.YieldOp | ReturnOp):
                statements += self.assign(results or (), op.operands)
            elif isinstance(op, memref.GetGlobalOp):
                self.names[op.memref] = self.global_name(op, op.name_.root_reference.data)
            elif isinstance(op, read_affine.OPERATIONS):
                statements += read_affine.read_affine(self, op, ENDLESS_FROM)
            elif isinstance(op, scf.ForOp | scf.IfOp | scf.WhileOp | CallOp):
                statements += self.structured(op)
            else:
                statements.append(self.statement(op))
        return tuple(statements)

    def assign(self, targets: Sequence[str], values: Sequence[SSAValue]) -> list[Statement]:
        """Nothing where there is nothing to pass on."""
        return [Assign(tuple(targets), tuple(self.name(value) for value in values))] if targets else []

    def structured(self, op: Operation) -> list[Statement]:
        match op:
            case scf.ForOp():
                return self.loop(op)
            case scf.WhileOp():
                return self.while_loop(op)
            case scf.IfOp():
                results = tuple(self.name(value) for value in op.results)
                then, otherwise = self.region(op.true_region, results), self.region(op.false_region, results)
                return [If(self.name(op.cond), then, otherwise)]
        assert isinstance(op, CallOp)
        return self.call(op)

    def statement(self, op: Operation) -> Statement:
        match op:
            case AcquireOp():
                return self.acquire(op)
            case ReleaseOp():
                return Release(self.end(op, op.fifo, op.port_name), op.count)
            case UseLockOp():
                return self.use_lock(op)
            case scf.IndexSwitchOp():
                return self.switch(op)
            case PutCascadeOp():
                return Op(op.name, None, (self.name(op.cascade_value),), (), self.parsed.where(op))
            case GetCascadeOp():
                return Op(op.name, self.name(op.cascade_value), (), (), self.parsed.where(op))
        return self.values.read(op)

    def cases(
        self, op: cf.SwitchOp, jump: Callable[[Block, Sequence[SSAValue]], tuple[Statement, ...]]
    ) -> tuple[Statement, ...]:
        """cf.switch as a chain of comparisons: how a rotating FIFO looks once aie-opt has lowered it."""
        chain = jump(op.default_block, op.default_operands)
        values = op.case_values.get_values() if op.case_values is not None else ()
        kind = ("type", dtype_of(op.flag.type))
        for value, block, arguments in reversed(list(zip(values, op.case_blocks, op.case_operand, strict=True))):
            number, equal = self.unnamed("case"), self.unnamed("is_case")
            chain = (
                Op("arith.constant", number, (), (("value", int(value)), kind)),
                Op("arith.cmpi", equal, (self.name(op.flag), number), (kind, ("operand_type", kind[1]),
                                                                       ("predicate", "eq"))),
                If(equal, jump(block, arguments), chain),
            )  # fmt: skip
        return chain

    def region(self, region: Region, results: tuple[str, ...] = ()) -> tuple[Statement, ...]:
        block = region.blocks.first
        return self.block(block, results) if block is not None else ()

    def graph(self, region: Region, results: tuple[str, ...] | None) -> tuple[Statement, ...]:
        """A region of one block, or of blocks that branch to each other."""
        blocks = list(region.blocks)
        if len(blocks) == 1:
            return self.block(blocks[0], results)
        number = {block: index for index, block in enumerate(blocks)}
        return (Blocks(tuple(self.branching(block, number, results) for block in blocks)),)

    def branching(
        self, block: Block, number: Mapping[Block, int], results: tuple[str, ...] | None
    ) -> tuple[Statement, ...]:
        last = block.last_op
        if not isinstance(last, cf.BranchOp | cf.ConditionalBranchOp | cf.SwitchOp):
            if not isinstance(last, EndOp | ReturnOp):
                raise self.refuse(last or self.op, "a block without end", "cf.br, cf.cond_br, func.return or aie.end")
            return self.block(block, results)
        last.detach()
        body = self.block(block)
        block.add_op(last)

        def jump(target: Block, values: Sequence[SSAValue]) -> tuple[Statement, ...]:
            arguments = [self.name(argument) for argument in target.args]
            return (*self.assign(arguments, values), Jump(number[target]))

        if isinstance(last, cf.SwitchOp):
            return (*body, *self.cases(last, jump))
        if isinstance(last, cf.BranchOp):
            return (*body, *jump(last.successor, last.arguments))
        then, otherwise = jump(last.then_block, last.then_arguments), jump(last.else_block, last.else_arguments)
        return (*body, If(self.name(last.cond), then, otherwise))

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

    def call(self, op: CallOp) -> list[Statement]:
        """A kernel, or a function with a body, which is put in place of the call."""
        callee = op.callee.string_value()
        body = self.bodies.get(callee)
        if body is not None:
            return self.inline(op, callee, body)
        if op.results:
            raise self.refuse(op, f"a result of @{callee}", "a kernel without results: it writes through its arguments")
        if callee not in self.functions:
            raise self.refuse(op, f"a call of @{callee}", "a func.func of that name in the device or module")
        if self.functions[callee] is not None:
            self.files[self.functions[callee]] = None
        return [Call(callee, tuple(self.name(value) for value in op.arguments), self.parsed.where(op))]

    def inline(self, op: CallOp, callee: str, function: FuncOp) -> list[Statement]:
        if callee in self.inside:
            raise self.refuse(op, f"@{callee} calls itself", "a loop")
        for inner in function.walk():
            if isinstance(inner, AcquireOp | ReleaseOp):
                raise self.refuse(inner, f"{inner.name} in @{callee}", "object FIFO operations in the core itself")
        self.inside.append(callee)
        results = tuple(self.name(value) for value in op.results)
        entry = function.body.blocks.first
        assert entry is not None
        arguments = [self.name(argument) for argument in entry.args]
        statements = [*self.assign(arguments, op.arguments), *self.graph(function.body, results)]
        self.inside.pop()
        return statements

    def loop(self, op: scf.ForOp) -> list[Statement]:
        block = op.body.block
        bounds = [_constant(value) for value in (op.lb, op.ub, op.step)]
        variable, *carried = block.args
        if (
            bounds[0] == 0 and bounds[2] == 1 and bounds[1] is not None
            and bounds[1] >= ENDLESS_FROM and not variable.uses.get_length() and not carried
        ):  # fmt: skip
            return [While(self.block(block))]
        names = tuple(self.name(value) for value in carried)
        before = self.assign(names, op.iter_args)
        bounds_names = (self.name(op.lb), self.name(op.ub), self.name(op.step))
        statement = For(self.name(variable), *bounds_names, self.block(block, names))
        after = [Assign(tuple(self.name(value) for value in op.results), names)] if names else []
        return [*before, statement, *after]

    def while_loop(self, op: scf.WhileOp) -> list[Statement]:
        head, body = op.before_region.block, op.after_region.block
        condition = head.last_op
        if not isinstance(condition, scf.ConditionOp):
            raise self.refuse(op, "scf.while without scf.condition", "scf.condition at the end of its first region")
        passed = tuple(condition.args)
        carried = tuple(self.name(argument) for argument in head.args)
        if not passed and not carried and _constant(condition.condition) in (1, -1, True) and len(list(head.ops)) <= 2:
            return [While(self.block(body))]
        results = tuple(self.name(value) for value in op.results)
        inner = tuple(self.name(argument) for argument in body.args)
        condition.detach()
        first = self.block(head)
        head.add_op(condition)
        first = (*first, *self.assign((*results, *inner), (*passed, *passed)))
        statement = Loop(first, self.name(condition.condition), self.block(body, carried))
        return [*self.assign(carried, op.arguments), statement]

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
