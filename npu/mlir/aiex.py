# SPDX-License-Identifier: Apache-2.0
"""The `aiex` dialect: what stands in runtime sequences (tasks, transfers, parameters, configure and run).

Assembly format and attribute names are those of mlir-aie's AIEX.td of 2026-03. The older
`aiex.runtime_sequence` and the older dma_memcpy_nd with leading coordinates are read too;
a sequence is always written in the `aie.` spelling by the builder.
"""

from __future__ import annotations

from xdsl.dialects.builtin import (
    BoolAttr,
    FlatSymbolRefAttrConstr,
    IntegerAttr,
    MemRefType,
    StringAttr,
    SymbolRefAttr,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator

from npu.mlir.aie import INDEX, _RuntimeSequence
from npu.mlir.attributes import (
    CHANNEL_DIRECTION,
    UI32,
    Body,
    DictOp,
    I32Attr,
    I64Attr,
    Keyword,
    PacketInfoAttr,
    int_attr,
)


@irdl_op_definition
class OldRuntimeSequenceOp(_RuntimeSequence):
    """`aiex.runtime_sequence`, the spelling before 2025-11."""

    name = "aiex.runtime_sequence"


@irdl_op_definition
class ConfigureOp(DictOp):
    """Loads the design `symbol`; its body runs sequences of that design."""

    name = "aiex.configure"
    symbol = prop_def(FlatSymbolRefAttrConstr)
    body = region_def()
    traits = traits_def(NoTerminator())
    custom_directives = (Body,)
    assembly_format = "$symbol custom<Body>($body) attr-dict"


@irdl_op_definition
class RunOp(IRDLOperation):
    """Runs a sequence of the configured design."""

    name = "aiex.run"
    runtime_sequence_symbol = prop_def(FlatSymbolRefAttrConstr)
    args = var_operand_def()

    @classmethod
    def parse(cls, parser: Parser) -> RunOp:
        symbol = SymbolRefAttr(parser.parse_symbol_name())
        paren = parser.Delimiter.PAREN
        at = parser.pos
        operands = parser.parse_comma_separated_list(paren, parser.parse_unresolved_operand)
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(paren, parser.parse_type)
        resolved = parser.resolve_operands(operands, types, at)
        op = cls.build(operands=[resolved], properties={"runtime_sequence_symbol": symbol})
        op.attributes |= parser.parse_optional_attr_dict()
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(f" @{self.runtime_sequence_symbol.root_reference.data}")
        with printer.in_parens():
            printer.print_list(self.args, printer.print_ssa_value)
        printer.print_string(" : ")
        with printer.in_parens():
            printer.print_list([arg.type for arg in self.args], printer.print_attribute)
        printer.print_op_attributes(self.attributes)


@irdl_op_definition
class ConfigureTaskOp(DictOp):
    """A chain of BDs as a task of a channel."""

    name = "aiex.dma_configure_task"
    tile = operand_def(INDEX)
    direction = prop_def(CHANNEL_DIRECTION)
    channel = prop_def(I32Attr)
    issue_token = opt_prop_def(BoolAttr)
    repeat_count = opt_prop_def(I32Attr)
    packet = opt_prop_def(PacketInfoAttr)
    body = region_def()
    result = result_def(INDEX)
    custom_directives = (Keyword,)
    assembly_format = "`(` $tile `,` custom<Keyword>($direction) `,` $channel (`,` $packet^)? `)` $body attr-dict"


@irdl_op_definition
class ConfigureTaskForOp(DictOp):
    """A chain of BDs as a task of the shim channel that an allocation or object FIFO names."""

    name = "aiex.dma_configure_task_for"
    alloc = prop_def(SymbolRefAttr)
    issue_token = opt_prop_def(BoolAttr)
    repeat_count = opt_prop_def(I32Attr)
    body = region_def()
    result = result_def(INDEX)
    assembly_format = "$alloc $body attr-dict"


class _TaskUser(DictOp):
    """An operation on one task."""

    task = operand_def(INDEX)
    assembly_format = "`(` $task `)` attr-dict"


@irdl_op_definition
class StartTaskOp(_TaskUser):
    """Pushes the task into its channel's queue."""

    name = "aiex.dma_start_task"


@irdl_op_definition
class AwaitTaskOp(_TaskUser):
    """Waits for the task's token; its BDs are free then."""

    name = "aiex.dma_await_task"


@irdl_op_definition
class FreeTaskOp(_TaskUser):
    """Frees the task's BDs without waiting."""

    name = "aiex.dma_free_task"


class _StartBdChain(IRDLOperation):
    """Makes a task of an `aie.bd_chain` with arguments and starts it."""

    symbol = prop_def(FlatSymbolRefAttrConstr)
    args = var_operand_def()
    issue_token = opt_prop_def(BoolAttr)
    repeat_count = opt_prop_def(I32Attr)
    result = result_def(INDEX)

    @staticmethod
    def parse_call(parser: Parser) -> tuple[SymbolRefAttr, list[SSAValue]]:
        symbol = SymbolRefAttr(parser.parse_symbol_name())
        at, paren = parser.pos, parser.Delimiter.PAREN
        operands = parser.parse_comma_separated_list(paren, parser.parse_unresolved_operand)
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(paren, parser.parse_type)
        return symbol, list(parser.resolve_operands(operands, types, at))

    @staticmethod
    def parse_rest(parser: Parser, properties: dict[str, Attribute]) -> dict[str, Attribute]:
        attributes = dict(parser.parse_optional_attr_dict())
        properties |= {key: attributes.pop(key) for key in ("issue_token", "repeat_count") if key in attributes}
        return attributes

    def print_call(self, printer: Printer) -> None:
        printer.print_string(f" @{self.symbol.root_reference.data}")
        with printer.in_parens():
            printer.print_list(self.args, printer.print_ssa_value)
        printer.print_string(" : ")
        with printer.in_parens():
            printer.print_list([arg.type for arg in self.args], printer.print_attribute)

    def print_rest(self, printer: Printer) -> None:
        shown = {key: self.properties[key] for key in ("issue_token", "repeat_count") if key in self.properties}
        printer.print_op_attributes(shown | self.attributes)


@irdl_op_definition
class StartBdChainOp(_StartBdChain):
    """On a tile's channel."""

    name = "aiex.dma_start_bd_chain"
    tile = operand_def(INDEX)
    direction = prop_def(CHANNEL_DIRECTION)
    channel = prop_def(I32Attr)

    @classmethod
    def parse(cls, parser: Parser) -> StartBdChainOp:
        symbol, values = cls.parse_call(parser)
        parser.parse_keyword("on")
        properties: dict[str, Attribute] = {"symbol": symbol}
        with parser.in_parens():
            tile = parser.parse_operand(INDEX)
            parser.parse_punctuation(",")
            properties["direction"] = StringAttr(parser.parse_identifier_or_str_literal())
            parser.parse_punctuation(",")
            properties["channel"] = int_attr(parser.parse_integer())
        attributes = cls.parse_rest(parser, properties)
        return cls.build(operands=[tile, values], properties=properties, attributes=attributes, result_types=[INDEX])

    def print(self, printer: Printer) -> None:
        self.print_call(printer)
        printer.print_string(" on (")
        printer.print_ssa_value(self.tile)
        printer.print_string(f", {self.properties['direction'].data}, {self.channel.value.data})")
        self.print_rest(printer)


@irdl_op_definition
class StartBdChainForOp(_StartBdChain):
    """On the shim channel that an allocation or object FIFO names."""

    name = "aiex.dma_start_bd_chain_for"
    alloc = prop_def(FlatSymbolRefAttrConstr)

    @classmethod
    def parse(cls, parser: Parser) -> StartBdChainForOp:
        symbol, values = cls.parse_call(parser)
        parser.parse_keyword("for")
        properties: dict[str, Attribute] = {"symbol": symbol, "alloc": SymbolRefAttr(parser.parse_symbol_name())}
        attributes = cls.parse_rest(parser, properties)
        return cls.build(operands=[values], properties=properties, attributes=attributes, result_types=[INDEX])

    def print(self, printer: Printer) -> None:
        self.print_call(printer)
        printer.print_string(f" for @{self.alloc.root_reference.data}")
        self.print_rest(printer)


_ZEROS = tuple(f"d{dim}_zero_{side}" for dim in range(3) for side in ("before", "after"))


@irdl_op_definition
class DmaMemcpyNdOp(IRDLOperation):
    """One shim transfer: configure, push; lists are outermost first, the outermost is the iteration."""

    name = "aiex.npu.dma_memcpy_nd"
    memref = operand_def(MemRefType)
    offsets = var_operand_def()
    sizes = var_operand_def()
    strides = var_operand_def()
    metadata = prop_def(SymbolRefAttr)
    id = prop_def(I64Attr)
    issue_token = opt_prop_def(BoolAttr)
    packet = opt_prop_def(PacketInfoAttr)
    burst_length = opt_prop_def(I64Attr)
    d0_zero_before = opt_prop_def(I64Attr)
    d1_zero_before = opt_prop_def(I64Attr)
    d2_zero_before = opt_prop_def(I64Attr)
    d0_zero_after = opt_prop_def(I64Attr)
    d1_zero_after = opt_prop_def(I64Attr)
    d2_zero_after = opt_prop_def(I64Attr)
    # The written numbers, None where a value stands; twelve of them: offsets, sizes, strides.
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __post_init__(self) -> None:
        self.written: list[list[int | SSAValue]] = []

    @classmethod
    def parse(cls, parser: Parser) -> DmaMemcpyNdOp:
        properties: dict[str, Attribute] = {}
        with parser.in_parens():
            # The form before 2025-03 begins with column and row.
            while parser.parse_optional_integer() is not None:
                parser.parse_punctuation(",")
            operand = parser.parse_unresolved_operand()
            lists = [_parse_mixed(parser) for _ in range(3)]
            if parser.parse_optional_punctuation(","):
                parser.parse_keyword("packet")
                parser.parse_punctuation("=")
                properties["packet"] = PacketInfoAttr(PacketInfoAttr.parse_parameter(parser))
        attributes = dict(parser.parse_optional_attr_dict())
        parser.parse_punctuation(":")
        memref = parser.resolve_operand(operand, parser.parse_type())
        for key in ("metadata", "id", "issue_token", "burst_length", *_ZEROS):
            if key in attributes:
                properties[key] = attributes.pop(key)
        values = [[item for item in items if isinstance(item, SSAValue)] for items in lists]
        op = cls.build(operands=[memref, *values], properties=properties, attributes=attributes)
        op.written = lists
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string("(")
        printer.print_ssa_value(self.memref)
        for items in self.written:
            with printer.in_square_brackets():
                printer.print_list(items, lambda item: _print_mixed(printer, item))
        if self.packet is not None:
            printer.print_string(", packet = ")
            self.packet.print_parameter(printer)
        printer.print_string(")")
        shown = {key: value for key, value in self.properties.items() if key not in ("operandSegmentSizes", "packet")}
        printer.print_op_attributes(shown | self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.memref.type)


def _parse_mixed(parser: Parser) -> list[int | SSAValue]:
    def item() -> int | SSAValue:
        number = parser.parse_optional_integer()
        return parser.parse_operand(i64) if number is None else number

    items = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, item)
    if len(items) != 4:
        parser.raise_error(f"dma_memcpy_nd takes lists of 4, found {len(items)}")
    return items


def _print_mixed(printer: Printer, item: int | SSAValue) -> None:
    if isinstance(item, SSAValue):
        printer.print_ssa_value(item)
    else:
        printer.print_string(str(item))


@irdl_op_definition
class DmaWaitOp(DictOp):
    """Waits for the token of the last transfer on a symbol's channel."""

    name = "aiex.npu.dma_wait"
    symbol = prop_def(FlatSymbolRefAttrConstr)
    assembly_format = "attr-dict"


@irdl_op_definition
class SyncOp(DictOp):
    """Waits for the next token of one DMA channel; direction 0 is S2MM, 1 MM2S."""

    name = "aiex.npu.sync"
    column = prop_def(I32Attr)
    row = prop_def(I32Attr)
    direction = prop_def(I32Attr)
    channel = prop_def(I32Attr)
    column_num = prop_def(I32Attr)
    row_num = prop_def(I32Attr)
    assembly_format = "attr-dict"


@irdl_op_definition
class RtpWriteOp(IRDLOperation):
    """Writes one constant 32-bit word into a core's buffer; `index` counts words."""

    name = "aiex.npu.rtp_write"
    buffer = prop_def(FlatSymbolRefAttrConstr)
    index = prop_def(IntegerAttr)
    value = prop_def(I32Attr)

    @classmethod
    def of(cls, buffer: str, index: int, value: int) -> RtpWriteOp:
        """A write of `value` to word `index` of `buffer`."""
        return cls.build(
            properties={
                "buffer": SymbolRefAttr(buffer),
                "index": IntegerAttr(index, UI32),
                "value": IntegerAttr(value, 32),
            }
        )

    @classmethod
    def parse(cls, parser: Parser) -> RtpWriteOp:
        with parser.in_parens():
            buffer = parser.parse_symbol_name().data
            parser.parse_punctuation(",")
            index = parser.parse_integer(allow_negative=False)
            parser.parse_punctuation(",")
            value = parser.parse_integer()
        op = cls.of(buffer, index, value)
        op.attributes |= parser.parse_optional_attr_dict()
        return op

    def print(self, printer: Printer) -> None:
        name = self.buffer.root_reference.data
        printer.print_string(f"(@{name}, {self.index.value.data}, {self.value.value.data})")
        printer.print_op_attributes(self.attributes)


@irdl_op_definition
class SetLockOp(DictOp):
    """Sets a lock from the sequence."""

    name = "aiex.set_lock"
    lock = operand_def(INDEX)
    value = prop_def(I32Attr)
    assembly_format = "`(` $lock `,` $value `)` attr-dict"


OPERATIONS = [
    OldRuntimeSequenceOp, ConfigureOp, RunOp, ConfigureTaskOp, ConfigureTaskForOp, StartTaskOp, AwaitTaskOp,
    FreeTaskOp, StartBdChainOp, StartBdChainForOp, DmaMemcpyNdOp, DmaWaitOp, SyncOp, RtpWriteOp, SetLockOp,
]  # fmt: skip
