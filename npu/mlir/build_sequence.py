# SPDX-License-Identifier: Apache-2.0
"""Builds runtime sequences: shim DMA tasks, runtime parameters, configure and run of other designs.

Offsets, sizes and strides are in elements of the argument. Of four dimensions the outermost is the shim's
iteration: one execution of a BD covers the other three, and the task must be repeated size - 1 times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from xdsl.dialects import memref
from xdsl.dialects.builtin import BoolAttr, MemRefType, StridedLayoutAttr, SymbolRefAttr
from xdsl.ir import Block, Operation, Region, SSAValue

from npu.mlir.aie import INDEX, DmaBdOp, EndOp, NextBdOp
from npu.mlir.aiex import AwaitTaskOp, ConfigureOp, ConfigureTaskForOp, FreeTaskOp, RtpWriteOp, RunOp, StartTaskOp
from npu.mlir.attributes import DimsAttr, int_attr
from npu.mlir.types import memref_type, row_major_strides, scalar_type
from npu.program import MemRef
from refusal import Refusal

if TYPE_CHECKING:
    from npu.mlir.build import BufferHandle, Fifo


@dataclass(frozen=True)
class Bd:
    """One BD on a sequence argument; `length` elements are moved by one execution."""

    argument: int
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    length: int


@dataclass(frozen=True)
class View:
    """A dense slice of a sequence argument, as an argument of a run."""

    argument: int
    offset: int
    type: MemRef


@dataclass(frozen=True)
class Task:
    """A configured task."""

    value: SSAValue
    token: bool
    fifo: str


class SequenceBuilder:
    """Appends instructions; `args[i]` is argument i's value."""

    def __init__(self, where: str, arguments: Sequence[MemRef]) -> None:
        self._where = where
        self.arguments = tuple(arguments)
        self.block = Block(arg_types=[memref_type(argument) for argument in arguments])
        for index, value in enumerate(self.block.args):
            value.name_hint = f"arg{index}"
        self._ops: list[Operation] | None = None

    @property
    def args(self) -> tuple[SSAValue, ...]:
        return tuple(self.block.args)

    def _append(self, op: Operation) -> Operation:
        if self._ops is None:
            self.block.add_op(op)
        else:
            self._ops.append(op)
        return op

    def _refuse(self, found: str, expected: str) -> Refusal:
        return Refusal(found, expected=expected, where=self._where, next_step="correct the design")

    def bd(
        self,
        argument: int,
        offset: int,
        sizes: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        length: int | None = None,
    ) -> Bd:
        """A BD: sizes and strides outermost first, at most 4; without them `length` elements in a row.

        `length` defaults to the product of the innermost three sizes, as mlir-aie requires.
        """
        sizes, strides = tuple(sizes or ()), tuple(strides or ())
        if len(sizes) != len(strides) or len(sizes) > 4:
            raise self._refuse(f"{len(sizes)} sizes and {len(strides)} strides", "equally many, at most 4")
        if not sizes and length is None:
            raise self._refuse("a BD without sizes and length", "one of them")
        if length is None:
            length = prod(sizes[-3:])
        # mlir-aie checks the stride of a dimension of size 1 for granularity too, though it is never applied.
        inner = len(sizes) - 1
        strides = tuple(0 if size == 1 and axis != inner else stride
                        for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)))  # fmt: skip
        if not 0 <= argument < len(self.arguments):
            raise self._refuse(f"argument {argument}", f"0..{len(self.arguments) - 1}")
        last = offset + (sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
                         if sizes else length - 1)  # fmt: skip
        if offset < 0 or last >= self.arguments[argument].elements:
            raise self._refuse(
                f"a BD on argument {argument} that reaches from {offset} to {last}",
                f"elements 0..{self.arguments[argument].elements - 1} of {self.arguments[argument]}",
            )
        return Bd(argument, offset, sizes, strides, length)

    def task(self, fifo: Fifo, bds: Sequence[Bd], token: bool = False, repeat: int = 0) -> Task:
        """Configure a task on the FIFO's shim channel: `bds` in a chain, executed 1 + repeat times per start."""
        if not bds:
            raise self._refuse(f"a task on @{fifo.name} without BDs", "at least one BD")
        blocks = [Block([self._bd_op(bd)]) for bd in bds]
        for block, following in pairwise(blocks):
            block.add_op(NextBdOp.build(successors=[following]))
        blocks[-1].add_op(EndOp.build())
        properties = {"alloc": SymbolRefAttr(fifo.name)}
        if token:
            properties["issue_token"] = BoolAttr.from_bool(True)
        if repeat:
            properties["repeat_count"] = int_attr(repeat)
        op = ConfigureTaskForOp.build(properties=properties, regions=[Region(blocks)], result_types=[INDEX])
        op.result.name_hint = "task"
        self._append(op)
        return Task(op.result, token, fifo.name)

    def _bd_op(self, bd: Bd) -> DmaBdOp:
        properties = {"offset": int_attr(bd.offset), "len": int_attr(bd.length)}
        if bd.sizes:
            properties["dimensions"] = DimsAttr(tuple(zip(bd.sizes, bd.strides, strict=True)))
        return DmaBdOp.build(operands=[self.block.args[bd.argument]], properties=properties)

    def start(self, task: Task) -> None:
        """Push the task into its channel's queue."""
        self._append(StartTaskOp.build(operands=[task.value]))

    def wait(self, task: Task) -> None:
        """Wait for the task's token; its BDs are free then."""
        if not task.token:
            raise self._refuse(f"waiting for a task on @{task.fifo} without a token", "token=True on the task")
        self._append(AwaitTaskOp.build(operands=[task.value]))

    def free(self, task: Task) -> None:
        """Free the task's BDs without waiting: the design vouches that it has ended."""
        self._append(FreeTaskOp.build(operands=[task.value]))

    def rtp_write(self, buffer: BufferHandle, index: int, value: int) -> None:
        """Write the 32-bit `value` to word `index` of a core's buffer."""
        self._append(RtpWriteOp.of(buffer.name, index, value))

    def view(self, argument: int, offset: int, type: MemRef) -> View:
        """`type.elements` elements of an argument from `offset`."""
        whole = self.arguments[argument]
        if type.dtype != whole.dtype or offset < 0 or offset + type.elements > whole.elements:
            raise self._refuse(f"{type} at element {offset} of argument {argument}", f"a slice of {whole}")
        return View(argument, offset, type)

    def run(self, device: str, sequence: str, arguments: Sequence[View | int]) -> None:
        """Load design `device` and run its `sequence`; an int passes a whole argument."""
        with self.configure(device):
            self.run_again(sequence, arguments)

    @contextmanager
    def configure(self, device: str) -> Iterator[None]:
        """Load design `device`; `run_again` inside runs its sequences without loading it anew."""
        self._ops = []
        yield
        ops, self._ops = self._ops, None
        op = ConfigureOp.build(properties={"symbol": SymbolRefAttr(device)}, regions=[Region(Block(ops))])
        self._append(op)

    def run_again(self, sequence: str, arguments: Sequence[View | int]) -> None:
        """Run a sequence of the design that the surrounding `configure` loaded."""
        if self._ops is None:
            raise self._refuse(f"a run of @{sequence} outside configure", "`with s.configure(device):` around it")
        values = [self._slice(argument) for argument in arguments]
        self._append(RunOp.build(operands=[values], properties={"runtime_sequence_symbol": SymbolRefAttr(sequence)}))

    def _slice(self, view: View | int) -> SSAValue:
        if isinstance(view, int):
            return self.block.args[view]
        source, whole = self.block.args[view.argument], self.arguments[view.argument]
        if view.offset == 0 and view.type == whole:
            return source
        if len(whole.shape) != 1:
            raise self._refuse(f"a slice of argument {view.argument}: {whole}", "an argument of one dimension")
        element, count = scalar_type(whole.dtype), view.type.elements
        strided = MemRefType(element, [count], StridedLayoutAttr([1], view.offset))
        slice = memref.SubviewOp.get(source, [view.offset], [count], [1], strided)
        slice.result.name_hint = "slice"
        self._append(slice)
        cast = memref.ReinterpretCastOp(
            slice.result, [], [], [], [0], list(view.type.shape), row_major_strides(view.type.shape),
            memref_type(view.type),
        )  # fmt: skip
        cast.result.name_hint = "view"
        self._append(cast)
        return cast.result
