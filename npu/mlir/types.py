# SPDX-License-Identifier: Apache-2.0
"""Conversion between the types of `npu.program` and xdsl's."""

from __future__ import annotations

from xdsl.dialects.builtin import (
    BFloat16Type,
    DenseIntOrFPElementsAttr,
    Float16Type,
    Float32Type,
    IndexType,
    IntegerType,
    MemRefType,
    NoneAttr,
    Signedness,
    StringAttr,
)
from xdsl.ir import Attribute

from npu.mlir.attributes import BlockFloatType
from npu.program import MemRef
from refusal import Refusal

_XDSL = {
    "i1": IntegerType(1),
    "i8": IntegerType(8),
    "ui8": IntegerType(8, Signedness.UNSIGNED),
    "i16": IntegerType(16),
    "i32": IntegerType(32),
    "ui32": IntegerType(32, Signedness.UNSIGNED),
    "i64": IntegerType(64),
    "bf16": BFloat16Type(),
    "f16": Float16Type(),
    "f32": Float32Type(),
    "index": IndexType(),
    # Blocks of 8 or 16 significands of a byte and an exponent; a pass of mlir-aie makes plain integers of them.
    "v8bfp16ebs8": BlockFloatType(StringAttr("v8bfp16ebs8")),
    "v16bfp16ebs16": BlockFloatType(StringAttr("v16bfp16ebs16")),
    "i72": IntegerType(72),
    "i136": IntegerType(136),
}
_NAMES = {attribute: name for name, attribute in _XDSL.items()}


def scalar_type(dtype: str) -> Attribute:
    """The xdsl type called `dtype`."""
    if dtype not in _XDSL:
        raise Refusal(f"element type {dtype}", expected=f"one of {', '.join(_XDSL)}")
    return _XDSL[dtype]


def dtype_of(attribute: Attribute) -> str:
    """The name of a scalar type; a Refusal for types outside our table."""
    name = _NAMES.get(attribute)
    if name is None:
        raise Refusal(f"element type {attribute}", expected=f"one of {', '.join(_XDSL)}")
    return name


def memref_type(memref: MemRef) -> MemRefType:
    """The xdsl memref with identity layout."""
    return MemRefType(scalar_type(memref.dtype), memref.shape)


def memref_of(attribute: Attribute) -> MemRef:
    """Shape and element type; layout and memory space are not part of it."""
    if not isinstance(attribute, MemRefType):
        raise Refusal(f"type {attribute}", expected="a memref")
    shape = attribute.get_shape()
    if any(size < 0 for size in shape):
        raise Refusal(f"type {attribute}", expected="a static shape")
    return MemRef(tuple(shape), dtype_of(attribute.element_type))


def has_identity_layout(attribute: MemRefType) -> bool:
    """Whether elements lie in row-major order from offset 0."""
    return isinstance(attribute.layout, NoneAttr)


def initial_bytes(value: DenseIntOrFPElementsAttr) -> bytes:
    """The elements as they lie in memory; a splat is written once in the text and repeated here."""
    memref = MemRef(tuple(value.type.get_shape()), dtype_of(value.type.element_type))
    data = bytes(value.data.data)
    return data if len(data) == memref.nbytes else data * memref.elements


def row_major_strides(shape: tuple[int, ...]) -> list[int]:
    """Strides in elements of a dense row-major array."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return strides
