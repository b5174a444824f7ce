# SPDX-License-Identifier: Apache-2.0
"""Affine loops, loads, stores and index arithmetic of core bodies, as the plain operations that they stand for.

`mod` and `floordiv` round toward minus infinity and take positive right sides, as MLIR defines them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects import affine
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
    AffineSymExpr,
)

from npu.mlir.types import dtype_of
from npu.program import Assign, For, Op, Statement, While

if TYPE_CHECKING:
    from npu.mlir.read_core import CoreReader

OPERATIONS = (affine.ForOp, affine.ApplyOp, affine.MinOp, affine.LoadOp, affine.StoreOp)
_INDEX = (("type", "index"), ("operand_type", "index"))
_NAMES = {
    AffineBinaryOpKind.Add: "arith.addi", AffineBinaryOpKind.Mul: "arith.muli",
    AffineBinaryOpKind.FloorDiv: "arith.floordivsi", AffineBinaryOpKind.CeilDiv: "arith.ceildivsi",
}  # fmt: skip
MapValue = tuple[list[Statement], list[str]]


def read_affine(core: CoreReader, op: Operation, endless_from: int) -> list[Statement]:
    """The statements of one affine operation."""
    match op:
        case affine.ForOp():
            return _loop(core, op, endless_from)
        case affine.ApplyOp():
            return _named(core, op.result, "arith.minsi", evaluate(core, op, op.map.data, op.mapOperands))
        case affine.MinOp():
            return _named(core, op.result, "arith.minsi", evaluate(core, op, op.map.data, op.arguments))
        case affine.LoadOp():
            before, places = evaluate(core, op, op.map.data, op.indices)
            kind = (("type", dtype_of(op.result.type)),)
            operands = (core.name(op.memref), *places)
            return [*before, Op("memref.load", core.name(op.result), operands, kind, core.parsed.where(op))]
    assert isinstance(op, affine.StoreOp)
    before, places = evaluate(core, op, op.map.data, op.indices)
    operands = (core.name(op.value), core.name(op.memref), *places)
    return [*before, Op("memref.store", None, operands, (("type", dtype_of(op.value.type)),), core.parsed.where(op))]


def evaluate(core: CoreReader, op: Operation, map_: AffineMap, operands: Sequence[SSAValue]) -> MapValue:
    """Statements that compute a map's results, and their names."""
    statements: list[Statement] = []
    names = [core.name(value) for value in operands]

    def emit(name: str, *values: str) -> str:
        result = core.unnamed("affine")
        statements.append(Op(name, result, values, _INDEX))
        return result

    def constant(value: int) -> str:
        result = core.unnamed("affine")
        statements.append(Op("arith.constant", result, (), (("value", value), ("type", "index"))))
        return result

    def of(expression: AffineExpr) -> str:
        match expression:
            case AffineConstantExpr():
                return constant(expression.value)
            case AffineDimExpr():
                return names[expression.position]
            case AffineSymExpr():
                return names[map_.num_dims + expression.position]
        assert isinstance(expression, AffineBinaryOpExpr)
        left, right = of(expression.lhs), of(expression.rhs)
        if expression.kind is AffineBinaryOpKind.Mod:
            return emit("arith.subi", left, emit("arith.muli", right, emit("arith.floordivsi", left, right)))
        return emit(_NAMES[expression.kind], left, right)

    return statements, [of(result) for result in map_.results]


def _fold(core: CoreReader, name: str, value: MapValue) -> tuple[list[Statement], str]:
    """The least or the largest of several results."""
    statements, names = value
    best = names[0]
    for other in names[1:]:
        result = core.unnamed("affine")
        statements.append(Op(name, result, (best, other), _INDEX))
        best = result
    return statements, best


def _named(core: CoreReader, result: SSAValue, name: str, value: MapValue) -> list[Statement]:
    statements, best = _fold(core, name, value)
    return [*statements, Assign((core.name(result),), (best,))]


def _constant(map_: AffineMap) -> int | None:
    only = map_.results[0] if len(map_.results) == 1 else None
    return only.value if isinstance(only, AffineConstantExpr) else None


def _loop(core: CoreReader, op: affine.ForOp, endless_from: int) -> list[Statement]:
    lower, upper = op.lowerBoundMap.data, op.upperBoundMap.data
    variable, *carried = op.body.block.args
    last = _constant(upper)
    endless = last is not None and last >= endless_from and _constant(lower) == 0 and op.step.value.data == 1
    if endless and not variable.uses.get_length() and not carried:
        return [While(core.block(op.body.block))]
    first, start = _fold(core, "arith.maxsi", evaluate(core, op, lower, op.lowerBoundOperands))
    second, end = _fold(core, "arith.minsi", evaluate(core, op, upper, op.upperBoundOperands))
    step = core.unnamed("affine")
    head = [*first, *second, Op("arith.constant", step, (), (("value", op.step.value.data), ("type", "index")))]
    names = tuple(core.name(value) for value in carried)
    before = core.assign(names, op.inits)
    statement = For(core.name(variable), start, end, step, core.block(op.body.block, names))
    after = [Assign(tuple(core.name(value) for value in op.results), names)] if names else []
    return [*head, *before, statement, *after]
