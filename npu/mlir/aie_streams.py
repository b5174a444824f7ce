# SPDX-License-Identifier: Apache-2.0
"""Cascade access of cores, the compact `aie.dma`, and the token wait `aiex.npu.sync`."""

from __future__ import annotations

from xdsl.dialects.builtin import BoolAttr, StringAttr, i1
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_region_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator

from npu.mlir.attributes import CHANNEL_DIRECTION, DictOp, I32Attr, int_attr


@irdl_op_definition
class PutCascadeOp(DictOp):
    """Sends a value to the cascade neighbour; waits while the stream is full."""

    name = "aie.put_cascade"
    cascade_value = operand_def()
    assembly_format = "`(` $cascade_value `:` type($cascade_value) `)` attr-dict"


@irdl_op_definition
class GetCascadeOp(DictOp):
    """Takes a value from the cascade neighbour; waits for it."""

    name = "aie.get_cascade"
    cascade_value = result_def()
    assembly_format = "`(` `)` attr-dict `:` type($cascade_value)"


@irdl_op_definition
class DmaOp(IRDLOperation):
    """A channel and its BDs, one region each; a ring unless `loop = false`."""

    name = "aie.dma"
    channel_dir = prop_def(CHANNEL_DIRECTION)
    channel_index = prop_def(I32Attr)
    loop = opt_prop_def(BoolAttr)
    repeat_count = opt_prop_def(I32Attr)
    sym_name = opt_prop_def(StringAttr)
    bds = var_region_def()
    valid = result_def(i1)
    traits = traits_def(NoTerminator())

    @classmethod
    def parse(cls, parser: Parser) -> DmaOp:
        with parser.in_parens():
            properties = {"channel_dir": StringAttr(parser.parse_identifier_or_str_literal())}
            parser.parse_punctuation(",")
            properties["channel_index"] = int_attr(parser.parse_integer())
        attributes = dict(parser.parse_optional_attr_dict())
        properties |= {k: attributes.pop(k) for k in ("loop", "repeat_count", "sym_name") if k in attributes}
        regions = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_region)
        return cls.build(properties=properties, attributes=attributes, regions=[regions], result_types=[i1])

    def print(self, printer: Printer) -> None:
        printer.print_string(f"({self.properties['channel_dir'].data}, {self.channel_index.value.data})")
        shown = {k: self.properties[k] for k in ("loop", "repeat_count", "sym_name") if k in self.properties}
        printer.print_op_attributes(shown | self.attributes)
        printer.print_string(" ")
        with printer.in_square_brackets():
            printer.print_list(self.bds, lambda region: printer.print_region(region, print_empty_block=False))


OPERATIONS = [PutCascadeOp, GetCascadeOp, DmaOp]
