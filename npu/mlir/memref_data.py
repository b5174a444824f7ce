# SPDX-License-Identifier: Apache-2.0
"""`memref.global` and `memref.copy` in MLIR's own assembly format, which xdsl leaves out."""

from __future__ import annotations

from xdsl.dialects import memref
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    IntegerAttr,
    MemRefType,
    StringAttr,
    SymbolNameConstraint,
    UnitAttr,
)
from xdsl.ir import Attribute, Dialect
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, opt_prop_def, prop_def
from xdsl.parser import Parser
from xdsl.printer import Printer

from npu.mlir.aie import parse_dense, print_dense


@irdl_op_definition
class GlobalOp(IRDLOperation):
    """`memref.global "private" constant @name : memref<...> = dense<...>`; without a value it is uninitialised."""

    name = "memref.global"
    sym_name = prop_def(SymbolNameConstraint())
    sym_visibility = opt_prop_def(StringAttr)
    type = prop_def(MemRefType)
    initial_value = opt_prop_def(DenseIntOrFPElementsAttr)
    constant = opt_prop_def(UnitAttr)
    alignment = opt_prop_def(IntegerAttr)

    @classmethod
    def parse(cls, parser: Parser) -> GlobalOp:
        properties: dict[str, Attribute] = {}
        visibility = parser.parse_optional_str_literal()
        if visibility is not None:
            properties["sym_visibility"] = StringAttr(visibility)
        if parser.parse_optional_keyword("constant"):
            properties["constant"] = UnitAttr()
        properties["sym_name"] = parser.parse_symbol_name()
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        if not isinstance(kind, MemRefType):
            parser.raise_error("expected a memref type")
        properties["type"] = kind
        if parser.parse_optional_punctuation("=") and not parser.parse_optional_keyword("uninitialized"):
            properties["initial_value"] = parse_dense(parser, kind)
        attributes = dict(parser.parse_optional_attr_dict())
        if "alignment" in attributes:
            properties["alignment"] = attributes.pop("alignment")
        return cls.build(properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        if self.sym_visibility is not None:
            printer.print_string(f' "{self.sym_visibility.data}"')
        if self.constant is not None:
            printer.print_string(" constant")
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name)
        printer.print_string(" : ")
        printer.print_attribute(self.type)
        if self.initial_value is not None:
            printer.print_string(" = ")
            print_dense(printer, self.initial_value)
        shown = {"alignment": self.alignment} if self.alignment is not None else {}
        printer.print_op_attributes(shown | self.attributes)


@irdl_op_definition
class CopyOp(IRDLOperation):
    """Copies one memref's elements to another of the same shape."""

    name = "memref.copy"
    source = operand_def(MemRefType)
    destination = operand_def(MemRefType)
    assembly_format = "$source `,` $destination attr-dict `:` type($source) `to` type($destination)"


REPLACED = (GlobalOp, CopyOp)
MEMREF = Dialect(
    "memref",
    [op for op in memref.MemRef.operations if op.name not in {mine.name for mine in REPLACED}] + list(REPLACED),
    list(memref.MemRef.attributes),
)
