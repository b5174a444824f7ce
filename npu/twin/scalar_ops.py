# SPDX-License-Identifier: Apache-2.0
"""Scalar operations of core bodies (arith, memref addressing) as Python expressions.

Index values are unbounded here, i32 and narrower wrap where the operation says its type (attribute `type`). An
operation that is not in the table is refused by name: nothing is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from math import prod

import numpy as np

from npu.device import DeviceFault
from npu.program import DTYPE_BYTES, Op
from npu.twin import vector_ops
from npu.twin.memory import Memory

MEMREF_OPS = frozenset(
    {"memref.subview", "memref.reinterpret_cast", "memref.cast", "memref.collapse_shape", "memref.expand_shape",
     "memref.assume_alignment", "memref.memory_space_cast", "scf.index_switch"}
)  # fmt: skip

_NUMPY = {
    "i8": "int8", "i1": "bool", "ui8": "uint8", "i16": "int16", "i32": "int32", "ui32": "uint32", "index": "int32", "i64": "int64",
    "f32": "float32", "f16": "float16", "bf16": "uint16",
}  # fmt: skip


class View:
    """A memref value of a core: elements of a memory from `offset` (elements), with shape and strides (elements)."""

    __slots__ = ("byte_offset", "dtype", "element_bytes", "memory", "offset", "pointer", "shape", "strides")

    def __init__(self, memory: Memory, dtype: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]):
        self.memory = memory
        self.dtype = dtype
        self.offset = offset
        self.shape = shape
        self.strides = strides
        self.element_bytes = DTYPE_BYTES[dtype]
        self.byte_offset = offset * self.element_bytes
        self.pointer = memory.address + self.byte_offset

    @staticmethod
    def of(memory: Memory) -> View:
        """The whole memory in its declared shape."""
        return View(memory, memory.type.dtype, 0, memory.type.shape, row_major(memory.type.shape))

    def element(self, indices: tuple[int, ...]) -> tuple[np.ndarray, int]:
        """(the memory in this dtype, flat index). DeviceFault outside the view."""
        for index, size in zip(indices, self.shape, strict=True):
            if not 0 <= index < size:
                raise DeviceFault(f"index {indices} is outside {self.shape} of {self.memory}")
        flat = self.offset + sum(i * s for i, s in zip(indices, self.strides, strict=True))
        whole = self.memory.data.nbytes // self.element_bytes * self.element_bytes
        return self.memory.data[:whole].view(_NUMPY[self.dtype]), flat


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a dense row-major shape."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def load_element(view: View, indices: tuple[int, ...]) -> int | float:
    """One element as a Python number; bf16 is widened."""
    elements, flat = view.element(indices)
    raw = elements[flat]
    if view.dtype == "bf16":
        return float(np.array([int(raw) << 16], np.uint32).view(np.float32)[0])
    return raw.item()


def store_element(view: View, indices: tuple[int, ...], value: int | float) -> None:
    """Write one element; integers wrap, floats round to nearest even."""
    elements, flat = view.element(indices)
    if view.dtype == "bf16":
        bits = int(np.array([value], np.float32).view(np.uint32)[0])
        elements[flat] = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF
    elif view.dtype in ("f32", "f16"):
        elements[flat] = value
    else:
        elements[flat] = np.array([int(value) & (1 << 64) - 1], np.uint64).astype(elements.dtype)[0]


def subview(view: View, offsets: tuple[int, ...], sizes: tuple[int, ...], strides: tuple[int, ...]) -> View:
    """memref.subview."""
    offset = view.offset + sum(o * s for o, s in zip(offsets, view.strides, strict=True))
    return View(
        view.memory, view.dtype, offset, sizes, tuple(a * b for a, b in zip(strides, view.strides, strict=True))
    )


def reinterpret(view: View, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> View:
    """memref.reinterpret_cast: offset and strides count from the base of the memory."""
    return View(view.memory, view.dtype, offset, sizes, strides)


def reshape(view: View, shape: tuple[int, ...]) -> View:
    """memref.cast, collapse_shape, expand_shape of a dense view."""
    return View(view.memory, view.dtype, view.offset, shape, row_major(shape))


def wrap(value: int, bits: int) -> int:
    """Two's complement of `bits` bits."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def divide(a: int, b: int, towards: str = "zero", bits: int = 0) -> int:
    """Integer division, rounded towards "zero", "floor" or "ceil".

    DeviceFault where MLIR leaves the result undefined: on zero, and the smallest signed number of `bits` bits by -1.
    """
    if b == 0:
        raise DeviceFault("a core divides by zero")
    if bits and b == -1 and a == -(1 << (bits - 1)):
        raise DeviceFault(f"a core divides {a} by -1, which does not fit {bits} bits")
    if towards == "zero":
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return a // b if towards == "floor" else -(-a // b)


def shift(value: int, by: int, bits: int, left: bool = False) -> int:
    """value << by or value >> by. DeviceFault for a distance that is none: MLIR leaves the result undefined."""
    if not 0 <= by < bits:
        raise DeviceFault(f"a core shifts {bits} bits by {by}")
    return value << by if left else value >> by


def steps(lower: int, upper: int, step: int) -> range:
    """The values of a loop's variable. DeviceFault for a step that leads nowhere: scf.for asks for a positive one."""
    if step <= 0:
        raise DeviceFault(f"a core's loop from {lower} to {upper} has step {step}")
    return range(lower, upper, step)


def unsigned(value: int, bits: int = 32) -> int:
    """The bit pattern of an integer as a non-negative number."""
    return value & (1 << bits) - 1


def bfloat16(value: float) -> float:
    """Nearest bfloat16, ties to even: what arithmetic on bf16 in a core's own code gives (assumed for scalar code)."""
    bits = int(np.array([value], np.float32).view(np.uint32)[0])
    if bits & 0x7F800000 == 0x7F800000:
        return float(np.float32(value))
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(np.array([bits], np.uint32).view(np.float32)[0])


def quotient(a: float, b: float) -> float:
    """IEEE division."""
    with np.errstate(all="ignore"):
        return float(np.float32(a) / np.float32(b))


def minmax(a: float, b: float, largest: bool, number: bool) -> float:
    """maximumf and minimumf give NaN where one is; maxnumf and minnumf the other one (`number`)."""
    if a != a or b != b:
        return (b if a != a else a) if number else math.nan
    return max(a, b) if largest else min(a, b)


def to_integer(value: float, bits: int) -> int:
    """Towards zero. DeviceFault where the value does not fit: MLIR leaves the result undefined."""
    if not -(2.0 ** (bits - 1)) <= value < 2.0**bits:
        raise DeviceFault(f"a core converts {value} to an integer of {bits} bits")
    return wrap(int(value), bits)


def bitcast(value: int | float, source: str, target: str) -> int | float:
    """The same bits as another type of the same width."""
    if source == "bf16":
        raw = np.array([np.array([value], np.float32).view(np.uint32)[0] >> 16], np.uint16)
    else:
        raw = np.array([value], _NUMPY[source])
    if target == "bf16":
        return float((raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)[0])
    return raw.view(_NUMPY[target])[0].item()


_BINARY = {
    "arith.addi": "{0} + {1}", "arith.subi": "{0} - {1}", "arith.muli": "{0} * {1}", "arith.andi": "{0} & {1}",
    "arith.ori": "{0} | {1}", "arith.xori": "{0} ^ {1}", "arith.shli": "shift({0}, {1}, {bits}, True)",
    "arith.shrsi": "shift({0}, {1}, {bits})", "arith.shrui": "shift(unsigned({0}, {bits}), {1}, {bits})",
    "arith.divsi": "divide({0}, {1}, 'zero', {bits})",
    "arith.divui": "divide(unsigned({0}, {bits}), unsigned({1}, {bits}))",
    "arith.remsi": "{0} - {1} * divide({0}, {1})",
    "arith.remui": "unsigned({0}, {bits}) - unsigned({1}, {bits}) * divide(unsigned({0}, {bits}), unsigned({1}, {bits}))",
    "arith.floordivsi": "divide({0}, {1}, 'floor', {bits})", "arith.ceildivsi": "divide({0}, {1}, 'ceil', {bits})",
    "arith.ceildivui": "divide(unsigned({0}, {bits}), unsigned({1}, {bits}), 'ceil')",
    "arith.minsi": "min({0}, {1})", "arith.maxsi": "max({0}, {1})",
    "arith.minui": "min(unsigned({0}, {bits}), unsigned({1}, {bits}))",
    "arith.maxui": "max(unsigned({0}, {bits}), unsigned({1}, {bits}))",
}  # fmt: skip
_FLOAT = {
    "arith.addf": "{0} + {1}", "arith.subf": "{0} - {1}", "arith.mulf": "{0} * {1}",
    "arith.divf": "quotient({0}, {1})", "arith.remf": "math.fmod({0}, {1})",
    "arith.maximumf": "minmax({0}, {1}, True, False)", "arith.minimumf": "minmax({0}, {1}, False, False)",
    "arith.maxnumf": "minmax({0}, {1}, True, True)", "arith.minnumf": "minmax({0}, {1}, False, True)",
    "arith.negf": "-{0}", "arith.sitofp": "{0}", "arith.truncf": "{0}", "math.absf": "abs({0})",
    "math.sqrt": "math.sqrt({0})", "math.rsqrt": "quotient(1.0, math.sqrt({0}))", "math.exp": "math.exp({0})",
    "math.exp2": "2.0 ** {0}", "math.log": "math.log({0})", "math.tanh": "math.tanh({0})",
    "math.fma": "{0} * {1} + {2}",
}  # fmt: skip
_SAME = frozenset({"arith.index_cast", "arith.extsi", "arith.extf"})
_COMPARE = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")  # MLIR's numbering
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# MLIR's numbers of the float predicates: ordered ones are false with a NaN, unordered ones (8 more) true.
_ORDERED = {1: "{0} == {1}", 2: "{0} > {1}", 3: "{0} >= {1}", 4: "{0} < {1}", 5: "{0} <= {1}",
            6: "{0} < {1} or {0} > {1}", 7: "{0} == {0} and {1} == {1}", 8: "not ({0} < {1} or {0} > {1})",
            9: "not {0} <= {1}", 10: "not {0} < {1}", 11: "not {0} >= {1}", 12: "not {0} > {1}", 13: "{0} != {1}",
            14: "{0} != {0} or {1} != {1}"}  # fmt: skip
_ROUND = {"bf16": "bfloat16", "f32": "float32", "f16": "float32"}
_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}

NAMESPACE: dict[str, Callable[..., object]] = {
    "divide": divide, "shift": shift, "steps": steps, "unsigned": unsigned, "wrap": wrap, "subview": subview, "reinterpret": reinterpret,
    "reshape": reshape, "float32": lambda value: float(np.float32(value)), "bfloat16": bfloat16, "minmax": minmax,
    "quotient": quotient, "to_integer": to_integer, "bitcast": bitcast, "vector_op": vector_ops.compute,
    "vector_constant": vector_ops.constant, "math": math,
}  # fmt: skip


def expression(op: Op, operands: list[str]) -> str:
    """Python text of a value-producing operation (loads apart). DeviceFault for one the twin does not know."""
    attributes = dict(op.attributes)
    kind = str(attributes.get("type", ""))
    source = str(attributes.get("operand_type", kind))
    args = [f"({text})" if not text.isidentifier() else text for text in operands]
    if "shape" in attributes and op.name == "arith.constant":
        return f"vector_constant({attributes['value']!r}, {kind!r}, {attributes['shape']!r})"
    if op.name not in MEMREF_OPS and ("shape" in attributes or "operand_shape" in attributes):
        return f"vector_op({op.name!r}, {attributes!r}, ({''.join(a + ', ' for a in args)}))"
    if op.name == "arith.constant":
        value = attributes["value"]
        return (
            repr(bfloat16(value) if kind == "bf16" else value)
            if isinstance(value, int) or math.isfinite(value)
            else (f"float({str(value)!r})")
        )
    if op.name in _BINARY:
        text = _BINARY[op.name].format(*args, bits=_BITS.get(kind, 32))
        return f"wrap({text}, {_BITS[kind]})" if kind in _BITS else text
    if op.name == "arith.uitofp":
        return f"{_ROUND.get(kind, 'float32')}(unsigned({args[0]}, {_BITS.get(source, 32)}))"
    if op.name in _FLOAT:
        return f"{_ROUND.get(kind, 'float32')}({_FLOAT[op.name].format(*args)})"
    if op.name == "arith.cmpf" and attributes["predicate"] in _ORDERED:
        return f"({_ORDERED[attributes['predicate']].format(*args)})"
    if op.name == "arith.cmpf":
        return "True" if attributes["predicate"] else "False"
    if op.name == "arith.cmpi":
        return _compare(attributes["predicate"], args, _BITS.get(source, 32))
    if op.name == "arith.select":
        return f"({args[1]} if {args[0]} else {args[2]})"
    if op.name == "arith.trunci":
        return f"wrap({args[0]}, {_BITS.get(kind, 32)})"
    if op.name in ("arith.extui", "arith.index_castui"):
        return f"unsigned({args[0]}, {_BITS.get(source, 32)})"
    if op.name == "arith.extsi" and source == "i1":
        return f"(-1 if {args[0]} else 0)"
    if op.name in ("arith.fptosi", "arith.fptoui"):
        return f"to_integer({args[0]}, {_BITS.get(kind, 32)})"
    if op.name == "math.absi":
        return f"abs({args[0]})"
    if op.name == "arith.bitcast":
        return f"bitcast({args[0]}, {source!r}, {kind!r})"
    if op.name in _SAME:
        return args[0]
    if op.name in MEMREF_OPS:
        return _memref(op, attributes, args)
    raise DeviceFault(f"the twin does not execute {op.name} in a core ({op.where}); move it into a kernel")


def _compare(predicate: object, args: list[str], bits: int) -> str:
    name = _COMPARE[predicate] if isinstance(predicate, int) else str(predicate)
    if name in ("eq", "ne"):
        return f"({args[0]} {_SIGNS[name]} {args[1]})"
    sign = _SIGNS[name[1:]]
    if name[0] == "u":
        return f"(unsigned({args[0]}, {bits}) {sign} unsigned({args[1]}, {bits}))"
    return f"({args[0]} {sign} {args[1]})"


def _memref(op: Op, attributes: dict[str, object], args: list[str]) -> str:
    """Static parts come as attributes; None (or a negative dynamic marker) takes the next operand."""
    if op.name in ("memref.assume_alignment", "memref.memory_space_cast"):
        return args[0]
    if op.name == "scf.index_switch":
        cases = "".join(f"{case}: {value}, " for case, value in zip(attributes["cases"], args[2:], strict=True))  # type: ignore[call-overload]
        return f"{{{cases}}}.get({args[0]}, {args[1]})"
    if op.name in ("memref.cast", "memref.collapse_shape", "memref.expand_shape"):
        shape = attributes.get("shape", attributes.get("static_output_shape"))
        return args[0] if shape is None else f"reshape({args[0]}, {tuple(shape)!r})"  # type: ignore[arg-type]
    if op.name not in ("memref.subview", "memref.reinterpret_cast"):
        raise DeviceFault(f"the twin does not execute {op.name} in a core ({op.where})")
    rest = iter(args[1:])

    def fill(name: str) -> str:
        values = attributes.get(f"static_{name}", attributes.get(name, ()))
        items = [next(rest) if v is None or v == -(2**63) else repr(v) for v in values]  # type: ignore[union-attr]
        return f"({''.join(i + ', ' for i in items)})"

    parts = [fill("offsets"), fill("sizes"), fill("strides")]
    if op.name == "memref.reinterpret_cast":
        return f"reinterpret({args[0]}, {parts[0]}[0], {parts[1]}, {parts[2]})"
    return f"subview({args[0]}, {', '.join(parts)})"
