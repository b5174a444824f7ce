# SPDX-License-Identifier: Apache-2.0
"""Object FIFO operations of the `aie` dialect: objectfifo, link, allocate, acquire, subview.access, release."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    ArrayAttr,
    BoolAttr,
    IntegerAttr,
    MemRefType,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    i32,
    i64,
)
from xdsl.ir import Attribute
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer

from npu.mlir.aie import INDEX, parse_dense, print_dense
from npu.mlir.attributes import (
    FIFO_PORT,
    DictOp,
    DimsAttr,
    I32Attr,
    I64Attr,
    ObjectFifoSubviewType,
    ObjectFifoType,
    PadsAttr,
    ints_of,
)

_FIFO_DICT = (
    "via_DMA", "plio", "disable_synchronization", "repeat_count", "aie_stream", "aie_stream_port", "iter_count",
)  # fmt: skip


@irdl_op_definition
class ObjectFifoOp(IRDLOperation):
    """A queue of `depth` elements between one producer tile and one or more consumer tiles."""

    name = "aie.objectfifo"
    sym_name = prop_def(SymbolNameConstraint())
    producer = operand_def(INDEX)
    consumers = var_operand_def(INDEX)
    elemNumber = prop_def(I32Attr | ArrayAttr[I32Attr])
    elemType = prop_def(ObjectFifoType)
    dimensionsToStream = prop_def(DimsAttr)
    dimensionsFromStreamPerConsumer = prop_def(ArrayAttr[DimsAttr])
    via_DMA = opt_prop_def(BoolAttr)
    plio = opt_prop_def(BoolAttr)
    disable_synchronization = opt_prop_def(BoolAttr)
    repeat_count = opt_prop_def(I32Attr)
    aie_stream = opt_prop_def(I32Attr)
    aie_stream_port = opt_prop_def(I32Attr)
    initValues = opt_prop_def(ArrayAttr)
    padDimensions = opt_prop_def(PadsAttr)
    iter_count = opt_prop_def(I32Attr)

    @property
    def depths(self) -> int | list[int]:
        """The depth as written: one number, or one per end (producer first)."""
        number = self.elemNumber
        return ints_of(number) if isinstance(number, ArrayAttr) else number.value.data

    @property
    def element(self) -> MemRefType:
        return self.elemType.element

    @classmethod
    def parse(cls, parser: Parser) -> ObjectFifoOp:
        properties: dict[str, Attribute] = {"sym_name": parser.parse_symbol_name()}
        parser.parse_punctuation("(")
        producer = parser.parse_operand(INDEX)
        properties["dimensionsToStream"] = _parse_dims(parser, "dimensionsToStream")
        parser.parse_punctuation(",")
        from_stream: list[DimsAttr] = []

        def consumer():
            tile = parser.parse_operand(INDEX)
            from_stream.append(_parse_dims(parser, "dimensionsFromStream"))
            return tile

        consumers = parser.parse_comma_separated_list(parser.Delimiter.BRACES, consumer)
        properties["dimensionsFromStreamPerConsumer"] = ArrayAttr(from_stream)
        parser.parse_punctuation(",")
        properties["elemNumber"] = _parse_depth(parser)
        parser.parse_punctuation(")")
        attributes = dict(parser.parse_optional_attr_dict())
        properties |= {key: attributes.pop(key) for key in _FIFO_DICT if key in attributes}
        if "padDimensions" in attributes:
            properties["padDimensions"] = attributes.pop("padDimensions")
        parser.parse_punctuation(":")
        at = parser.pos
        fifo_type = parser.parse_type()
        if not isinstance(fifo_type, ObjectFifoType):
            parser.raise_error("expected !aie.objectfifo<memref<...>>", at_position=at)
        properties["elemType"] = fifo_type
        if parser.parse_optional_punctuation("="):
            properties["initValues"] = ArrayAttr(
                parser.parse_comma_separated_list(
                    parser.Delimiter.SQUARE, lambda: _parse_initial(parser, fifo_type.element)
                )
            )
        return cls.build(operands=[producer, consumers], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name)
        printer.print_string("(")
        printer.print_ssa_value(self.producer)
        _print_dims(printer, "dimensionsToStream", self.dimensionsToStream)
        printer.print_string(", {")
        for index, (tile, dims) in enumerate(
            zip(self.consumers, self.dimensionsFromStreamPerConsumer.data, strict=True)
        ):
            if index:
                printer.print_string(", ")
            printer.print_ssa_value(tile)
            _print_dims(printer, "dimensionsFromStream", dims)
        printer.print_string("}, ")
        depths = self.depths
        printer.print_string(f"{depths} : i32" if isinstance(depths, int) else str(depths))
        printer.print_string(")")
        shown = {key: self.properties[key] for key in _FIFO_DICT if key in self.properties}
        if self.padDimensions is not None:
            shown["padDimensions"] = self.padDimensions
        printer.print_op_attributes(shown | self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.elemType)
        if self.initValues is not None:
            printer.print_string(" = ")
            with printer.in_square_brackets():
                printer.print_list(self.initValues.data, lambda value: self._print_initial(printer, value))

    def _print_initial(self, printer: Printer, value: Attribute) -> None:
        print_dense(printer, value)
        printer.print_string(" : ")
        printer.print_attribute(self.element)


def _parse_initial(parser: Parser, element: MemRefType) -> Attribute:
    """`dense<...> : memref<...>`."""
    value = parse_dense(parser, element)
    if parser.parse_optional_punctuation(":"):
        parser.parse_type()
    return value


def _parse_depth(parser: Parser) -> Attribute:
    """`2 : i32`, or `[2, 3]` with or without types."""

    def number() -> IntegerAttr:
        value = parser.parse_integer()
        if parser.parse_optional_punctuation(":"):
            parser.parse_type()
        return IntegerAttr(value, i32)

    depths = parser.parse_optional_comma_separated_list(parser.Delimiter.SQUARE, number)
    return number() if depths is None else ArrayAttr(depths)


def _parse_dims(parser: Parser, keyword: str) -> DimsAttr:
    if parser.parse_optional_keyword(keyword):
        return DimsAttr(DimsAttr.parse_parameter(parser))
    return DimsAttr(())


def _print_dims(printer: Printer, keyword: str, dims: DimsAttr) -> None:
    if dims.data:
        printer.print_string(f" {keyword} ")
        dims.print_parameter(printer)


@irdl_op_definition
class ObjectFifoLinkOp(IRDLOperation):
    """Passes elements of one FIFO on to another through the tile between them; offsets in elements."""

    name = "aie.objectfifo.link"
    fifoIns = prop_def(ArrayAttr[SymbolRefAttr])
    fifoOuts = prop_def(ArrayAttr[SymbolRefAttr])
    src_offsets = prop_def(ArrayAttr[I64Attr])
    dst_offsets = prop_def(ArrayAttr[I64Attr])

    @property
    def inputs(self) -> list[str]:
        return [ref.root_reference.data for ref in self.fifoIns.data]

    @property
    def outputs(self) -> list[str]:
        return [ref.root_reference.data for ref in self.fifoOuts.data]

    @classmethod
    def of(
        cls, inputs: Sequence[str], outputs: Sequence[str], source: Sequence[int], dest: Sequence[int]
    ) -> ObjectFifoLinkOp:
        """A link from FIFO names and offsets."""
        return cls.build(
            properties={
                "fifoIns": ArrayAttr([SymbolRefAttr(name) for name in inputs]),
                "fifoOuts": ArrayAttr([SymbolRefAttr(name) for name in outputs]),
                "src_offsets": ArrayAttr([IntegerAttr(value, i64) for value in source]),
                "dst_offsets": ArrayAttr([IntegerAttr(value, i64) for value in dest]),
            }
        )

    @classmethod
    def parse(cls, parser: Parser) -> ObjectFifoLinkOp:
        square = parser.Delimiter.SQUARE

        def names() -> list[str]:
            return [symbol.data for symbol in parser.parse_comma_separated_list(square, parser.parse_symbol_name)]

        inputs = names()
        parser.parse_punctuation("->")
        outputs = names()
        with parser.in_parens():
            source = parser.parse_comma_separated_list(square, parser.parse_integer)
            dest = parser.parse_comma_separated_list(square, parser.parse_integer)
        op = cls.of(inputs, outputs, source, dest)
        op.attributes |= parser.parse_optional_attr_dict()
        return op

    def print(self, printer: Printer) -> None:
        def names(fifos: list[str]) -> str:
            return "[" + ", ".join("@" + name for name in fifos) + "]"

        printer.print_string(f" {names(self.inputs)} -> {names(self.outputs)}")
        source, dest = ints_of(self.src_offsets), ints_of(self.dst_offsets)
        printer.print_string(f"({source} {dest})")
        printer.print_op_attributes(self.attributes)


@irdl_op_definition
class ObjectFifoAllocateOp(DictOp):
    """Places a shared-memory FIFO in the memory of another tile."""

    name = "aie.objectfifo.allocate"
    objFifo_name = prop_def(SymbolRefAttr)
    delegate = operand_def(INDEX)
    assembly_format = "$objFifo_name `(` $delegate `)` attr-dict"


class _PortOp(IRDLOperation):
    """What acquire and release have in common."""

    port = prop_def(FIFO_PORT)
    objFifo_name = prop_def(SymbolRefAttr)
    size = prop_def(I32Attr)

    @property
    def fifo(self) -> str:
        return self.objFifo_name.root_reference.data

    @property
    def port_name(self) -> str:
        return self.properties["port"].data

    @property
    def count(self) -> int:
        return self.size.value.data

    @staticmethod
    def properties_of(fifo: str, port: str, count: int) -> dict[str, Attribute]:
        """The properties of an operation on `count` elements of `fifo`."""
        return {
            "objFifo_name": SymbolRefAttr(fifo),
            "port": StringAttr(port),
            "size": IntegerAttr(count, i32),
        }

    @classmethod
    def parse_port(cls, parser: Parser) -> tuple[dict[str, Attribute], dict[str, Attribute]]:
        """(properties, other attributes)."""
        attributes = dict(parser.parse_optional_attr_dict())
        fifo = parser.parse_symbol_name().data
        with parser.in_parens():
            port = parser.parse_identifier_or_str_literal()
            parser.parse_punctuation(",")
            count = parser.parse_integer()
        return cls.properties_of(fifo, port, count), attributes

    def print_port(self, printer: Printer) -> None:
        printer.print_op_attributes(self.attributes)
        printer.print_string(f" @{self.fifo}({self.port_name}, {self.count})")


@irdl_op_definition
class AcquireOp(_PortOp):
    """Waits until `size` elements are held; the result views them."""

    name = "aie.objectfifo.acquire"
    subview = result_def(ObjectFifoSubviewType)

    @classmethod
    def parse(cls, parser: Parser) -> AcquireOp:
        properties, attributes = cls.parse_port(parser)
        parser.parse_punctuation(":")
        return cls.build(properties=properties, attributes=attributes, result_types=[parser.parse_type()])

    def print(self, printer: Printer) -> None:
        self.print_port(printer)
        printer.print_string(" : ")
        printer.print_attribute(self.subview.type)


@irdl_op_definition
class ReleaseOp(_PortOp):
    """Gives `size` elements back."""

    name = "aie.objectfifo.release"

    @classmethod
    def parse(cls, parser: Parser) -> ReleaseOp:
        properties, attributes = cls.parse_port(parser)
        return cls.build(properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        self.print_port(printer)


@irdl_op_definition
class SubviewAccessOp(IRDLOperation):
    """Element `index` of an acquired view."""

    name = "aie.objectfifo.subview.access"
    subview = operand_def(ObjectFifoSubviewType)
    index = prop_def(I32Attr)
    output = result_def(MemRefType)

    @classmethod
    def parse(cls, parser: Parser) -> SubviewAccessOp:
        operand = parser.parse_unresolved_operand()
        with parser.in_square_brackets():
            index = parser.parse_integer()
        attributes = dict(parser.parse_optional_attr_dict())
        parser.parse_punctuation(":")
        subview = parser.resolve_operand(operand, parser.parse_type())
        parser.parse_punctuation("->")
        return cls.build(
            operands=[subview],
            properties={"index": IntegerAttr(index, i32)},
            attributes=attributes,
            result_types=[parser.parse_type()],
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.subview)
        printer.print_string(f"[{self.index.value.data}]")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.subview.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.output.type)


OPERATIONS = [ObjectFifoOp, ObjectFifoLinkOp, ObjectFifoAllocateOp, AcquireOp, ReleaseOp, SubviewAccessOp]
