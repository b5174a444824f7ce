# SPDX-License-Identifier: Apache-2.0
"""Plain data between the reader and the object-FIFO lowering: what one device declares, free of xdsl."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

from npu.program import Buffer, BufferDescriptor, Channel, Dim, DmaProgram, FifoEnd, Lock, MemRef, Route, TileId
from refusal import Refusal

EndKey = tuple[TileId, str, str]  # tile of the core, FIFO, port


@dataclass(frozen=True)
class FifoSpec:
    """One `aie.objectfifo`. Strides in elements; `depths` is one number, or one per end with the producer first."""

    name: str
    producer: TileId
    consumers: tuple[TileId, ...]
    depths: int | tuple[int, ...]
    element: MemRef
    to_stream: tuple[Dim, ...] = ()
    from_stream: tuple[tuple[Dim, ...], ...] = ()
    via_dma: bool = False
    disable_synchronization: bool = False
    repeat_count: int | None = None
    iter_count: int | None = None
    padding: tuple[tuple[int, int], ...] = ()
    initial: tuple[bytes, ...] | None = None
    allocate: TileId | None = None
    where: str = ""

    def depth(self, end: int = 0) -> int:
        """Elements at an end (0 is the producer) as written."""
        return self.depths if isinstance(self.depths, int) else self.depths[end]


@dataclass(frozen=True)
class LinkSpec:
    """One `aie.objectfifo.link`; offsets in elements of the larger side."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    source_offsets: tuple[int, ...] = ()
    dest_offsets: tuple[int, ...] = ()
    where: str = ""

    @property
    def is_join(self) -> bool:
        return len(self.inputs) > 1

    @property
    def is_distribute(self) -> bool:
        return len(self.outputs) > 1


@dataclass(frozen=True)
class AcquireSpec:
    """An acquire in a core: what decides pool sizes."""

    tile: TileId
    fifo: str
    port: str
    count: int


@dataclass
class Lowered:
    """What object FIFOs become. `shims` maps a FIFO to its shim channel, `ends` the FIFOs' ends in cores."""

    buffers: list[Buffer] = field(default_factory=list)
    locks: list[Lock] = field(default_factory=list)
    dmas: list[DmaProgram] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    ends: dict[EndKey, FifoEnd] = field(default_factory=dict)
    shims: dict[str, Channel] = field(default_factory=dict)


def ring(channel: Channel, bds: list[BufferDescriptor], executions: int | None) -> DmaProgram:
    """A BD ring, or with `executions` a chain that ends and is executed that often."""
    last = len(bds) - 1
    following = [index + 1 if index < last else (0 if executions is None else None) for index in range(len(bds))]
    linked = tuple(replace(bd, next=after) for bd, after in zip(bds, following, strict=True))
    return DmaProgram(channel, linked, repeat_count=0 if executions is None else executions - 1)


def moved(dims: tuple[Dim, ...], padding: tuple[tuple[int, int], ...]) -> int:
    """Elements that one execution puts into the stream: the sizes with what is padded before and after, multiplied."""
    pads = padding or ((0, 0),) * len(dims)
    return prod(dim.size + before + after for dim, (before, after) in zip(dims, pads, strict=True))


def by_length(dims: tuple[Dim, ...], length: int, wrap_dims: int) -> tuple[Dim, ...] | None:
    """The data dimensions of an in-array BD as its DMA counts them, where their sizes do not multiply to `length`.

    Only the innermost `wrap_dims` sizes have a field; the next dimension goes on until `length` elements are moved,
    whatever its size says (register map, array.py). Sizes that are all 1 never turn over: elements in a row. None:
    no such reading, the layout is wrong.
    """
    if all(dim.size == 1 for dim in dims):
        return ()
    inner = prod(dim.size for dim in dims[1:])
    if len(dims) != wrap_dims + 1 or inner <= 0 or length % inner:
        return None
    return (Dim(length // inner, dims[0].stride), *dims[1:])


def refuse(where: str, found: str, expected: str, next_step: str = "change the object FIFO") -> Refusal:
    """A Refusal of the lowering."""
    return Refusal(found, expected=expected, where=where, next_step=next_step)
