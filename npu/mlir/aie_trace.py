# SPDX-License-Identifier: Apache-2.0
"""Trace configurations (`aie.trace`, `aie.trace.config`) and their start in a sequence.

No value depends on them, so that a body is kept as the text that it is; the twin says that no trace is written.
"""

from __future__ import annotations

import re

from xdsl.dialects.builtin import FlatSymbolRefAttrConstr, StringAttr, SymbolNameConstraint
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, prop_def
from xdsl.parser import Parser
from xdsl.printer import Printer

from npu.mlir.aie import INDEX
from npu.mlir.attributes import DictOp

_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|[{}]')


class TraceBody(IRDLOperation):
    """`@name(%tile) {...}`, with what stands before and in the braces as text."""

    sym_name = prop_def(SymbolNameConstraint())
    tile = operand_def(INDEX)
    text = prop_def(StringAttr)

    @classmethod
    def parse(cls, parser: Parser) -> TraceBody:
        symbol = parser.parse_symbol_name()
        with parser.in_parens():
            tile = parser.parse_operand(INDEX)
        content, start = parser.lexer.input.content, parser.pos
        end = _closing(content, start)
        if end is None:
            parser.raise_error("a trace configuration without end")
        parser._resume_from(end)
        properties = {"sym_name": symbol, "text": StringAttr(content[start:end])}
        attributes = dict(parser.parse_optional_attr_dict())
        return cls.build(operands=[tile], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name)
        printer.print_string("(")
        printer.print_ssa_value(self.tile)
        printer.print_string(f") {self.text.data.strip()}")
        printer.print_op_attributes(self.attributes)


def _closing(content: str, start: int) -> int | None:
    """Where the braces that open next are closed again."""
    depth = 0
    for piece in _PIECE.finditer(content, start):
        depth += {"{": 1, "}": -1}.get(piece.group(), 0)
        if piece.group() == "}" and depth == 0:
            return piece.end()
    return None


@irdl_op_definition
class TraceOp(TraceBody):
    """What a tile is to trace."""

    name = "aie.trace"


@irdl_op_definition
class TraceConfigOp(TraceBody):
    """The same by register fields."""

    name = "aie.trace.config"


@irdl_op_definition
class TraceStartConfigOp(DictOp):
    """Applies a trace configuration."""

    name = "aie.trace.start_config"
    trace_config = prop_def(FlatSymbolRefAttrConstr)
    assembly_format = "$trace_config attr-dict"


OPERATIONS = [TraceOp, TraceConfigOp, TraceStartConfigOp]
