# SPDX-License-Identifier: Apache-2.0
"""Switchboxes, shim muxes and what stands in them: what routing passes make of flows."""

from __future__ import annotations

from xdsl.dialects.builtin import BoolAttr
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import NoTerminator

from npu.mlir.aie import INDEX
from npu.mlir.attributes import WIRE_BUNDLE, Body, DictOp, I8Attr, I32Attr, Keyword


class _Switch(DictOp):
    """Connections of one tile."""

    tile = operand_def(INDEX)
    connections = region_def()
    result = result_def(INDEX)
    traits = traits_def(NoTerminator())
    custom_directives = (Body,)
    assembly_format = "`(` $tile `)` custom<Body>($connections) attr-dict"


@irdl_op_definition
class SwitchboxOp(_Switch):
    """The stream switch of a tile."""

    name = "aie.switchbox"


@irdl_op_definition
class ShimMuxOp(_Switch):
    """Between a shim's stream switch (its North) and its DMA."""

    name = "aie.shim_mux"


@irdl_op_definition
class ConnectOp(DictOp):
    """A circuit from a slave port to a master port."""

    name = "aie.connect"
    source_bundle = prop_def(WIRE_BUNDLE)
    source_channel = prop_def(I32Attr)
    dest_bundle = prop_def(WIRE_BUNDLE)
    dest_channel = prop_def(I32Attr)
    custom_directives = (Keyword,)
    assembly_format = (
        "`<` custom<Keyword>($source_bundle) `:` $source_channel `,` custom<Keyword>($dest_bundle) `:` $dest_channel `>`"
        " attr-dict"
    )


@irdl_op_definition
class AmselOp(DictOp):
    """An arbiter and one of its master selects."""

    name = "aie.amsel"
    arbiterID = prop_def(I8Attr)
    msel = prop_def(I8Attr)
    result = result_def(INDEX)
    assembly_format = "`<` $arbiterID `>` `(` $msel `)` attr-dict"


@irdl_op_definition
class MastersetOp(DictOp):
    """A master port takes what goes to any of the given selects."""

    name = "aie.masterset"
    dest_bundle = prop_def(WIRE_BUNDLE)
    dest_channel = prop_def(I32Attr)
    keep_pkt_header = opt_prop_def(BoolAttr)
    amsels = var_operand_def(INDEX)
    result = result_def(INDEX)
    custom_directives = (Keyword,)
    assembly_format = "`(` custom<Keyword>($dest_bundle) `:` $dest_channel `,` $amsels `)` attr-dict"


@irdl_op_definition
class PacketRulesOp(DictOp):
    """Where the packets of a slave port go: the first rule that fits."""

    name = "aie.packet_rules"
    source_bundle = prop_def(WIRE_BUNDLE)
    source_channel = prop_def(I32Attr)
    rules = region_def()
    traits = traits_def(NoTerminator())
    custom_directives = (Keyword, Body)
    assembly_format = "`(` custom<Keyword>($source_bundle) `:` $source_channel `)` custom<Body>($rules) attr-dict"


@irdl_op_definition
class RuleOp(DictOp):
    """Packets with id & mask == value go to a select."""

    name = "aie.rule"
    mask = prop_def(I8Attr)
    value = prop_def(I8Attr)
    amsel = operand_def(INDEX)
    assembly_format = "`(` $mask `,` $value `,` $amsel `)` attr-dict"


@irdl_op_definition
class WireOp(DictOp):
    """Two neighbouring ports; the geometry says the same."""

    name = "aie.wire"
    source = operand_def(INDEX)
    source_bundle = prop_def(WIRE_BUNDLE)
    dest = operand_def(INDEX)
    dest_bundle = prop_def(WIRE_BUNDLE)
    custom_directives = (Keyword,)
    assembly_format = (
        "`(` $source `:` custom<Keyword>($source_bundle) `,` $dest `:` custom<Keyword>($dest_bundle) `)` attr-dict"
    )


OPERATIONS = [SwitchboxOp, ShimMuxOp, ConnectOp, AmselOp, MastersetOp, PacketRulesOp, RuleOp, WireOp]
