# SPDX-License-Identifier: Apache-2.0
"""Instructions that stand for another design: the body of `aiex.configure`, and what follows an `aiex.npu.load_pdi`.

They name the FIFOs, buffers and tasks of the design that is loaded, so they are read as a sequence of that device, with
the outer sequence's arguments, and run where they stood. A sequence that loads its own device first and only that one
is read as if it did not say so: a dispatch configures its device anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import SymbolRefAttr
from xdsl.ir import Block, Operation, Region

from npu.mlir.aie import DeviceOp, _RuntimeSequence
from npu.mlir.aiex import ConfigureOp, RunOp
from npu.mlir.aiex_registers import LoadPdiOp
from npu.mlir.text import ParsedModule
from refusal import Refusal

PASSIVE = (arith.ConstantOp, memref.SubviewOp, memref.ReinterpretCastOp, memref.AssumeAlignmentOp, memref.GetGlobalOp)


@dataclass(frozen=True)
class Inlined:
    """Instructions of a configure, to be read as sequence `name` of `device`."""

    name: str
    device: str
    sequence: _RuntimeSequence
    configure: ConfigureOp


def find_inlined(parsed: ParsedModule, devices: Iterable[DeviceOp]) -> list[Inlined]:
    """Every configure with instructions of its own; load_pdi is rewritten to configure before."""
    found = []
    for device in devices:
        for sequence in device.body.block.ops:
            if isinstance(sequence, _RuntimeSequence):
                found += _of(parsed, device.sym_name.data, sequence)
    return found


def _of(parsed: ParsedModule, device: str, sequence: _RuntimeSequence) -> list[Inlined]:
    _group(parsed, sequence.body.block)
    block = sequence.body.block
    active = [op for op in block.ops if not isinstance(op, PASSIVE)]
    configures = [op for op in active if isinstance(op, ConfigureOp) and _has_instructions(parsed, op)]
    if len(active) == 1 and configures and configures[0].symbol.root_reference.data == device:
        only = configures[0]
        for op in list(only.body.block.ops):
            op.detach()
            block.insert_op_before(op, only)
        only.detach()
        return []
    return [
        Inlined(f"{device}:{sequence.sym_name.data}:{number}", op.symbol.root_reference.data, sequence, op)
        for number, op in enumerate(configures)
    ]


def _group(parsed: ParsedModule, block: Block) -> None:
    """What follows a load_pdi, up to the next one, becomes the body of a configure."""
    current: ConfigureOp | None = None
    for op in list(block.ops):
        if isinstance(op, LoadPdiOp):
            if op.device_ref is None:
                raise _refuse(
                    parsed, op, "a load_pdi by number", "device_ref = @device: a number names no design of the text"
                )
            current = ConfigureOp.build(
                properties={"symbol": SymbolRefAttr(op.device_ref.root_reference.data)}, regions=[Region(Block())]
            )
            parsed.lines[current] = parsed.lines.get(op, 0)
            block.insert_op_before(current, op)
            op.detach()
        elif current is not None and not isinstance(op, PASSIVE):
            if isinstance(op, ConfigureOp):
                raise _refuse(parsed, op, "a configure after a load_pdi", "one or the other")
            op.detach()
            current.body.block.add_op(op)


def _has_instructions(parsed: ParsedModule, configure: ConfigureOp) -> bool:
    """Whether there is something else than runs; both in one are refused."""
    inside = [op for op in configure.body.block.ops if not isinstance(op, PASSIVE)]
    others = [op for op in inside if not isinstance(op, RunOp)]
    if others and len(others) < len(inside):
        raise _refuse(parsed, others[0], f"{others[0].name} beside aiex.run in one configure", "runs, or instructions")
    return bool(others) or not inside


def _refuse(parsed: ParsedModule, op: Operation, found: str, expected: str) -> Refusal:
    return Refusal(found, expected=expected, where=parsed.where(op), next_step="change the sequence")
