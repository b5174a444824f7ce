# SPDX-License-Identifier: Apache-2.0
"""The `aiex` operations of lowered sequences: register writes, queue pushes, address patches, loading of a PDI.

Assembly format and attribute names are those of mlir-aie's AIEX.td of 2026-03.
"""

from __future__ import annotations

from xdsl.dialects.builtin import BoolAttr, FlatSymbolRefAttrConstr, IntegerAttr, MemRefType
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def

from npu.mlir.attributes import CHANNEL_DIRECTION, DictOp, I32Attr, Keyword


class RegisterOp(DictOp):
    """A write to an address: absolute, an offset into a tile (`column`, `row`), or a word of `buffer`."""

    address = prop_def(IntegerAttr)
    buffer = opt_prop_def(FlatSymbolRefAttrConstr)
    column = opt_prop_def(I32Attr)
    row = opt_prop_def(I32Attr)


@irdl_op_definition
class Write32Op(RegisterOp):
    """Writes one word."""

    name = "aiex.npu.write32"
    value = prop_def(IntegerAttr)
    assembly_format = "attr-dict"


@irdl_op_definition
class MaskWrite32Op(RegisterOp):
    """Writes the bits of one word that the mask has."""

    name = "aiex.npu.maskwrite32"
    value = prop_def(IntegerAttr)
    mask = prop_def(IntegerAttr)
    assembly_format = "attr-dict"


@irdl_op_definition
class BlockWriteOp(RegisterOp):
    """Writes the words of a memref.global."""

    name = "aiex.npu.blockwrite"
    data = operand_def(MemRefType)
    assembly_format = "`(` $data `)` attr-dict `:` type($data)"


@irdl_op_definition
class AddressPatchOp(DictOp):
    """Puts the address of an argument, `arg_plus` bytes on, into a shim BD's address register."""

    name = "aiex.npu.address_patch"
    addr = prop_def(IntegerAttr)
    arg_idx = prop_def(I32Attr)
    arg_plus = prop_def(I32Attr)
    assembly_format = "attr-dict"


@irdl_op_definition
class PushQueueOp(DictOp):
    """Pushes a BD into a channel's task queue."""

    name = "aiex.npu.push_queue"
    column = prop_def(I32Attr)
    row = prop_def(I32Attr)
    direction = prop_def(CHANNEL_DIRECTION)
    channel = prop_def(I32Attr)
    issue_token = prop_def(BoolAttr)
    repeat_count = prop_def(I32Attr)
    bd_id = prop_def(I32Attr)
    custom_directives = (Keyword,)
    assembly_format = "`(` $column `,` $row `,` custom<Keyword>($direction) `:` $channel `)` attr-dict"


@irdl_op_definition
class WriteBdOp(DictOp):
    """Writes a whole BD by the values of its fields, as the registers hold them."""

    name = "aiex.npu.writebd"
    column = prop_def(I32Attr)
    row = prop_def(I32Attr)
    bd_id = prop_def(I32Attr)
    buffer_length = prop_def(I32Attr)
    buffer_offset = prop_def(I32Attr)
    enable_packet = prop_def(I32Attr)
    out_of_order_id = prop_def(I32Attr)
    packet_id = prop_def(I32Attr)
    packet_type = prop_def(I32Attr)
    d0_size = prop_def(I32Attr)
    d0_stride = prop_def(I32Attr)
    d1_size = prop_def(I32Attr)
    d1_stride = prop_def(I32Attr)
    d2_size = opt_prop_def(I32Attr)
    d2_stride = prop_def(I32Attr)
    iteration_current = prop_def(I32Attr)
    iteration_size = prop_def(I32Attr)
    iteration_stride = prop_def(I32Attr)
    next_bd = prop_def(I32Attr)
    use_next_bd = prop_def(I32Attr)
    valid_bd = prop_def(I32Attr)
    lock_rel_val = prop_def(I32Attr)
    lock_rel_id = prop_def(I32Attr)
    lock_acq_enable = prop_def(I32Attr)
    lock_acq_val = prop_def(I32Attr)
    lock_acq_id = prop_def(I32Attr)
    d0_zero_before = opt_prop_def(I32Attr)
    d1_zero_before = opt_prop_def(I32Attr)
    d2_zero_before = opt_prop_def(I32Attr)
    d0_zero_after = opt_prop_def(I32Attr)
    d1_zero_after = opt_prop_def(I32Attr)
    d2_zero_after = opt_prop_def(I32Attr)
    burst_length = opt_prop_def(I32Attr)
    ddr_id = opt_prop_def(I32Attr)  # before 2024-08: the argument whose address the BD gets
    assembly_format = "attr-dict"


@irdl_op_definition
class PreemptOp(DictOp):
    """Lets more urgent work in; values do not depend on it."""

    name = "aiex.npu.preempt"
    level = prop_def(IntegerAttr)
    assembly_format = "attr-dict"


@irdl_op_definition
class LoadPdiOp(DictOp):
    """Loads a design into the array."""

    name = "aiex.npu.load_pdi"
    device_ref = opt_prop_def(FlatSymbolRefAttrConstr)
    id = opt_prop_def(I32Attr)
    size = opt_prop_def(I32Attr)
    address = opt_prop_def(IntegerAttr)
    assembly_format = "attr-dict"


OPERATIONS = [
    Write32Op, MaskWrite32Op, BlockWriteOp, AddressPatchOp, PushQueueOp, WriteBdOp, PreemptOp, LoadPdiOp,
]  # fmt: skip
