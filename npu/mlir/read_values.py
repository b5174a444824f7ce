# SPDX-License-Identifier: Apache-2.0
"""Operations that compute values in a core (arith, math, memref, vector), as `npu.program.Op`.

Attributes of every Op: `type`, the element type of its result; `operand_type`, that of its last operand; and for
vectors `shape`, the result's, or the stored vector's. What is not in the tables is refused by name and location.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith, memref, vector
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IntegerAttr,
    MemRefType,
    VectorType,
)
from xdsl.ir import Attribute, Operation

from npu.mlir.memref_data import CopyOp
from npu.mlir.types import dtype_of, memref_of
from npu.program import Op
from refusal import Refusal

_CMPI = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
DYNAMIC = -(2**63)

SCALAR_OPS = frozenset(
    f"arith.{name}"
    for name in (
        "addi", "subi", "muli", "divsi", "divui", "remsi", "remui", "ceildivsi", "ceildivui", "floordivsi", "minsi",
        "maxsi", "minui", "maxui", "andi", "ori", "xori", "shli", "shrsi", "shrui", "addf", "subf", "mulf", "divf",
        "remf", "maximumf", "minimumf", "maxnumf", "minnumf", "negf", "cmpi", "cmpf", "select", "index_cast",
        "index_castui", "extsi", "extui", "trunci", "extf", "truncf", "sitofp", "uitofp", "fptosi", "fptoui", "bitcast",
    )
) | frozenset(f"math.{name}" for name in ("absf", "absi", "sqrt", "rsqrt", "exp", "exp2", "log", "tanh", "fma"))  # fmt: skip
VECTOR_OPS = frozenset(
    f"vector.{name}"
    for name in (
        "load", "store", "transfer_read", "transfer_write", "broadcast", "extract", "insert", "fma", "reduction",
        "bitcast", "shuffle",
    )
)  # fmt: skip
RESHAPES = ("memref.cast", "memref.collapse_shape", "memref.expand_shape", "memref.memory_space_cast")


class ValueReader:
    """Reads one operation; `name` gives a value's name, `where` an operation's location."""

    def __init__(self, name: Callable[..., str], where: Callable[[Operation], str]) -> None:
        self.name, self.where = name, where

    def refuse(self, op: Operation, found: str, expected: str) -> Refusal:
        return Refusal(found, expected=expected, where=self.where(op), next_step="change the core's body")

    def read(self, op: Operation) -> Op:
        operands = tuple(self.name(value) for value in op.operands)
        match op:
            case arith.ConstantOp():
                return self.constant(op)
            case memref.StoreOp():
                return Op(op.name, None, operands, (("type", dtype_of(op.value.type)),), self.where(op))
            case memref.LoadOp():
                return Op(op.name, self.name(op.res), operands, (("type", dtype_of(op.res.type)),), self.where(op))
            case memref.SubviewOp() | memref.ReinterpretCastOp():
                return self.view(op, operands)
            case CopyOp():
                return Op(op.name, None, operands, (("type", dtype_of(op.source.type.element_type)),), self.where(op))
            case memref.AssumeAlignmentOp():
                result = self.name(op.results[0]) if op.results else None
                return Op(op.name, result, operands[:1], (), self.where(op))
            case _ if op.name in RESHAPES:
                return self.reshape(op, operands)
        if op.regions or op.name not in SCALAR_OPS | VECTOR_OPS:
            expected = "scf, cf, func.call, arith, memref and vector loads and stores, as the README lists them"
            raise self.refuse(op, f"operation {op.name} in a core", expected)
        return self.compute(op, operands)

    def constant(self, op: arith.ConstantOp) -> Op:
        value = op.value
        kind = op.result.type
        if isinstance(value, DenseIntOrFPElementsAttr) and isinstance(kind, VectorType):
            numbers = tuple(value.get_values())
            shape = tuple(kind.get_shape())
            attributes = (("value", numbers), ("type", dtype_of(kind.element_type)), ("shape", shape))
            return Op(op.name, self.name(op.result), (), attributes)
        if not isinstance(value, IntegerAttr | FloatAttr):
            raise self.refuse(op, f"constant {value}", "an integer, a float or a dense vector of them")
        return Op(op.name, self.name(op.result), (), (("value", value.value.data), ("type", dtype_of(kind))))

    def view(self, op: memref.SubviewOp | memref.ReinterpretCastOp, operands: tuple[str, ...]) -> Op:
        result: Attribute = op.result.type
        assert isinstance(result, MemRefType)
        attributes = (
            ("offsets", tuple(op.static_offsets.get_values())),
            ("sizes", tuple(op.static_sizes.get_values())),
            ("strides", tuple(op.static_strides.get_values())),
            ("type", memref_of(result)),
        )
        return Op(op.name, self.name(op.result), operands, attributes, self.where(op))

    def reshape(self, op: Operation, operands: tuple[str, ...]) -> Op:
        if len(operands) != 1:
            raise self.refuse(op, f"{op.name} with computed sizes", "constants")
        kind = memref_of(op.results[0].type)
        return Op(op.name, self.name(op.results[0]), operands, (("shape", kind.shape), ("type", kind)), self.where(op))

    def compute(self, op: Operation, operands: tuple[str, ...]) -> Op:
        kind = op.results[0].type if op.results else op.operands[0].type
        attributes: list[tuple[str, object]] = [("type", _element(kind))]
        if isinstance(kind, VectorType):
            attributes.append(("shape", tuple(kind.get_shape())))
        elif isinstance(op.operands[0].type, VectorType):
            attributes.append(("operand_shape", tuple(op.operands[0].type.get_shape())))
        attributes.append(("operand_type", _element(op.operands[-1].type)))
        if isinstance(op, arith.CmpiOp):
            attributes.append(("predicate", _CMPI[op.predicate.value.data]))
        elif isinstance(op, arith.CmpfOp):
            attributes.append(("predicate", op.predicate.value.data))
        elif isinstance(op, vector.TransferReadOp | vector.TransferWriteOp):
            self.transfer(op)
        elif isinstance(op, vector.ExtractOp | vector.InsertOp):
            attributes.append(("position", tuple(op.static_position.get_values())))
        elif isinstance(op, vector.ReductionOp):
            attributes.append(("kind", op.kind.data.value if hasattr(op.kind.data, "value") else str(op.kind.data)))
        elif isinstance(op, vector.ShuffleOp):
            attributes.append(("mask", tuple(op.mask.get_values())))
        result = self.name(op.results[0]) if op.results else None
        return Op(op.name, result, operands, tuple(attributes), self.where(op))

    def transfer(self, op: vector.TransferReadOp | vector.TransferWriteOp) -> None:
        """Only the minor identity map without a mask: consecutive elements of the innermost dimensions."""
        map_ = op.permutation_map.data
        identity = [str(result) for result in map_.results]
        minor = [f"d{axis}" for axis in range(map_.num_dims - len(identity), map_.num_dims)]
        if op.mask is not None or identity != minor:
            raise self.refuse(op, f"{op.name} with a mask or the map {map_}", "the minor identity map, no mask")


def _element(kind: Attribute) -> str:
    if isinstance(kind, VectorType | MemRefType):
        kind = kind.element_type
    return dtype_of(kind)
