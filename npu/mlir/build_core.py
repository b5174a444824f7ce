# SPDX-License-Identifier: Apache-2.0
"""Builds core bodies: loops, FIFO operations, kernel calls, scalar arithmetic.

Python integers are accepted wherever an integer value is; an `index` value (a loop variable) is cast
where an `i32` is wanted. Constants stand once, at the top of the core.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, MemRefType
from xdsl.dialects.func import CallOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from npu.mlir.aie_fifo import AcquireOp, ReleaseOp, SubviewAccessOp
from npu.mlir.attributes import ObjectFifoSubviewType, int_attr
from npu.mlir.types import memref_type, scalar_type
from npu.program import MemRef
from refusal import Refusal

if TYPE_CHECKING:
    from npu.mlir.build import BufferHandle, Fifo, Kernel

Operand = "SSAValue | BufferHandle | int"
ENDLESS = (1 << 63) - 1
_BINARY = {
    "add": arith.AddiOp, "sub": arith.SubiOp, "mul": arith.MuliOp, "div": arith.DivSIOp, "rem": arith.RemSIOp,
    "min": arith.MinSIOp, "max": arith.MaxSIOp,
}  # fmt: skip


class CoreBuilder:
    """Appends statements to the innermost open block."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._constants: dict[tuple[int, Attribute], arith.ConstantOp] = {}
        self._blocks: list[list[Operation]] = [[]]

    def _append(self, op: Operation) -> Operation:
        self._blocks[-1].append(op)
        return op

    def _refuse(self, found: str, expected: str) -> Refusal:
        return Refusal(found, expected=expected, where=self._where, next_step="correct the design")

    # ---- values ------------------------------------------------------------------------------

    def const(self, value: int, dtype: str = "i32") -> SSAValue:
        """An integer constant."""
        return self._constant(value, scalar_type(dtype))

    def _constant(self, value: int, type: Attribute) -> SSAValue:
        key = (value, type)
        if key not in self._constants:
            op = arith.ConstantOp(IntegerAttr(value, type))
            number = str(value) if value >= 0 else f"m{-value}"
            op.result.name_hint = f"c{number}" if isinstance(type, IndexType) else f"c{number}_{type}"
            self._constants[key] = op
        return self._constants[key].result

    def cast(self, value: SSAValue | int, dtype: str) -> SSAValue:
        """`value` as an integer of type `dtype`; index casts and integer truncation or sign extension are emitted."""
        return self._as_type(value, scalar_type(dtype))

    def _as_type(self, value: SSAValue | int, type: Attribute) -> SSAValue:
        if isinstance(value, int):
            return self._constant(value, type)
        if value.type == type:
            return value
        if isinstance(value.type, IndexType) or isinstance(type, IndexType):
            return self._append(arith.IndexCastOp(value, type)).results[0]
        if isinstance(value.type, IntegerType) and isinstance(type, IntegerType):
            widen = value.type.width.data < type.width.data
            op = arith.ExtSIOp(value, type) if widen else arith.TruncIOp(value, type)
            return self._append(op).results[0]
        raise self._refuse(f"a value of type {value.type}", f"{type}")

    def _pair(self, a: SSAValue | int, b: SSAValue | int) -> tuple[SSAValue, SSAValue]:
        """Both as one integer type: that of the values, i32 where index and i32 meet or both are Python integers."""
        types = {value.type for value in (a, b) if not isinstance(value, int)}
        type = types.pop() if len(types) == 1 else scalar_type("i32")
        return self._as_type(a, type), self._as_type(b, type)

    def binary(self, operation: str, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        """`operation` is one of add, sub, mul, div, rem, min, max (signed)."""
        left, right = self._pair(a, b)
        return self._append(_BINARY[operation](left, right)).results[0]

    def add(self, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        """a + b."""
        return self.binary("add", a, b)

    def mul(self, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        """a * b."""
        return self.binary("mul", a, b)

    def compare(self, predicate: str, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        """An i1; `predicate` is MLIR's: eq, ne, slt, sle, sgt, sge, ult, ..."""
        left, right = self._pair(a, b)
        return self._append(arith.CmpiOp(left, right, predicate)).results[0]

    def select(self, condition: SSAValue, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        """a where the i1 `condition` holds, else b."""
        left, right = self._pair(a, b)
        return self._append(arith.SelectOp(condition, left, right)).results[0]

    def load(self, source: SSAValue | BufferHandle, *indices: SSAValue | int) -> SSAValue:
        """One element of a buffer or FIFO element."""
        value = _value(source)
        return self._append(memref.LoadOp.get(value, self._indices(value, indices))).results[0]

    def store(self, value: SSAValue | int, target: SSAValue | BufferHandle, *indices: SSAValue | int) -> None:
        """Write one integer element."""
        place = _value(target)
        element = self._as_type(value, place.type.element_type)
        self._append(memref.StoreOp.get(element, place, self._indices(place, indices)))

    def _indices(self, place: SSAValue, indices: Sequence[SSAValue | int]) -> list[SSAValue]:
        if not isinstance(place.type, MemRefType) or len(indices) != place.type.get_num_dims():
            raise self._refuse(f"{len(indices)} indices into {place.type}", "one per dimension")
        return [self._as_type(index, IndexType()) for index in indices]

    # ---- FIFOs and calls ---------------------------------------------------------------------

    def acquire(self, fifo: Fifo, port: str, count: int) -> list[SSAValue]:
        """Hold `count` elements; port is "Produce" or "Consume". Returns the elements' memref values."""
        element = memref_type(fifo.element)
        view = ObjectFifoSubviewType(element)
        op = AcquireOp.build(properties=AcquireOp.properties_of(fifo.name, port, count), result_types=[view])
        self._append(op)
        op.subview.name_hint = "held"
        values = []
        for index in range(count):
            access = SubviewAccessOp.build(
                operands=[op.subview], properties={"index": int_attr(index)}, result_types=[element]
            )
            access.output.name_hint = "elem"
            values.append(self._append(access).results[0])
        return values

    def release(self, fifo: Fifo, port: str, count: int) -> None:
        """Give `count` elements back."""
        self._append(ReleaseOp.build(properties=ReleaseOp.properties_of(fifo.name, port, count)))

    def call(self, kernel: Kernel, *arguments: SSAValue | BufferHandle | int) -> None:
        """Call a kernel; integers are converted to the declared type, memrefs must have it."""
        if len(arguments) != len(kernel.arguments):
            raise self._refuse(
                f"{len(arguments)} arguments for @{kernel.name}", f"{len(kernel.arguments)}: {kernel.arguments}"
            )
        operands = []
        for position, (given, wanted) in enumerate(zip(arguments, kernel.arguments, strict=True)):
            if isinstance(wanted, MemRef):
                value = _value(given)
                if isinstance(value, int) or value.type != memref_type(wanted):
                    found = value if isinstance(value, int) else value.type
                    raise self._refuse(f"argument {position} of @{kernel.name} is {found}", str(wanted))
                operands.append(value)
            else:
                operands.append(self._as_type(_value(given), scalar_type(wanted)))
        self._append(CallOp(kernel.name, operands, []))

    # ---- control flow ------------------------------------------------------------------------

    @contextmanager
    def loop(
        self, first: SSAValue | int, upper: SSAValue | int | None = None, step: SSAValue | int = 1
    ) -> Iterator[SSAValue]:
        """`loop(n)` counts 0..n-1; `loop(lower, upper, step)` as range does. Yields the index variable."""
        lower, end = (0, first) if upper is None else (first, upper)
        index = IndexType()
        bounds = [self._as_type(value, index) for value in (lower, end, step)]
        block = Block(arg_types=[index])
        block.args[0].name_hint = "i"
        self._blocks.append([])
        yield block.args[0]
        block.add_ops([*self._blocks.pop(), scf.YieldOp()])
        self._append(scf.ForOp(*bounds, [], Region(block)))

    @contextmanager
    def forever(self) -> Iterator[None]:
        """An endless loop, as mlir-aie's IRON writes it: a for to 2^63 - 1."""
        with self.loop(ENDLESS):
            yield

    @contextmanager
    def when(self, condition: SSAValue) -> Iterator[None]:
        """Statements that run where the i1 `condition` holds."""
        self._blocks.append([])
        yield
        self._append(scf.IfOp(condition, [], Region(Block([*self._blocks.pop(), scf.YieldOp()]))))

    def finish(self, end: Operation) -> Block:
        """The body: constants, statements, `end`."""
        return Block([*self._constants.values(), *self._blocks[0], end])


def _value(thing: SSAValue | BufferHandle | int) -> SSAValue | int:
    """The SSA value of a handle."""
    return thing if isinstance(thing, SSAValue | int) else thing.value
