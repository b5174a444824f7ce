# SPDX-License-Identifier: Apache-2.0
"""The builder that kernel designs use: modules and devices (cores and sequences have their own files).

    m = ModuleBuilder()
    d = m.device("gemm")
    shim, core = d.tile(0, 0), d.tile(0, 2)
    a = d.fifo("a_in", producer=shim, consumers=[core], depth=2, element=MemRef((64, 64), "bf16"))
    with d.core(core) as c: ...
    with d.sequence("run", [MemRef((4096,), "bf16")]) as s: ...
    text = m.text()

Shapes, offsets, sizes and strides are in elements. The text is in mlir-aie's assembly format of 2026-03.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, BoolAttr, MemRefType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, Region, SSAValue

from npu.mlir.aie import INDEX, BufferOp, CascadeFlowOp, CoreOp, DeviceOp, EndOp, RuntimeSequenceOp, TileOp
from npu.mlir.aie_fifo import ObjectFifoAllocateOp, ObjectFifoLinkOp, ObjectFifoOp, SymbolRefAttr
from npu.mlir.attributes import DimsAttr, ObjectFifoType, int_attr
from npu.mlir.build_core import CoreBuilder
from npu.mlir.build_sequence import SequenceBuilder
from npu.mlir.text import print_module
from npu.mlir.types import memref_type, scalar_type
from npu.program import MemRef, TileId
from refusal import Refusal

Dims = Sequence[tuple[int, int]]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")


@dataclass(frozen=True)
class Tile:
    """A place of the array in one device."""

    id: TileId
    value: SSAValue


@dataclass(frozen=True)
class Fifo:
    """An object FIFO."""

    name: str
    producer: Tile
    consumers: tuple[Tile, ...]
    element: MemRef


@dataclass(frozen=True)
class BufferHandle:
    """A named buffer of a tile."""

    name: str
    tile: Tile
    type: MemRef
    value: SSAValue


@dataclass(frozen=True)
class Kernel:
    """A C++ function: argument types are MemRefs or integer dtype names."""

    name: str
    arguments: tuple[MemRef | str, ...]
    link_with: str


class DeviceBuilder:
    """Builds one `aie.device`."""

    def __init__(self, name: str, target: str) -> None:
        self.name = name
        self.target = target
        self._tiles: dict[TileId, Tile] = {}
        self._kernels: dict[str, Kernel] = {}
        self._symbols: set[str] = set()
        # Printed in this order: everything that others refer to comes first.
        self._tile_ops: list[Operation] = []
        self._function_ops: list[Operation] = []
        self._buffer_ops: list[Operation] = []
        self._fifo_ops: list[Operation] = []
        self._core_ops: list[Operation] = []
        self._sequence_ops: list[Operation] = []

    def _claim(self, name: str, what: str) -> str:
        if not _NAME.fullmatch(name):
            raise Refusal(f"{what} name {name!r}", expected="a letter, then letters, digits, _ $ or .", where=self.name)
        if name in self._symbols:
            raise Refusal(f"{what} @{name} is there already", expected="a new symbol", where=f"device @{self.name}")
        self._symbols.add(name)
        return name

    def tile(self, col: int, row: int) -> Tile:
        """The tile at a place; created once."""
        place = TileId(col, row)
        if place not in self._tiles:
            op = TileOp.build(properties={"col": int_attr(col), "row": int_attr(row)}, result_types=[INDEX])
            op.result.name_hint = f"{place.kind}_c{col}r{row}"
            self._tile_ops.append(op)
            self._tiles[place] = Tile(place, op.result)
        return self._tiles[place]

    def fifo(
        self,
        name: str,
        *,
        producer: Tile,
        consumers: Sequence[Tile],
        depth: int | Sequence[int],
        element: MemRef,
        to_stream: Dims | None = None,
        from_stream: Sequence[Dims] | None = None,
        repeat_count: int | None = None,
        via_dma: bool = False,
        disable_synchronization: bool = False,
    ) -> Fifo:
        """An object FIFO.

        Args:
            depth: one number for all ends, or one per end, producer first.
            to_stream: (size, stride) pairs, outermost first, of the producer's DMA.
            from_stream: the same for each consumer.
            repeat_count: how often each element is sent.
            via_dma: use DMAs even between neighbours.
        """
        self._claim(name, "object FIFO")
        where = f"device @{self.name}, object FIFO @{name}"
        if not isinstance(depth, int) and len(depth) != len(consumers) + 1:
            raise Refusal(f"{len(depth)} depths", expected=f"{len(consumers) + 1}: one per end", where=where)
        views = list(from_stream) if from_stream is not None else [()] * len(consumers)
        if len(views) != len(consumers):
            raise Refusal(f"{len(views)} consumer layouts", expected=f"{len(consumers)}", where=where)
        number = int_attr(depth) if isinstance(depth, int) else ArrayAttr([int_attr(d) for d in depth])
        properties = {
            "sym_name": StringAttr(name),
            "elemNumber": number,
            "elemType": ObjectFifoType(memref_type(element)),
            "dimensionsToStream": DimsAttr(tuple(tuple(pair) for pair in to_stream or ())),
            "dimensionsFromStreamPerConsumer": ArrayAttr(
                [DimsAttr(tuple(tuple(pair) for pair in dims or ())) for dims in views]
            ),
        }
        if via_dma:
            properties["via_DMA"] = BoolAttr.from_bool(True)
        if disable_synchronization:
            properties["disable_synchronization"] = BoolAttr.from_bool(True)
        if repeat_count is not None:
            properties["repeat_count"] = int_attr(repeat_count)
        op = ObjectFifoOp.build(operands=[producer.value, [tile.value for tile in consumers]], properties=properties)
        self._fifo_ops.append(op)
        return Fifo(name, producer, tuple(consumers), element)

    def link(
        self,
        inputs: Sequence[Fifo],
        outputs: Sequence[Fifo],
        *,
        source_offsets: Sequence[int] = (),
        dest_offsets: Sequence[int] = (),
    ) -> None:
        """Link FIFOs through the tile between them; offsets in elements (source for a join, dest for a distribute)."""
        op = ObjectFifoLinkOp.of([f.name for f in inputs], [f.name for f in outputs], source_offsets, dest_offsets)
        self._fifo_ops.append(op)

    def allocate(self, fifo: Fifo, tile: Tile) -> None:
        """Put a shared-memory FIFO's elements into the memory of `tile`."""
        op = ObjectFifoAllocateOp.build(operands=[tile.value], properties={"objFifo_name": SymbolRefAttr(fifo.name)})
        self._fifo_ops.append(op)

    def cascade(self, source: Tile, dest: Tile) -> None:
        """A cascade stream between neighbouring cores."""
        self._fifo_ops.append(CascadeFlowOp.build(operands=[source.value, dest.value]))

    def buffer(self, tile: Tile, type: MemRef, name: str) -> BufferHandle:
        """A buffer in a tile's memory."""
        self._claim(name, "buffer")
        memref: MemRefType = memref_type(type)
        op = BufferOp.build(operands=[tile.value], properties={"sym_name": StringAttr(name)}, result_types=[memref])
        op.buffer.name_hint = _value_name(name)
        self._buffer_ops.append(op)
        return BufferHandle(name, tile, type, op.buffer)

    def kernel(self, name: str, arguments: Sequence[MemRef | str], link_with: str) -> Kernel:
        """Declare a kernel function; the same declaration again returns the same kernel."""
        kernel = Kernel(name, tuple(arguments), link_with)
        if name in self._kernels:
            if self._kernels[name] != kernel:
                raise Refusal(
                    f"kernel @{name} declared as {kernel.arguments}",
                    expected=f"its first declaration {self._kernels[name].arguments}",
                    where=f"device @{self.name}",
                )
            return self._kernels[name]
        self._claim(name, "kernel")
        types = [memref_type(arg) if isinstance(arg, MemRef) else scalar_type(arg) for arg in arguments]
        function = FuncOp.external(name, types, [])
        function.attributes["link_with"] = StringAttr(link_with)
        self._function_ops.append(function)
        self._kernels[name] = kernel
        return kernel

    @contextmanager
    def core(self, tile: Tile, *, stack_size: int = 1024, dynamic: bool = True) -> Iterator[CoreBuilder]:
        """The program of a core; `dynamic` leaves FIFO rotation to run time."""
        builder = CoreBuilder(f"device @{self.name}, {tile.id}")
        yield builder
        block = builder.finish(EndOp.build())
        properties = {"stack_size": int_attr(stack_size)}
        if dynamic:
            properties["dynamic_objfifo_lowering"] = BoolAttr.from_bool(True)
        op = CoreOp.build(operands=[tile.value], properties=properties, regions=[Region(block)], result_types=[INDEX])
        op.result.name_hint = f"program_c{tile.id.col}r{tile.id.row}"
        self._core_ops.append(op)

    @contextmanager
    def sequence(self, name: str, arguments: Sequence[MemRef]) -> Iterator[SequenceBuilder]:
        """A runtime sequence over `arguments`."""
        self._claim(name, "sequence")
        builder = SequenceBuilder(f"device @{self.name}, sequence @{name}", arguments)
        yield builder
        self._sequence_ops.append(
            RuntimeSequenceOp.build(properties={"sym_name": StringAttr(name)}, regions=[Region(builder.block)])
        )

    def build(self) -> DeviceOp:
        """The operation; call once."""
        ops = [
            *self._tile_ops, *self._function_ops, *self._buffer_ops, *self._fifo_ops, *self._core_ops,
            *self._sequence_ops,
        ]  # fmt: skip
        return DeviceOp.build(
            properties={"device": StringAttr(self.target), "sym_name": StringAttr(self.name)},
            regions=[Region(Block(ops))],
        )


class ModuleBuilder:
    """Builds one module of one or more devices."""

    def __init__(self) -> None:
        self._devices: dict[str, DeviceBuilder] = {}
        self._text: str | None = None

    def device(self, name: str, target: str = "npu2") -> DeviceBuilder:
        """A new device with symbol @name."""
        if name in self._devices:
            raise Refusal(f"device @{name} is there already", expected="a new symbol")
        self._devices[name] = DeviceBuilder(name, target)
        return self._devices[name]

    def text(self) -> str:
        """The module's text; the builder is finished then."""
        if self._text is None:
            self._text = print_module(ModuleOp([device.build() for device in self._devices.values()]))
        return self._text


def _value_name(symbol: str) -> str:
    """A value name for a symbol: xdsl mangles names that end in `_<digits>`."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", symbol)
    return name + "_v" if re.search(r"_\d+$", name) else name
