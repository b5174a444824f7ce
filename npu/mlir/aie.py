# SPDX-License-Identifier: Apache-2.0
"""The `aie` dialect, except object FIFOs (`aie_fifo.py`): device, tiles, memory, locks, DMAs, routes, sequences.

Assembly format and attribute names are those of mlir-aie's AIEOps.td of 2026-03.
"""

from __future__ import annotations

from xdsl.dialects.builtin import (
    ArrayAttr,
    BoolAttr,
    DenseIntOrFPElementsAttr,
    IndexType,
    IntegerAttr,
    MemRefType,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    TensorType,
    i1,
    i32,
)
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    successor_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, IsTerminator, NoTerminator, SymbolTable

from npu.mlir.attributes import (
    CHANNEL_DIRECTION,
    DEVICE,
    LOCK_ACTION,
    LOCK_BLOCKING,
    WIRE_BUNDLE,
    Body,
    DictOp,
    DimsAttr,
    I8Attr,
    I32Attr,
    I64Attr,
    Keyword,
    PacketInfoAttr,
    PadsAttr,
)

INDEX = IndexType()


@irdl_op_definition
class DeviceOp(IRDLOperation):
    """One design on one device; its symbol defaults to `main`."""

    name = "aie.device"
    device = prop_def(DEVICE)
    sym_name = prop_def(SymbolNameConstraint())
    body = region_def()
    traits = traits_def(IsolatedFromAbove(), SymbolTable(), NoTerminator())

    @classmethod
    def parse(cls, parser: Parser) -> DeviceOp:
        with parser.in_parens():
            device = StringAttr(parser.parse_identifier_or_str_literal())
        symbol = parser.parse_optional_symbol_name() or StringAttr("main")
        region = parser.parse_region()
        if not region.blocks:
            region.add_block(Block())
        last = region.block.last_op
        if isinstance(last, EndOp):
            last.detach()
            last.erase()
        attributes = dict(parser.parse_optional_attr_dict())
        symbol = attributes.pop("sym_name", symbol)
        return cls.build(properties={"device": device, "sym_name": symbol}, regions=[region], attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(f"({self.properties['device'].data})")
        if self.sym_name.data != "main":
            printer.print_string(" ")
            printer.print_symbol_name(self.sym_name)
        printer.print_string(" ")
        printer.print_region(self.body, print_empty_block=False)
        printer.print_op_attributes(self.attributes)


@irdl_op_definition
class TileOp(DictOp):
    """A place of the array."""

    name = "aie.tile"
    col = prop_def(I32Attr)
    row = prop_def(I32Attr)
    allocation_scheme = opt_prop_def(StringAttr)
    result = result_def(INDEX)
    assembly_format = "`(` $col `,` $row `)` attr-dict"

    @property
    def place(self) -> tuple[int, int]:
        return self.col.value.data, self.row.value.data


@irdl_op_definition
class EndOp(DictOp):
    """Ends a body or a chain of BDs."""

    name = "aie.end"
    traits = traits_def(IsTerminator())
    assembly_format = "attr-dict"


@irdl_op_definition
class CoreOp(DictOp):
    """The program of a core."""

    name = "aie.core"
    tile = operand_def(INDEX)
    stack_size = opt_prop_def(I32Attr)
    link_with = opt_prop_def(StringAttr)
    link_files = opt_prop_def(ArrayAttr[StringAttr])
    elf_file = opt_prop_def(StringAttr)
    dynamic_objfifo_lowering = opt_prop_def(BoolAttr)
    body = region_def()
    result = result_def(INDEX)
    assembly_format = "`(` $tile `)` $body attr-dict"


_BUFFER_DICT = ("sym_name", "address", "mem_bank", "initial_value")


@irdl_op_definition
class BufferOp(IRDLOperation):
    """Memory of a tile, optionally with an address, a bank and an initial value."""

    name = "aie.buffer"
    tile = operand_def(INDEX)
    sym_name = opt_prop_def(StringAttr)
    address = opt_prop_def(I32Attr)
    mem_bank = opt_prop_def(I32Attr)
    initial_value = opt_prop_def(DenseIntOrFPElementsAttr)
    buffer = result_def(MemRefType)

    @classmethod
    def parse(cls, parser: Parser) -> BufferOp:
        with parser.in_parens():
            tile = parser.parse_operand(INDEX)
        attributes = dict(parser.parse_optional_attr_dict())
        parser.parse_punctuation(":")
        memref = parser.parse_type()
        if not isinstance(memref, MemRefType):
            parser.raise_error("expected a memref type")
        properties = {key: attributes.pop(key) for key in _BUFFER_DICT if key in attributes}
        if parser.parse_optional_punctuation("="):
            properties["initial_value"] = parse_dense(parser, memref)
        return cls.build(operands=[tile], properties=properties, attributes=attributes, result_types=[memref])

    def print(self, printer: Printer) -> None:
        printer.print_string("(")
        printer.print_ssa_value(self.tile)
        printer.print_string(")")
        shown = {key: value for key, value in self.properties.items() if key != "initial_value"}
        printer.print_op_attributes(shown | self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.buffer.type)
        if self.initial_value is not None:
            printer.print_string(" = ")
            print_dense(printer, self.initial_value)


def parse_dense(parser: Parser, memref: MemRefType) -> Attribute:
    """`dense<...>` without its type, which is the memref's shape and element."""
    parser.parse_keyword("dense")
    return parser.parse_dense_int_or_fp_elements_attr(TensorType(memref.element_type, memref.get_shape()))


def print_dense(printer: Printer, value: DenseIntOrFPElementsAttr) -> None:
    """The counterpart of `parse_dense`."""
    value.print_without_type(printer)


@irdl_op_definition
class LockOp(DictOp):
    """A counting semaphore of a tile."""

    name = "aie.lock"
    tile = operand_def(INDEX)
    lockID = opt_prop_def(I32Attr)
    init = opt_prop_def(I32Attr)
    sym_name = opt_prop_def(StringAttr)
    result = result_def(INDEX)
    assembly_format = "`(` $tile (`,` $lockID^)? `)` attr-dict"


@irdl_op_definition
class UseLockOp(IRDLOperation):
    """Acquire or release, by a core or a BD."""

    name = "aie.use_lock"
    lock = operand_def(INDEX)
    action = prop_def(LOCK_ACTION)
    value = opt_prop_def(I32Attr)
    blocking = opt_prop_def(LOCK_BLOCKING)
    acq_en = opt_prop_def(BoolAttr)

    @classmethod
    def parse(cls, parser: Parser) -> UseLockOp:
        properties: dict[str, Attribute] = {}
        with parser.in_parens():
            lock = parser.parse_operand(INDEX)
            parser.parse_punctuation(",")
            properties["action"] = StringAttr(parser.parse_identifier_or_str_literal())
            while parser.parse_optional_punctuation(","):
                number = parser.parse_optional_integer()
                if number is not None:
                    properties["value"] = IntegerAttr(number, i32)
                else:
                    properties["blocking"] = StringAttr(parser.parse_identifier_or_str_literal())
        attributes = dict(parser.parse_optional_attr_dict())
        if "acq_en" in attributes:
            properties["acq_en"] = attributes.pop("acq_en")
        return cls.build(operands=[lock], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string("(")
        printer.print_ssa_value(self.lock)
        printer.print_string(f", {self.properties['action'].data}")
        if self.value is not None:
            printer.print_string(f", {self.value.value.data}")
        if "blocking" in self.properties:
            printer.print_string(f", {self.properties['blocking'].data}")
        printer.print_string(")")
        shown = {"acq_en": self.acq_en} if self.acq_en is not None else {}
        printer.print_op_attributes(shown | self.attributes)


class _DmaRegion(DictOp):
    """A tile's DMA program."""

    tile = operand_def(INDEX)
    body = region_def()
    result = result_def(INDEX)
    assembly_format = "`(` $tile `)` $body attr-dict"


@irdl_op_definition
class MemOp(_DmaRegion):
    """DMA of a core tile."""

    name = "aie.mem"


@irdl_op_definition
class MemTileDmaOp(_DmaRegion):
    """DMA of a memtile."""

    name = "aie.memtile_dma"


@irdl_op_definition
class ShimDmaOp(_DmaRegion):
    """Static DMA of a shim."""

    name = "aie.shim_dma"


@irdl_op_definition
class DmaStartOp(DictOp):
    """Starts a channel with a chain of BDs, executed 1 + repeat_count times where the chain ends."""

    name = "aie.dma_start"
    channel_dir = prop_def(CHANNEL_DIRECTION)
    channel_index = prop_def(I32Attr)
    repeat_count = opt_prop_def(I32Attr)
    dest = successor_def()
    chain = successor_def()
    valid = result_def(i1)
    traits = traits_def(IsTerminator())
    custom_directives = (Keyword,)
    assembly_format = (
        "`(` custom<Keyword>($channel_dir) `,` $channel_index `,` $dest `,` $chain"
        " (`,` `repeat_count` `=` $repeat_count^)? `)` attr-dict"
    )


@irdl_op_definition
class NextBdOp(DictOp):
    """The BD that follows in the chain."""

    name = "aie.next_bd"
    dest = successor_def()
    traits = traits_def(IsTerminator())
    assembly_format = "$dest attr-dict"


@irdl_op_definition
class DmaBdPacketOp(DictOp):
    """Packet header of the BD in this block."""

    name = "aie.dma_bd_packet"
    packet_type = prop_def(I32Attr)
    packet_id = prop_def(I32Attr)
    assembly_format = "`(` $packet_type `,` $packet_id `)` attr-dict"


_BD_DICT = ("bd_id", "packet", "burst_length", "next_bd_id")


@irdl_op_definition
class DmaBdOp(IRDLOperation):
    """A buffer descriptor: buffer, offset, length, dims (outermost first), pads; units are elements."""

    name = "aie.dma_bd"
    buffer = operand_def(MemRefType)
    offset = opt_prop_def(I32Attr)
    len = opt_prop_def(I32Attr)
    dimensions = opt_prop_def(DimsAttr)
    pad_dimensions = opt_prop_def(PadsAttr)
    pad_value = opt_prop_def(I32Attr)
    bd_id = opt_prop_def(I32Attr)
    packet = opt_prop_def(PacketInfoAttr)
    burst_length = opt_prop_def(I32Attr)
    next_bd_id = opt_prop_def(I32Attr)

    @classmethod
    def parse(cls, parser: Parser) -> DmaBdOp:
        properties: dict[str, Attribute] = {}
        with parser.in_parens():
            operand = parser.parse_unresolved_operand()
            parser.parse_punctuation(":")
            memref = parser.parse_type()
            buffer = parser.resolve_operand(operand, memref)
            for key in ("offset", "len"):
                if parser.parse_optional_punctuation(","):
                    properties[key] = IntegerAttr(parser.parse_integer(), i32)
            if parser.parse_optional_punctuation(","):
                properties["dimensions"] = DimsAttr(DimsAttr.parse_parameter(parser))
            if parser.parse_optional_punctuation(","):
                if not parser.parse_optional_keyword("pad_value"):
                    properties["pad_dimensions"] = PadsAttr(PadsAttr.parse_parameter(parser))
                    if parser.parse_optional_punctuation(","):
                        parser.parse_keyword("pad_value")
                        properties["pad_value"] = _parse_pad_value(parser)
                else:
                    properties["pad_value"] = _parse_pad_value(parser)
        attributes = dict(parser.parse_optional_attr_dict())
        properties |= {key: attributes.pop(key) for key in (*_BD_DICT, "offset", "len") if key in attributes}
        return cls.build(operands=[buffer], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string("(")
        printer.print_ssa_value(self.buffer)
        printer.print_string(" : ")
        printer.print_attribute(self.buffer.type)
        offset = self.offset.value.data if self.offset is not None else 0
        if self.len is not None or offset:
            printer.print_string(f", {offset}")
        if self.len is not None:
            printer.print_string(f", {self.len.value.data}")
        for pairs in (self.dimensions, self.pad_dimensions):
            if pairs is not None:
                printer.print_string(", ")
                pairs.print_parameter(printer)
        if self.pad_value is not None and self.pad_value.value.data:
            printer.print_string(f", pad_value = {self.pad_value.value.data}")
        printer.print_string(")")
        shown = {key: self.properties[key] for key in _BD_DICT if key in self.properties}
        printer.print_op_attributes(shown | self.attributes)


def _parse_pad_value(parser: Parser) -> Attribute:
    parser.parse_punctuation("=")
    return IntegerAttr(parser.parse_integer(), i32)


@irdl_op_definition
class FlowOp(DictOp):
    """A circuit-switched stream."""

    name = "aie.flow"
    source = operand_def(INDEX)
    source_bundle = prop_def(WIRE_BUNDLE)
    source_channel = prop_def(I32Attr)
    dest = operand_def(INDEX)
    dest_bundle = prop_def(WIRE_BUNDLE)
    dest_channel = prop_def(I32Attr)
    custom_directives = (Keyword,)
    assembly_format = (
        "`(` $source `,` custom<Keyword>($source_bundle) `:` $source_channel `,`"
        " $dest `,` custom<Keyword>($dest_bundle) `:` $dest_channel `)` attr-dict"
    )


@irdl_op_definition
class PacketFlowOp(DictOp):
    """A packet-switched stream: one source, one or more destinations."""

    name = "aie.packet_flow"
    ID = prop_def(I8Attr)
    keep_pkt_header = opt_prop_def(BoolAttr)
    priority_route = opt_prop_def(BoolAttr)
    ports = region_def()
    traits = traits_def(NoTerminator())
    custom_directives = (Body,)
    assembly_format = "`(` $ID `)` custom<Body>($ports) attr-dict"


class _PacketEnd(DictOp):
    """One end of a packet flow."""

    tile = operand_def(INDEX)
    bundle = prop_def(WIRE_BUNDLE)
    channel = prop_def(I32Attr)
    custom_directives = (Keyword,)
    assembly_format = "`<` $tile `,` custom<Keyword>($bundle) `:` $channel `>` attr-dict"


@irdl_op_definition
class PacketSourceOp(_PacketEnd):
    """Where packets come from."""

    name = "aie.packet_source"


@irdl_op_definition
class PacketDestOp(_PacketEnd):
    """Where packets go."""

    name = "aie.packet_dest"


@irdl_op_definition
class CascadeFlowOp(DictOp):
    """Cascade stream between neighbouring cores."""

    name = "aie.cascade_flow"
    source_tile = operand_def(INDEX)
    dest_tile = operand_def(INDEX)
    assembly_format = "`(` $source_tile `,` $dest_tile `)` attr-dict"


@irdl_op_definition
class ShimDmaAllocationOp(DictOp):
    """Names a shim DMA channel."""

    name = "aie.shim_dma_allocation"
    sym_name = prop_def(SymbolNameConstraint())
    tile = operand_def(INDEX)
    channel_dir = prop_def(CHANNEL_DIRECTION)
    channel_index = prop_def(I64Attr)
    plio = opt_prop_def(BoolAttr)
    packet = opt_prop_def(PacketInfoAttr)
    custom_directives = (Keyword,)
    assembly_format = (
        "$sym_name `(` $tile `,` custom<Keyword>($channel_dir) `,` $channel_index (`,` $packet^)? `)` attr-dict"
    )


class _RuntimeSequence(IRDLOperation):
    """The program of the command processor; its symbol defaults to `sequence`."""

    sym_name = prop_def(SymbolNameConstraint())
    body = region_def()
    traits = traits_def(NoTerminator())

    @classmethod
    def parse(cls, parser: Parser) -> _RuntimeSequence:
        symbol = parser.parse_optional_symbol_name() or StringAttr("sequence")
        arguments = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
        region = parser.parse_region(arguments)
        attributes = parser.parse_optional_attr_dict()
        return cls.build(properties={"sym_name": symbol}, regions=[region], attributes=dict(attributes))

    def print(self, printer: Printer) -> None:
        if self.sym_name.data != "sequence":
            printer.print_string(" ")
            printer.print_symbol_name(self.sym_name)
        with printer.in_parens():
            printer.print_list(self.body.block.args, printer.print_block_argument)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False, print_empty_block=False)
        printer.print_op_attributes(self.attributes)


@irdl_op_definition
class RuntimeSequenceOp(_RuntimeSequence):
    """`aie.runtime_sequence`."""

    name = "aie.runtime_sequence"


@irdl_op_definition
class BdChainOp(IRDLOperation):
    """A chain of BDs over parameters (buffers and locks), which sequences start with arguments."""

    name = "aie.bd_chain"
    sym_name = prop_def(SymbolNameConstraint())
    body = region_def()

    @classmethod
    def parse(cls, parser: Parser) -> BdChainOp:
        symbol = parser.parse_symbol_name()
        arguments = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
        region = parser.parse_region(arguments)
        attributes = parser.parse_optional_attr_dict()
        return cls.build(properties={"sym_name": symbol}, regions=[region], attributes=dict(attributes))

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name)
        with printer.in_parens():
            printer.print_list(self.body.blocks.first.args, printer.print_block_argument)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)
        printer.print_op_attributes(self.attributes)


def tile_place(value: SSAValue) -> tuple[int, int]:
    """Column and row of the tile that `value` is."""
    owner = value.owner
    if not isinstance(owner, TileOp):
        raise TypeError("the operand is not an aie.tile")
    return owner.place


def empty_region() -> Region:
    """A region of one empty block."""
    return Region(Block())


def flat(name: str) -> SymbolRefAttr:
    """`@name`."""
    return SymbolRefAttr(name)


OPERATIONS = [
    DeviceOp, TileOp, EndOp, CoreOp, BufferOp, LockOp, UseLockOp, MemOp, MemTileDmaOp, ShimDmaOp, DmaStartOp,
    NextBdOp, DmaBdPacketOp, DmaBdOp, FlowOp, PacketFlowOp, PacketSourceOp, PacketDestOp, CascadeFlowOp,
    ShimDmaAllocationOp, RuntimeSequenceOp, BdChainOp,
]  # fmt: skip
