# SPDX-License-Identifier: Apache-2.0
"""Our object-FIFO lowering: FIFOs and links to buffer pools, locks, BD rings, channels, routes and core ends.

It follows what mlir-aie's objectFifo-stateful-transform does at commit 1e400306 (2026-03):

- A FIFO needs DMAs unless its one consumer shares memory with the producer, no layout is given, it stands in
  no link, and neither via_DMA nor repeat_count is set. Without DMAs both cores use one pool: in the producer's
  memory, or the consumer's where only that is reachable by both, or where `allocate` says.
- With DMAs it is split: the producer's half keeps the name, consumer halves are called `<name>_cons`, or
  `<name>_<i>_cons` where there are several. Each half has a pool and locks in its own tile.
- Pool sizes. An array depth is explicit. A scalar depth is the pool in memtiles and in shared memory; a core's
  half gets one element more than the most that core acquires at once (1 where both are 1), or the depth if it
  acquires nothing. A consumer half with a layout gets that too, even if an array depth is given.
- A link has one pool: join the output's, distribute the input's, one to one the larger element's (on equal
  size the input's). Joins and distributes have a pair of locks per small FIFO.
- Locks: the producer lock starts at free elements times repeat_count, the consumer lock at filled ones.
- An element that does not fit its memtile beside the pools before it goes to the west neighbour, else to the east
  one, if it fits there; its locks stay.
- Channels: FIFO by FIFO in text order, producer, then consumers, each the lowest free one of its tile; the halves
  whose pool has spilled come first, for only low channels reach the neighbours.
- BDs: one per pool element, and per repeat, and per part of a join or distribute; a ring, or with iter_count a
  chain that ends. A shim has no BDs here: the runtime sequence writes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from npu.array import Array
from npu.mlir.fifo_spec import AcquireSpec, FifoSpec, LinkSpec, Lowered, by_length, moved, refuse, ring
from npu.program import (
    Buffer,
    BufferDescriptor,
    Channel,
    Dim,
    Direction,
    FifoEnd,
    Lock,
    LockUse,
    MemRef,
    Route,
    TileId,
    TileKind,
)


@dataclass
class _Half:
    """A FIFO, or after the split one end of it: the pool's owner `tile`, its size and its layout."""

    name: str
    spec: FifoSpec
    tile: TileId  # where its pool lies
    size: int
    dims: tuple[Dim, ...]
    consumer: bool
    link: LinkSpec | None = None
    repeat_count: int | None = None
    initial: tuple[bytes, ...] | None = None
    buffers: list[str] = field(default_factory=list)
    spilled: bool = False  # some of them lie in a neighbour's memory
    locks: list[tuple[str, str]] = field(default_factory=list)  # (producer lock, consumer lock) pairs

    @property
    def element(self) -> MemRef:
        return self.spec.element


class _Lowering:
    """State of one device's lowering."""

    def __init__(
        self,
        fifos: Sequence[FifoSpec],
        links: Sequence[LinkSpec],
        acquires: Iterable[AcquireSpec],
        array: Array,
        used_locks: Iterable[tuple[TileId, int]],
        used_channels: Iterable[Channel],
    ) -> None:
        self.fifos, self.links, self.array = fifos, links, array
        self.by_name = {fifo.name: fifo for fifo in fifos}
        self.link_of: dict[str, LinkSpec] = {}
        self.most_acquired: dict[tuple[TileId, str], int] = defaultdict(int)
        for acquire in acquires:
            key = (acquire.tile, acquire.fifo)
            self.most_acquired[key] = max(self.most_acquired[key], acquire.count)
        self.used_locks = set(used_locks)
        self.used_channels = set(used_channels)
        self.used_bytes: dict[TileId, int] = defaultdict(int)
        self.pool_of: dict[int, _Half] = {}  # id of a link -> the half that owns its pool
        self.result = Lowered()

    # ---- checks and split ---------------------------------------------------------------------

    def register_links(self) -> None:
        """Each FIFO in at most one link, a tile between, offsets as many as parts."""
        for link in self.links:
            for name in (*link.inputs, *link.outputs):
                if name not in self.by_name:
                    raise refuse(link.where, f"@{name}", "an object FIFO of this device")
                if name in self.link_of:
                    raise refuse(link.where, f"@{name} in more than one link", "at most one link per FIFO")
                self.link_of[name] = link
            self._check_link(link)

    def _check_link(self, link: LinkSpec) -> None:
        if link.is_join and link.is_distribute:
            raise refuse(link.where, "several inputs and several outputs", "a join or a distribute", "split the link")
        shared = self.shared_tile(link)
        if shared.kind is not TileKind.MEMTILE and (link.is_join or link.is_distribute):
            raise refuse(link.where, f"a join or distribute in {shared}", "one in a memtile")
        parts = len(link.inputs) if link.is_join else len(link.outputs)
        offsets, other = (
            (link.source_offsets, link.dest_offsets) if link.is_join else (link.dest_offsets, link.source_offsets)
        )
        if (link.is_join or link.is_distribute) and (len(offsets) != parts or other):
            side = "source" if link.is_join else "destination"
            raise refuse(
                link.where,
                f"source offsets {list(link.source_offsets)}, destination offsets {list(link.dest_offsets)}",
                f"{parts} {side} offsets and no others",
                "give one offset per part",
            )
        if link.is_join or link.is_distribute:
            whole = self.by_name[link.outputs[0] if link.is_join else link.inputs[0]].element.elements
            small = [self.by_name[name].element.elements for name in (link.inputs if link.is_join else link.outputs)]
            for name, length, size in zip(
                link.inputs if link.is_join else link.outputs, part_lengths(offsets, whole), small, strict=True
            ):
                # A part is one BD in the memtile; the FIFO's other end may take it, or give it, in several elements.
                if length <= 0 or length % size:
                    raise refuse(
                        link.where,
                        f"offsets {list(offsets)} give @{name} {length} of {whole} elements",
                        f"its element size, {size}, or a multiple of it",
                        "correct the offsets (in elements)",
                    )
            repeats = {self.by_name[name].repeat_count for name in link.outputs}
            if len(repeats) > 1:
                raise refuse(link.where, f"repeat counts {sorted(map(str, repeats))}", "equal ones on all outputs")

    def shared_tile(self, link: LinkSpec) -> TileId:
        """The tile between: every input's consumer and every output's producer."""
        places = {self.by_name[name].producer for name in link.outputs}
        place = next(iter(places))
        if len(places) > 1 or any(place not in self.by_name[name].consumers for name in link.inputs):
            raise refuse(link.where, "inputs and outputs that do not meet", "one tile between them")
        return place

    def shares_memory(self, producer: TileId, consumer: TileId) -> TileId | None:
        """Where a pool that both cores reach would lie: the producer's tile if it can."""
        if producer.kind is not consumer.kind or producer.kind is TileKind.SHIM:
            return None
        if producer in self.array.memory_reach(consumer):
            return producer
        return consumer if consumer in self.array.memory_reach(producer) else None

    def pool_tile(self, fifo: FifoSpec) -> TileId | None:
        """The tile of the one pool that both ends share, None if the FIFO needs DMAs."""
        if fifo.via_dma or fifo.repeat_count is not None or len(fifo.consumers) != 1 or fifo.to_stream:
            return None
        if any(fifo.from_stream) or fifo.name in self.link_of:
            return None
        return self.shares_memory(fifo.producer, fifo.consumers[0])

    def core_depth(self, tile: TileId, fifo: FifoSpec, written: int) -> int:
        """Pool size of a half from a scalar depth."""
        most = self.most_acquired.get((tile, fifo.name), 0) if tile.kind is TileKind.CORE else 0
        if not written or not most:
            return written
        return 1 if most == 1 and written == 1 else most + 1

    def split(self, fifo: FifoSpec) -> list[_Half]:
        """The halves in the order in which the pass creates their pools: producer, then consumers from the last."""
        explicit = not isinstance(fifo.depths, int)
        size = fifo.depth() if explicit or fifo.initial else self.core_depth(fifo.producer, fifo, fifo.depth())
        link = self.link_of.get(fifo.name)
        outgoing = link if link is not None and fifo.name in link.outputs else None
        producer = _Half(
            fifo.name, fifo, fifo.producer, size, fifo.to_stream, False, outgoing, fifo.repeat_count, fifo.initial
        )
        consumers = []
        for index, tile in enumerate(fifo.consumers):
            dims = fifo.from_stream[index] if fifo.from_stream else ()
            name = f"{fifo.name}_{index}_cons" if len(fifo.consumers) > 1 else f"{fifo.name}_cons"
            incoming = (
                link if link is not None and fifo.name in link.inputs and tile == self.shared_tile(link) else None
            )
            size = fifo.depth(index + 1) if explicit else self.core_depth(tile, fifo, fifo.depth())
            if dims or incoming:
                size = self.core_depth(tile, fifo, size)
            consumers.append(_Half(name, fifo, tile, size, dims, True, incoming))
        return [producer, *consumers]

    # ---- pools and locks ----------------------------------------------------------------------

    def owns_pool(self, half: _Half) -> bool:
        """Whether this half's elements are the link's, or it stands in no link."""
        link = half.link
        if link is None:
            return True
        if link.is_join:
            return not half.consumer
        if link.is_distribute:
            return half.consumer
        out = self.by_name[link.outputs[0]]
        if out.initial is not None:
            return not half.consumer
        larger_in = self.by_name[link.inputs[0]].element.elements >= out.element.elements
        return half.consumer if larger_in or out.padding else not half.consumer

    def create_pool(self, half: _Half) -> None:
        """Buffers and locks of a half, if it owns any."""
        if half.size == 0 or not self.owns_pool(half):
            return
        link = half.link
        if link is not None:
            self.pool_of[id(link)] = half
        on_shim = half.tile.kind is TileKind.SHIM
        if not on_shim:
            for index in range(half.size):
                name = f"{half.name}_buff_{index}"
                initial = half.initial[index] if half.initial is not None else None
                half.buffers.append(name)
                tile = self.room_for(half)
                half.spilled |= tile != half.tile
                self.pools[half.name].append(Buffer(name, tile, half.element, initial=initial, fifo=half.spec.name))
                self.used_bytes[tile] += half.element.nbytes
        if half.spec.disable_synchronization:
            return
        repeat = half.repeat_count or 1
        parts = 1
        if link is not None:
            repeat = next((r for r in (self.by_name[n].repeat_count for n in link.outputs) if r is not None), repeat)
            parts = max(len(link.inputs), len(link.outputs))
        filled = len(half.initial) if half.initial is not None else 0
        free = 0 if on_shim else half.size - filled
        for part in range(parts):
            pair = (
                self.new_lock(half.tile, f"{half.name}_prod_lock_{part}", free * repeat, half.spec.where),
                self.new_lock(half.tile, f"{half.name}_cons_lock_{part}", filled * repeat, half.spec.where),
            )
            half.locks.append(pair)

    def room_for(self, half: _Half) -> TileId:
        """Where the next element lies: only what FIFOs use is counted, as the pass does."""
        tile, need = half.tile, half.element.nbytes
        limit = self.array.limits(tile).data_memory_bytes
        if tile.kind is not TileKind.MEMTILE or self.used_bytes[tile] + need <= limit:
            return tile
        for beside in (TileId(tile.col - 1, tile.row), TileId(tile.col + 1, tile.row)):
            if self.array.contains(beside) and self.used_bytes[beside] + need <= limit:
                return beside
        return tile

    def new_lock(self, tile: TileId, name: str, init: int, where: str) -> str:
        """The lowest free lock of a tile. Past the last one numbers go on: legality counts them."""
        number = 0
        while (tile, number) in self.used_locks:
            number += 1
        self.used_locks.add((tile, number))
        self.result.locks.append(Lock(name, tile, number, init))
        return name

    # ---- channels and BDs ---------------------------------------------------------------------

    def new_channel(self, tile: TileId, direction: Direction) -> Channel:
        """The lowest free channel of a tile. Past the last one numbers go on: legality counts them."""
        index = 0
        while Channel(tile, direction, index) in self.used_channels:
            index += 1
        channel = Channel(tile, direction, index)
        self.used_channels.add(channel)
        return channel

    def add_dma(self, half: _Half, channel: Channel) -> None:
        """The BD ring of one half on its channel."""
        fifo = half.spec
        if channel.tile.kind is TileKind.SHIM:
            self.result.shims[fifo.name] = channel
            return
        target = self.target(half)
        bds = []
        in_memtile = channel.tile.kind is TileKind.MEMTILE
        link_repeat = self.link_repeat(half)
        count = target.size if in_memtile and target is not half else half.size
        for index in range(min(count, len(target.buffers))):
            for part in range((half.repeat_count or 1) * self.own_parts(half, target)):
                offset, length, pair = self.part(half, target, part, in_memtile)
                bds.append(self.bd(half, target, index, offset, length, pair, channel, link_repeat))
        executions = fifo.iter_count if in_memtile else None
        self.result.dmas.append(ring(channel, bds, executions))

    def target(self, half: _Half) -> _Half:
        """The half whose pool this one moves."""
        return self.pool_of.get(id(half.link), half) if half.link is not None else half

    def link_repeat(self, half: _Half) -> int:
        """How often each element that enters a link is sent on: its locks count that often."""
        if half.link is None or not half.consumer:
            return 1
        counts = [self.by_name[name].repeat_count for name in half.link.outputs]
        return next((count for count in counts if count is not None), 1)

    def own_parts(self, half: _Half, target: _Half) -> int:
        """Parts that the half with a join's or distribute's whole element moves one by one."""
        link = half.link
        if link is None or target is not half or not (link.is_join or link.is_distribute):
            return 1
        if half.repeat_count is not None and half.repeat_count > 1:
            raise refuse(half.spec.where, "repeat_count on the whole side of a join", "none there")
        return max(len(link.inputs), len(link.outputs))

    def part(self, half: _Half, target: _Half, part: int, in_memtile: bool) -> tuple[int, int, int]:
        """(offset, length, lock pair) of one BD, in elements."""
        link, own = half.link, half.element.elements
        if link is None or not in_memtile:
            return 0, own, 0
        if not (link.is_join or link.is_distribute):
            return 0, max(own, target.element.elements), 0
        offsets = link.source_offsets if link.is_join else link.dest_offsets
        names = link.inputs if link.is_join else link.outputs
        index = part if target is half else names.index(half.spec.name)
        return offsets[index], part_lengths(offsets, target.element.elements)[index], index

    def bd(
        self,
        half: _Half,
        target: _Half,
        index: int,
        offset: int,
        length: int,
        pair: int,
        channel: Channel,
        link_repeat: int,
    ) -> BufferDescriptor:
        fifo = half.spec
        pads = fifo.padding if channel.direction is Direction.MM2S and channel.tile.kind is TileKind.MEMTILE else ()
        dims: tuple[Dim, ...] | None = half.dims
        if dims and moved(dims, pads) != length:
            wrap_dims = self.array.limits(channel.tile).pattern.wrap_dims
            dims = by_length(dims, length, wrap_dims) if not pads and channel.tile.kind is not TileKind.SHIM else None
        if dims is None:
            raise refuse(
                fifo.where,
                f"sizes {[dim.size for dim in half.dims]} of @{fifo.name}, {moved(half.dims, pads)} elements",
                f"a product of {length}, what one transfer moves",
                "correct the layout's sizes",
            )
        acquire = release = None
        if target.locks:
            free, filled = target.locks[pair]
            writes = channel.direction is Direction.S2MM
            acquire = LockUse(free if writes else filled, link_repeat)
            release = LockUse(filled if writes else free, link_repeat)
        return BufferDescriptor(
            element_bytes=half.element.element_bytes,
            offset=offset,
            length=length,
            buffer=target.buffers[index],
            dims=dims,
            padding=pads,
            acquire=acquire,
            release=release,
            where=fifo.where,
        )

    # ---- the whole ----------------------------------------------------------------------------

    def core_end(self, half: _Half, tile: TileId, port: str) -> None:
        """A core's view of a pool."""
        free, filled = half.locks[0] if half.locks else (None, None)
        acquire, release = (free, filled) if port == "Produce" else (filled, free)
        self.result.ends[(tile, half.spec.name, port)] = FifoEnd(
            half.spec.name, port, tuple(half.buffers), acquire, release, half.repeat_count or 1
        )

    def run(self) -> Lowered:
        self.register_links()
        halves: dict[str, list[_Half]] = {}
        self.pools: dict[str, list[Buffer]] = defaultdict(list)
        order: list[_Half] = []
        for fifo in self.fifos:
            tile = self.pool_tile(fifo)
            if tile is None and fifo.allocate is not None:
                raise refuse(fifo.where, "allocate on a FIFO that needs DMAs", "one in shared memory")
            if tile is not None:
                shared = _Half(fifo.name, fifo, self.delegate(fifo, tile), fifo.depth(), (), False)
                shared.initial = fifo.initial
                order.append(shared)
                halves[fifo.name] = [shared]
            else:
                producer, *consumers = self.split(fifo)
                order += [producer, *reversed(consumers)]
                halves[fifo.name] = [producer, *consumers]
        for half in order:
            self.create_pool(half)
        # The pass puts each pool right after the last tile: later FIFOs come first.
        for half in reversed(order):
            self.result.buffers += self.pools[half.name]
        self.connect(halves)
        return self.result

    def delegate(self, fifo: FifoSpec, tile: TileId) -> TileId:
        """The tile that `allocate` names, if both cores reach it."""
        if fifo.allocate is None:
            return tile
        reach = [self.array.memory_reach(core) for core in (fifo.producer, fifo.consumers[0])]
        if any(fifo.allocate not in seen for seen in reach):
            raise refuse(fifo.where, f"allocate in {fifo.allocate}", "a tile whose memory both cores reach")
        return fifo.allocate

    def connect(self, halves: dict[str, list[_Half]]) -> None:
        """Channels, rings, routes and core ends, FIFO by FIFO."""
        channels: dict[str, Channel] = {}
        split = [half for fifo in self.fifos if len(halves[fifo.name]) > 1 for half in halves[fifo.name]]
        for half in sorted(split, key=lambda half: not self.target(half).spilled):
            direction = Direction.S2MM if half.consumer else Direction.MM2S
            channels[half.name] = self.new_channel(half.tile, direction)
        for fifo in self.fifos:
            producer, *consumers = halves[fifo.name]
            if consumers:
                for half in (producer, *consumers):
                    self.add_dma(half, channels[half.name])
                dests = tuple(channels[half.name] for half in consumers)
                self.result.routes.append(Route(channels[producer.name], dests, name=fifo.name))
            if fifo.producer.kind is TileKind.CORE and producer.link is None:
                self.core_end(producer, fifo.producer, "Produce")
            for half, tile in zip(consumers or [producer], fifo.consumers, strict=True):
                if tile.kind is TileKind.CORE and half.link is None:
                    self.core_end(half, tile, "Consume")


def part_lengths(offsets: Sequence[int], whole: int) -> list[int]:
    """Lengths of the parts that begin at `offsets` of an element of `whole` elements."""
    ends = [*offsets[1:], whole]
    return [end - start for start, end in zip(offsets, ends, strict=True)]


def lower_fifos(
    fifos: Sequence[FifoSpec],
    links: Sequence[LinkSpec],
    acquires: Iterable[AcquireSpec],
    array: Array,
    *,
    used_locks: Iterable[tuple[TileId, int]] = (),
    used_channels: Iterable[Channel] = (),
) -> Lowered:
    """Lower the object FIFOs of one device.

    Args:
        fifos, links: in text order, which decides channels, locks and BDs.
        acquires: every acquire of every core.
        used_locks, used_channels: what the text assigns by itself.

    Raises:
        Refusal: what the pass would refuse, or silently do wrong.
    """
    return _Lowering(fifos, links, acquires, array, used_locks, used_channels).run()
