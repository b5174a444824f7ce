# SPDX-License-Identifier: Apache-2.0
"""Vector values of core bodies as NumPy arrays: arith, math and vector operations that stand in the text itself.

bf16 and f32 are float32 arrays; bf16 results are rounded to bfloat16 after each operation, toward minus infinity: core
code that is lowered from MLIR vectors leaves the rounding register at floor (facts: npu2-hardware.md, trap 3).
Integers wrap at their width. An operation outside the table is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from npu.device import DeviceFault

DTYPES = {
    "i1": np.bool_, "i8": np.int8, "ui8": np.uint8, "i16": np.int16, "i32": np.int32, "ui32": np.uint32, "i64": np.int64,
    "index": np.int64, "bf16": np.float32, "f16": np.float32, "f32": np.float32,
}  # fmt: skip


def floor_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounded toward minus infinity; NaN and infinities stay."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    cut = bits & np.uint32(0xFFFF0000)
    inexact = (bits != cut) & np.isfinite(values)
    cut = np.where(inexact & (bits >> 31 == 1), cut + np.uint32(0x10000), cut)
    cut = np.where(np.isnan(values), np.uint32(0x7FC00000), cut)
    return cut.astype(np.uint32).view(np.float32)


def finish(values: np.ndarray, kind: str) -> np.ndarray:
    """An array of the result's type."""
    with np.errstate(all="ignore"):
        result = np.asarray(values).astype(DTYPES[kind])
    return floor_to_bfloat16(result) if kind == "bf16" else result


def constant(numbers: tuple[int | float, ...], kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """A dense constant; one number fills the vector."""
    values = np.array(numbers * (prod(shape) // len(numbers)))
    return finish(values.reshape(shape), kind)


def _unsigned(values: np.ndarray) -> np.ndarray:
    return values.view(f"u{values.dtype.itemsize}") if values.dtype.kind == "i" else values


def _truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if (b == 0).any():
        raise DeviceFault("a core divides a vector by zero")
    return (np.sign(a) * np.sign(b) * (np.abs(a.astype(np.int64)) // np.abs(b.astype(np.int64)))).astype(np.int64)


def _shifted(shift: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def checked(values: np.ndarray, by: np.ndarray) -> np.ndarray:
        bits = 8 * values.dtype.itemsize
        if (by < 0).any() or (by >= bits).any():
            raise DeviceFault(f"a core shifts a vector of {bits} bits by {by.min()}..{by.max()}")
        return shift(values, by)

    return checked


_TABLE: dict[str, Callable[..., np.ndarray]] = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor, "arith.shli": _shifted(np.left_shift),
    "arith.shrsi": _shifted(np.right_shift), "arith.shrui": _shifted(lambda a, b: _unsigned(a) >> _unsigned(b)),
    "arith.minsi": np.minimum, "arith.maxsi": np.maximum,
    "arith.minui": lambda a, b: np.minimum(_unsigned(a), _unsigned(b)),
    "arith.maxui": lambda a, b: np.maximum(_unsigned(a), _unsigned(b)), "arith.divsi": _truncated,
    "arith.remsi": lambda a, b: a - b * _truncated(a, b), "arith.addf": np.add, "arith.subf": np.subtract,
    "arith.mulf": np.multiply, "arith.divf": np.divide, "arith.negf": np.negative, "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum, "arith.maxnumf": np.fmax, "arith.minnumf": np.fmin, "arith.select": np.where,
    "arith.extsi": lambda a: a, "arith.extui": _unsigned, "arith.trunci": lambda a: a, "arith.extf": lambda a: a,
    "arith.truncf": lambda a: a, "arith.sitofp": lambda a: a, "arith.uitofp": _unsigned, "arith.fptosi": np.trunc,
    "arith.index_cast": lambda a: a, "math.absf": np.abs, "math.absi": np.abs, "math.sqrt": np.sqrt,
    "math.rsqrt": lambda a: 1 / np.sqrt(a), "math.exp": np.exp, "math.exp2": np.exp2, "math.log": np.log,
    "math.tanh": np.tanh, "math.fma": lambda a, b, c: a * b + c, "vector.fma": lambda a, b, c: a * b + c,
}  # fmt: skip
_COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
            "ge": np.greater_equal}  # fmt: skip
_ORDERED = {1: np.equal, 2: np.greater, 3: np.greater_equal, 4: np.less, 5: np.less_equal}
_REDUCE = {
    "add": np.add, "mul": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "minsi": np.minimum, "maxsi": np.maximum, "minimumf": np.minimum, "maximumf": np.maximum, "minnumf": np.fmin,
    "maxnumf": np.fmax,
}  # fmt: skip


def compute(name: str, attributes: dict[str, object], args: tuple) -> np.ndarray | int | float:
    """The value of one operation with a vector among its operands or as its result."""
    kind = str(attributes["type"])
    if name in _TABLE:
        with np.errstate(all="ignore"):
            return finish(_TABLE[name](*args), kind)
    if name == "arith.cmpi":
        predicate = str(attributes["predicate"])
        if predicate[0] == "u":
            args = tuple(_unsigned(value) for value in args)
        return _COMPARE[predicate if predicate in ("eq", "ne") else predicate[1:]](*args)
    if name == "arith.cmpf" and attributes["predicate"] in _ORDERED:
        return _ORDERED[attributes["predicate"]](*args)
    if name == "vector.broadcast":
        return np.broadcast_to(np.asarray(args[0], DTYPES[kind]), attributes["shape"]).copy()
    if name == "vector.extract":
        found = args[0][_position(attributes, args[1:])]
        return found.copy() if isinstance(found, np.ndarray) and found.ndim else found.item()
    if name == "vector.insert":
        result = args[1].copy()
        result[_position(attributes, args[2:])] = args[0]
        return result
    if name == "vector.reduction":
        return _reduction(str(attributes["kind"]), kind, args)
    if name == "vector.shuffle":
        return np.concatenate(args[:2])[list(attributes["mask"])]
    if name in ("vector.bitcast", "arith.bitcast"):
        return _bitcast(args[0], str(attributes["operand_type"]), kind, attributes["shape"])
    raise DeviceFault(f"the twin does not execute {name} on vectors; move it into a kernel")


def _position(attributes: dict[str, object], dynamic: tuple[int, ...]) -> tuple[int, ...]:
    rest = iter(dynamic)
    return tuple(next(rest) if p == -(2**63) else p for p in attributes["position"])  # type: ignore[union-attr]


def _reduction(how: str, kind: str, args: tuple) -> int | float:
    """Lane after lane, from the first: MLIR leaves the order open, and for floats it shows in the last bits."""
    if how not in _REDUCE:
        raise DeviceFault(f"the twin does not reduce vectors by {how}")
    values = [*args[1:], *args[0]]
    total = values[0]
    for value in values[1:]:
        with np.errstate(all="ignore"):
            total = finish(_REDUCE[how](DTYPES[kind](total), DTYPES[kind](value)).reshape(1), kind)[0]
    return DTYPES[kind](total).item()


def _bitcast(values: np.ndarray, source: str, target: str, shape: object) -> np.ndarray:
    raw = to_memory(values, source)
    return from_memory(raw.reshape(-1).view(MEMORY[target]), target).reshape(shape)  # type: ignore[arg-type]


MEMORY = {
    "i1": np.uint8, "i8": np.int8, "ui8": np.uint8, "i16": np.int16, "i32": np.int32, "ui32": np.uint32, "i64": np.int64,
    "index": np.int32, "bf16": np.uint16, "f16": np.float16, "f32": np.float32,
}  # fmt: skip


def to_memory(values: np.ndarray, kind: str) -> np.ndarray:
    """A vector as it lies in memory."""
    if kind == "bf16":
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.ascontiguousarray(values).astype(MEMORY[kind])


def from_memory(raw: np.ndarray, kind: str) -> np.ndarray:
    """The counterpart of `to_memory`."""
    if kind == "bf16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(DTYPES[kind])
