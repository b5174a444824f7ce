# SPDX-License-Identifier: Apache-2.0
"""Attributes, types and format directives that the aie and aiex dialects share.

Spelling follows mlir-aie of 2026-03. Enumerations (S2MM, DMA, Produce ...) are kept as
`StringAttr` and printed as keywords: their numbers move between mlir-aie releases, their
words do not, and only the custom assembly format is ever written.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import (
    I8,
    I32,
    I64,
    ArrayAttr,
    IntegerAttr,
    IntegerType,
    MemRefType,
    Signedness,
    StringAttr,
    i32,
)
from xdsl.ir import Attribute, Data, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import AttrConstraint, ConstraintContext, IRDLOperation, ParsePropInAttrDict, irdl_attr_definition
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    RegionVariable,
    irdl_custom_directive,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

I8Attr = IntegerAttr[I8]
I32Attr = IntegerAttr[I32]
I64Attr = IntegerAttr[I64]
UI32 = IntegerType(32, Signedness.UNSIGNED)


@dataclass(frozen=True)
class OneOf(AttrConstraint):
    """A keyword out of a closed list."""

    words: tuple[str, ...]

    def verify(self, attr: Attribute, constraint_context: ConstraintContext) -> None:
        if not isinstance(attr, StringAttr) or attr.data not in self.words:
            raise VerifyException(f"{attr} is not one of {', '.join(self.words)}")

    def mapping_type_vars(self, type_var_mapping: dict) -> OneOf:
        return self


def one_of(*words: str) -> OneOf:
    """A constraint on a keyword: one of `words`."""
    return OneOf(words)


CHANNEL_DIRECTION = one_of("S2MM", "MM2S")
WIRE_BUNDLE = one_of(
    "Core", "DMA", "FIFO", "South", "West", "North", "East", "PLIO", "NOC", "Trace", "TileControl"
)  # fmt: skip
LOCK_ACTION = one_of("Acquire", "AcquireGreaterEqual", "Release")
LOCK_BLOCKING = one_of("NonBlocking", "Blocking")
FIFO_PORT = one_of("Produce", "Consume")
DEVICE = one_of(
    "npu1", "npu1_1col", "npu1_2col", "npu1_3col",
    "npu2", "npu2_1col", "npu2_2col", "npu2_3col", "npu2_4col", "npu2_5col", "npu2_6col", "npu2_7col",
)  # fmt: skip


@irdl_attr_definition
class ObjectFifoType(ParametrizedAttribute, TypeAttribute):
    """`!aie.objectfifo<memref<...>>`."""

    name = "aie.objectfifo"
    element: MemRefType


@irdl_attr_definition
class ObjectFifoSubviewType(ParametrizedAttribute, TypeAttribute):
    """`!aie.objectfifosubview<memref<...>>`."""

    name = "aie.objectfifosubview"
    element: MemRefType


@irdl_attr_definition
class BlockFloatType(ParametrizedAttribute, TypeAttribute):
    """`!aiex.bfp<"v8bfp16ebs8">`: a block of significands with one exponent, which memory holds as one element."""

    name = "aiex.bfp"
    block: StringAttr


def _parse_pair(parser: AttrParser, first: str, second: str) -> tuple[int, int]:
    """`<first = N, second = M>`, in either order."""
    with parser.in_angle_brackets():
        values: dict[str, int] = {}
        while True:
            key = parser.parse_keyword_in((first, second))
            parser.parse_punctuation("=")
            values[key] = parser.parse_integer()
            if parser.parse_optional_punctuation(",") is None:
                break
        if values.keys() != {first, second}:
            parser.raise_error(f"expected both '{first}' and '{second}'")
    return values[first], values[second]


def _parse_pairs(parser: AttrParser, first: str, second: str) -> tuple[tuple[int, int], ...]:
    return tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: _parse_pair(parser, first, second)))


def _pairs_text(pairs: tuple[tuple[int, int], ...], first: str, second: str) -> str:
    return "[" + ", ".join(f"<{first} = {a}, {second} = {b}>" for a, b in pairs) + "]"


@irdl_attr_definition
class DimsAttr(Data[tuple[tuple[int, int], ...]]):
    """`[<size = S, stride = T>, ...]`, outermost first, in elements."""

    name = "aie.bd_dim_layout_array"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[tuple[int, int], ...]:
        return _parse_pairs(parser, "size", "stride")

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(_pairs_text(self.data, "size", "stride"))


@irdl_attr_definition
class PadsAttr(Data[tuple[tuple[int, int], ...]]):
    """`[<const_pad_before = B, const_pad_after = A>, ...]`, outermost first."""

    name = "aie.bd_pad_layout_array"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[tuple[int, int], ...]:
        return _parse_pairs(parser, "const_pad_before", "const_pad_after")

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(_pairs_text(self.data, "const_pad_before", "const_pad_after"))


@irdl_attr_definition
class PacketInfoAttr(Data[tuple[int, int]]):
    """`<pkt_type = T, pkt_id = I>`."""

    name = "aie.packet_info"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[int, int]:
        return _parse_pair(parser, "pkt_type", "pkt_id")

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<pkt_type = {self.data[0]}, pkt_id = {self.data[1]}>")


class DictOp(IRDLOperation):
    """An operation whose remaining properties stand in the attribute dictionary, as in mlir-aie."""

    irdl_options = (ParsePropInAttrDict(),)


@irdl_custom_directive
class Keyword(CustomDirective):
    """An enumeration value, written as a bare word."""

    attribute: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.attribute.set(state, StringAttr(parser.parse_identifier_or_str_literal()))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        word = self.attribute.get(op)
        assert isinstance(word, StringAttr)
        printer.print_string(word.data)


@irdl_custom_directive
class Body(CustomDirective):
    """A region whose `aie.end` is implied: it may be written, and is not printed."""

    region: RegionVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        region = parser.parse_region()
        last = region.blocks.last.last_op if region.blocks.last is not None else None
        if last is not None and last.name == "aie.end":
            last.detach()
            last.erase()
        self.region.set(state, region)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        printer.print_region(self.region.get(op), print_empty_block=False)


def int_attr(value: int) -> IntegerAttr:
    """An `i32` attribute."""
    return IntegerAttr(value, i32)


def ints_of(array: ArrayAttr) -> list[int]:
    """The integers of an array attribute."""
    return [item.value.data for item in array.data]
