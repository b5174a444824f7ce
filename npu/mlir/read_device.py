# SPDX-License-Identifier: Apache-2.0
"""One `aie.device` operation to a lowered `DeviceProgram`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from xdsl.dialects import arith
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from npu.array import Array, array_of
from npu.mlir.aie import (
    BdChainOp,
    BufferOp,
    CascadeFlowOp,
    CoreOp,
    DeviceOp,
    FlowOp,
    LockOp,
    MemOp,
    MemTileDmaOp,
    PacketDestOp,
    PacketFlowOp,
    PacketSourceOp,
    ShimDmaAllocationOp,
    ShimDmaOp,
    TileOp,
    _RuntimeSequence,
    tile_place,
)
from npu.mlir.aie_fifo import ObjectFifoAllocateOp, ObjectFifoLinkOp, ObjectFifoOp
from npu.mlir.aie_switch import ShimMuxOp, SwitchboxOp, WireOp
from npu.mlir.aie_trace import TraceBody
from npu.mlir.array_memory import ArrayMemory
from npu.mlir.attributes import ints_of
from npu.mlir.fifo_spec import FifoSpec, LinkSpec, Lowered
from npu.mlir.lower_fifos import lower_fifos
from npu.mlir.memref_data import GlobalOp
from npu.mlir.place import assign_bd_ids, place
from npu.mlir.read_configure import Inlined
from npu.mlir.read_core import DEFAULT_STACK_BYTES, CoreReader, acquires_of, core_tile
from npu.mlir.read_dma import read_dma_region, refuse
from npu.mlir.read_sequence import SequenceReader
from npu.mlir.read_switches import Switches
from npu.mlir.text import ParsedModule
from npu.mlir.types import dtype_of, initial_bytes, memref_of
from npu.program import (
    Buffer,
    Channel,
    ControlRoute,
    DeviceProgram,
    Dim,
    Direction,
    DmaProgram,
    KernelFunction,
    Lock,
    MemRef,
    Route,
    TileId,
)


class DeviceReader:
    """Reads one device. Operations are sorted by kind first; nothing depends on forward references."""

    def __init__(
        self, parsed: ParsedModule, op: DeviceOp, outer: list[FuncOp | GlobalOp], inlined: Sequence[Inlined] = ()
    ) -> None:
        self.parsed, self.op, self.inlined = parsed, op, inlined
        self.target = op.properties["device"].data
        self.array: Array = array_of(self.target)
        self.by_type: dict[type, list[Operation]] = {}
        self.ops = list(_with_nested(op))
        for inner in self.ops:
            self.by_type.setdefault(type(inner), []).append(inner)
        functions = [*(f for f in outer if isinstance(f, FuncOp)), *self.all(FuncOp)]
        self.functions = [self.function(f) for f in functions if not f.body.blocks]
        self.bodies = {f.sym_name.data: f for f in functions if f.body.blocks}
        globals_ = [*(g for g in outer if isinstance(g, GlobalOp)), *self.all(GlobalOp)]
        self.globals = {g.sym_name.data: g for g in globals_}
        self.global_buffers: dict[str, Buffer] = {}
        self.buffer_names: dict[BufferOp, str] = {}
        self.lock_names: dict[LockOp, str] = {}
        self.schemes: dict[TileId, str] = {}
        self.notes: dict[str, None] = {}
        self.trace_channels: set[Channel] = set()
        self.control_routes: list[ControlRoute] = []

    KNOWN = (
        TileOp, BufferOp, LockOp, CoreOp, MemOp, MemTileDmaOp, ShimDmaOp, FlowOp, PacketFlowOp, CascadeFlowOp,
        ShimDmaAllocationOp, ObjectFifoOp, ObjectFifoLinkOp, ObjectFifoAllocateOp, FuncOp, GlobalOp, _RuntimeSequence,
        BdChainOp, TraceBody, SwitchboxOp, ShimMuxOp, WireOp, arith.ConstantOp,
    )  # fmt: skip

    def all(self, kind: type) -> list:
        return self.by_type.get(kind, [])

    def read(self) -> DeviceProgram:
        for op in self.ops:
            if not isinstance(op, self.KNOWN):
                raise refuse(self.parsed, op, f"{op.name} in a device", "tiles, FIFOs, DMAs, routes, cores, sequences")
        for op in self.ops:
            if isinstance(op, TraceBody):
                self.notes[f"{op.name} @{op.sym_name.data}: no trace is written"] = None
        tiles = [self.tile(op) for op in self.all(TileOp)]
        self.name_buffers()
        locks = self.locks()
        explicit = [
            dma
            for op in self.ops
            if isinstance(op, MemOp | MemTileDmaOp | ShimDmaOp)
            for dma in read_dma_region(self.parsed, op, self.buffer_name, self.lock_name, self.array)
        ]
        lowered = lower_fifos(
            self.fifos(),
            self.links(),
            [acquire for op in self.all(CoreOp) for acquire in acquires_of(op)],
            self.array,
            used_locks=[(lock.tile, lock.id) for lock in locks],
            used_channels=[dma.channel for dma in explicit],
        )
        buffers, fallbacks = self.placed(tiles, self.buffers(lowered))
        links = {function.name: function.link_with for function in self.functions}
        cores = tuple(
            CoreReader(
                self.parsed, op, lowered.ends, self.buffer_name, self.lock_name, links, self.bodies, self.global_buffer
            ).read()
            for op in self.all(CoreOp)
        )
        shims, packets = self.allocations(lowered)
        dmas = self.dmas([*explicit, *lowered.dmas])
        routes = (*self.routes(), *lowered.routes)
        locks = [*locks, *lowered.locks]
        stacks = {core.tile: core.stack_bytes for core in cores}
        memory = ArrayMemory(self.array, buffers, locks, stacks, dmas, self.only_trace(routes))
        chains = {op.sym_name.data: op for op in self.all(BdChainOp)}
        names = {each.configure: each.name for each in self.inlined}

        def reader(op: _RuntimeSequence) -> SequenceReader:
            return SequenceReader(
                self.parsed, op, shims, packets, self.buffer_name, self.lock_name, memory, self.globals, chains, names
            )

        sequences = tuple(reader(op).read() for op in self.ops if isinstance(op, _RuntimeSequence)) + tuple(
            reader(each.sequence).read(each) for each in self.inlined if each.device == self.op.sym_name.data
        )
        return DeviceProgram(
            name=self.op.sym_name.data,
            target=self.target,
            tiles=(*tiles, *sorted({buffer.tile for buffer in lowered.buffers} - set(tiles))),
            buffers=(*buffers, *self.global_buffers.values(), *memory.new_buffers()),
            locks=(*locks, *memory.new_locks),
            dmas=dmas,
            routes=routes,
            cores=cores,
            functions=tuple(self.functions),
            sequences=sequences,
            placement_fallbacks=fallbacks,
            cascades=tuple(
                (TileId(*tile_place(op.source_tile)), TileId(*tile_place(op.dest_tile)))
                for op in self.all(CascadeFlowOp)
            ),
            control_routes=tuple(self.control_routes),
            notes=(*self.notes, *memory.notes()),
        )

    # ---- declarations -------------------------------------------------------------------------

    def tile(self, op: TileOp) -> TileId:
        tile = TileId(*op.place)
        if not self.array.contains(tile):
            raise refuse(self.parsed, op, str(tile), f"a tile of {self.target}")
        if op.allocation_scheme is not None:
            self.schemes[tile] = op.allocation_scheme.data
        return tile

    def function(self, op: FuncOp) -> KernelFunction:
        if op.function_type.outputs.data:
            raise refuse(self.parsed, op, "a function with results", "none")
        arguments = []
        for type in op.function_type.inputs.data:
            arguments.append(memref_of(type) if isinstance(type, MemRefType) else dtype_of(type))
        link = op.attributes.get("link_with")
        return KernelFunction(op.sym_name.data, tuple(arguments), link.data if link is not None else None)

    def buffer_name(self, op: BufferOp) -> str:
        return self.buffer_names[op]

    def global_buffer(self, op: Operation, tile: TileId, symbol: str) -> str:
        """The copy of a memref.global that the linker puts among a core's data; where is not known before linking."""
        known = self.globals.get(symbol)
        if known is None:
            raise refuse(self.parsed, op, f"@{symbol}", "a memref.global of this device or module")
        name = f"{symbol}:{tile.col}:{tile.row}"
        initial = initial_bytes(known.initial_value) if known.initial_value is not None else None
        self.global_buffers[name] = Buffer(name, tile, memref_of(known.type), initial=initial)
        return name

    def lock_name(self, op: LockOp) -> str:
        return self.lock_names[op]

    def locks(self) -> list[Lock]:
        """Explicit locks; those without a number get the lowest free one of their tile."""
        ops = self.all(LockOp)
        taken = {(tile_place(op.tile), op.lockID.value.data) for op in ops if op.lockID is not None}
        locks = []
        for index, op in enumerate(ops):
            place_ = tile_place(op.tile)
            number = op.lockID.value.data if op.lockID is not None else 0
            if op.lockID is None:
                while (place_, number) in taken:
                    number += 1
                taken.add((place_, number))
            name = op.sym_name.data if op.sym_name is not None else f"_lock{index}"
            self.lock_names[op] = name
            locks.append(Lock(name, TileId(*place_), number, op.init.value.data if op.init is not None else 0))
        return locks

    def fifos(self) -> list[FifoSpec]:
        delegates = {
            op.objFifo_name.root_reference.data: TileId(*tile_place(op.delegate))
            for op in self.all(ObjectFifoAllocateOp)
        }
        specs = [self.fifo(op, delegates) for op in self.all(ObjectFifoOp)]
        names = [spec.name for spec in specs]
        for spec in specs:
            if names.count(spec.name) > 1:
                raise refuse(self.parsed, self.op, f"object FIFO @{spec.name} twice", "one FIFO per symbol")
        return specs

    def fifo(self, op: ObjectFifoOp, delegates: dict[str, TileId]) -> FifoSpec:
        for key in ("plio", "aie_stream", "aie_stream_port"):
            value = op.properties.get(key)
            if value is not None and not (key == "plio" and not value.value.data):
                raise refuse(self.parsed, op, key, "a FIFO between DMAs or through shared memory")
        depths = op.depths
        producer = TileId(*tile_place(op.producer))
        consumers = tuple(TileId(*tile_place(tile)) for tile in op.consumers)
        if isinstance(depths, list) and len(depths) != len(consumers) + 1:
            raise refuse(self.parsed, op, f"{len(depths)} depths", f"{len(consumers) + 1}: one per end")
        to_stream = dims_of(op.dimensionsToStream.data)
        from_stream = tuple(dims_of(dims.data) for dims in op.dimensionsFromStreamPerConsumer.data)
        shim_layout = (producer.row == 0 and to_stream) or any(
            tile.row == 0 and dims for tile, dims in zip(consumers, from_stream, strict=True)
        )
        if shim_layout:
            raise refuse(self.parsed, op, "a layout on a shim", "one in the runtime sequence")
        if producer.row == 0 and op.repeat_count is not None:
            raise refuse(self.parsed, op, "repeat_count on a shim producer", "one in the runtime sequence")
        if producer.row == 0 and any(tile.row == 0 for tile in consumers):
            raise refuse(self.parsed, op, "a FIFO from shim to shim", "a core or memtile at one end")
        if op.iter_count is not None and not any(tile.row == 1 for tile in (producer, *consumers)):
            raise refuse(self.parsed, op, "iter_count without a memtile", "a memtile at one end")
        initial = tuple(initial_bytes(value) for value in op.initValues.data) if op.initValues is not None else None
        return FifoSpec(
            name=op.sym_name.data,
            producer=producer,
            consumers=consumers,
            depths=depths if isinstance(depths, int) else tuple(depths),
            element=memref_of(op.element),
            to_stream=to_stream,
            from_stream=from_stream,
            via_dma=_flag(op, "via_DMA"),
            disable_synchronization=_flag(op, "disable_synchronization"),
            repeat_count=op.repeat_count.value.data if op.repeat_count is not None else None,
            iter_count=op.iter_count.value.data if op.iter_count is not None else None,
            padding=op.padDimensions.data if op.padDimensions is not None else (),
            initial=initial,
            allocate=delegates.get(op.sym_name.data),
            where=self.parsed.where(op),
        )

    def links(self) -> list[LinkSpec]:
        return [
            LinkSpec(
                tuple(op.inputs), tuple(op.outputs), tuple(ints_of(op.src_offsets)), tuple(ints_of(op.dst_offsets)),
                self.parsed.where(op),
            )
            for op in self.all(ObjectFifoLinkOp)
        ]  # fmt: skip

    # ---- memory -------------------------------------------------------------------------------

    def index_ends(self, op: CoreOp) -> int:
        """FIFO ends of a core that rotate at run time: the compiler keeps an i32 counter for each."""
        if not _flag(op, "dynamic_objfifo_lowering") or core_tile(op) not in self.with_fifos:
            return 0
        return len({(acquire.fifo, acquire.port) for acquire in acquires_of(op)})

    def name_buffers(self) -> None:
        """Symbols, or numbers where there is none; cores' counters take part in the numbering."""
        self.with_fifos = {TileId(*tile_place(tile)) for op in self.all(ObjectFifoOp) for tile in op.operands}
        self.index_names: dict[CoreOp, str] = {}
        anonymous = count()
        for op in self.ops:
            if isinstance(op, BufferOp):
                self.buffer_names[op] = op.sym_name.data if op.sym_name is not None else f"_anonymous{next(anonymous)}"
            elif isinstance(op, CoreOp) and self.index_ends(op):
                self.index_names[op] = f"_anonymous{next(anonymous)}"

    def buffers(self, lowered: Lowered) -> list[Buffer]:
        """All buffers in the order in which the compiler meets them: FIFO pools right after the last tile.

        A core whose FIFOs rotate at run time gets one more buffer, an i32 per FIFO end that it acquires.
        """
        last_tile = max((i for i, op in enumerate(self.ops) if isinstance(op, TileOp)), default=-1)
        ordered: list[Buffer] = []
        for index, op in enumerate(self.ops):
            if isinstance(op, BufferOp):
                ordered.append(self.buffer(op))
            elif op in self.index_names:
                counters = MemRef((self.index_ends(op),), "i32")
                ordered.append(Buffer(self.index_names[op], core_tile(op), counters))
            if index == last_tile:
                ordered += lowered.buffers
        return ordered

    def buffer(self, op: BufferOp) -> Buffer:
        tile = TileId(*tile_place(op.tile))
        value = op.initial_value
        return Buffer(
            name=self.buffer_names[op],
            tile=tile,
            type=memref_of(op.buffer.type),
            address=op.address.value.data if op.address is not None else None,
            bank=op.mem_bank.value.data if op.mem_bank is not None else None,
            initial=initial_bytes(value) if value is not None else None,
        )

    def placed(
        self, tiles: list[TileId], buffers: list[Buffer]
    ) -> tuple[tuple[Buffer, ...], tuple[tuple[TileId, str], ...]]:
        stacks = {
            core_tile(op): op.stack_size.value.data if op.stack_size is not None else DEFAULT_STACK_BYTES
            for op in self.all(CoreOp)
        }
        done: dict[str, Buffer] = {}
        fallbacks = []
        tiles = [
            *tiles,
            *sorted({buffer.tile for buffer in buffers} - set(tiles)),
        ]  # memtiles that only take what spills
        for tile in tiles:
            mine = [buffer for buffer in buffers if buffer.tile == tile]
            result = place(mine, stacks.get(tile, 0), self.array.limits(tile), self.schemes.get(tile))
            if result.fallback:
                fallbacks.append((tile, result.fallback))
            done |= {buffer.name: buffer for buffer in result.buffers}
        return tuple(done[buffer.name] for buffer in buffers), tuple(fallbacks)

    # ---- streams ------------------------------------------------------------------------------

    def dmas(self, dmas: list[DmaProgram]) -> tuple[DmaProgram, ...]:
        """With BD ids, given tile by tile."""
        numbered: dict[int, DmaProgram] = {}
        for tile in dict.fromkeys(dma.channel.tile for dma in dmas):
            mine = [index for index, dma in enumerate(dmas) if dma.channel.tile == tile]
            given = assign_bd_ids([dmas[index] for index in mine], self.array.limits(tile))
            numbered |= dict(zip(mine, given, strict=True))
        return tuple(numbered[index] for index in range(len(dmas)))

    def allocations(self, lowered: Lowered) -> tuple[dict[str, Channel], dict[str, tuple[int, int]]]:
        """Shim channels by symbol (FIFO names, `<fifo>_shim_alloc`, explicit allocations), and their packets."""
        shims = dict(lowered.shims)
        shims |= {f"{name}_shim_alloc": channel for name, channel in lowered.shims.items()}
        packets = {}
        for op in self.all(ShimDmaAllocationOp):
            name = op.sym_name.data
            shims[name] = Channel(
                TileId(*tile_place(op.tile)), Direction(op.properties["channel_dir"].data), op.channel_index.value.data
            )
            if op.packet is not None:
                packets[name] = op.packet.data
        return shims, packets

    def routes(self) -> list[Route]:
        """Explicit flows; those with one source are one broadcast."""
        by_source: dict[Channel, list[Channel]] = {}
        for op in self.all(FlowOp):
            bundles = (op.properties["source_bundle"].data, op.properties["dest_bundle"].data)
            if bundles == ("Trace", "DMA"):
                self.trace_flow(
                    op.source, [Channel(TileId(*tile_place(op.dest)), Direction.S2MM, op.dest_channel.value.data)]
                )
                continue
            if bundles != ("DMA", "DMA"):
                raise refuse(self.parsed, op, f"a flow from {bundles[0]} to {bundles[1]}", "DMA to DMA")
            source = Channel(TileId(*tile_place(op.source)), Direction.MM2S, op.source_channel.value.data)
            dest = Channel(TileId(*tile_place(op.dest)), Direction.S2MM, op.dest_channel.value.data)
            by_source.setdefault(source, []).append(dest)
        routed = self.routed()
        circuits = {route.source for route in routed if route.packet_id is None}
        packets = {(route.source, route.packet_id) for route in routed}
        flows = [Route(source, tuple(dests)) for source, dests in by_source.items() if source not in circuits]
        # Routing leaves packet flows in the text beside the switches that carry them.
        told = (self.packet_route(op) for op in self.all(PacketFlowOp))
        flows += [route for route in told if route is not None and (route.source, route.packet_id) not in packets]
        return routed + flows

    def routed(self) -> list[Route]:
        """What the switches of a routed module connect."""
        ops = [*self.all(SwitchboxOp), *self.all(ShimMuxOp)]
        if not ops:
            return []
        switches = Switches(self.parsed, self.array, ops)
        for tile, dests in switches.traces():
            self.trace_told(tile, dests)
        return list(switches.routes())

    def control_flow(self, op: PacketFlowOp) -> bool:
        """Requests from a DMA to control ports, or answers from one to DMAs."""
        source, *dests = op.ports.block.ops
        bundles = (source.properties["bundle"].data, {dest.properties["bundle"].data for dest in dests})
        into = bundles == ("DMA", {"TileControl"})
        if not isinstance(source, PacketSourceOp) or not (into or bundles == ("TileControl", {"DMA"})):
            return False
        for dest in dests:
            port, end = (dest, source) if into else (source, dest)
            direction = Direction.MM2S if into else Direction.S2MM
            channel = Channel(TileId(*tile_place(end.tile)), direction, end.channel.value.data)
            tile = TileId(*tile_place(port.tile))
            keep = _flag(op, "keep_pkt_header")
            self.control_routes.append(ControlRoute(channel, tile, op.ID.value.data, into, keep))
        return True

    def trace_flow(self, source: SSAValue, dests: list[Channel]) -> None:
        """Trace packets are not made here: what takes them is told about, and gets no data."""
        self.trace_told(TileId(*tile_place(source)), dests)

    def trace_told(self, tile: TileId, dests: list[Channel]) -> None:
        self.trace_channels.update(dests)
        self.notes[f"trace of {tile} to {', '.join(map(str, dests))}: no trace is written"] = None

    def only_trace(self, routes: Iterable[Route]) -> frozenset[Channel]:
        """Channels that take trace packets and nothing else."""
        return frozenset(self.trace_channels - {dest for route in routes for dest in route.dests})

    def packet_route(self, op: PacketFlowOp) -> Route | None:
        """None for the way of task tokens, from a tile's control port to the shim: a Program takes it for granted."""
        sources, dests = [], []
        ends = [end.properties["bundle"].data for end in op.ports.block.ops if "bundle" in end.properties]
        if ends == ["TileControl", "South"]:
            return None
        if ends[:1] == ["Trace"] and set(ends[1:]) == {"DMA"}:
            source, *dests = op.ports.block.ops
            where = [Channel(TileId(*tile_place(d.tile)), Direction.S2MM, d.channel.value.data) for d in dests]
            self.trace_flow(source.tile, where)
            return None
        if "TileControl" in ends and self.control_flow(op):
            return None
        for end in op.ports.block.ops:
            if not isinstance(end, PacketSourceOp | PacketDestOp) or end.properties["bundle"].data != "DMA":
                raise refuse(self.parsed, end, f"{end.name} in a packet flow", "DMA sources and destinations")
            direction, found = (Direction.MM2S, sources) if isinstance(end, PacketSourceOp) else (Direction.S2MM, dests)
            found.append(Channel(TileId(*tile_place(end.tile)), direction, end.channel.value.data))
        if len(sources) != 1 or not dests:
            raise refuse(self.parsed, op, f"{len(sources)} sources and {len(dests)} destinations", "one source")
        return Route(sources[0], tuple(dests), packet_id=op.ID.value.data, keep_header=_flag(op, "keep_pkt_header"))


def _with_nested(device: DeviceOp) -> Iterator[Operation]:
    """The device's operations; buffers and locks that stand inside a DMA program or a core come before it."""
    for op in device.body.block.ops:
        if isinstance(op, MemOp | MemTileDmaOp | CoreOp):
            yield from (inner for inner in op.walk() if isinstance(inner, BufferOp | LockOp))
        yield op


def dims_of(pairs: tuple[tuple[int, int], ...]) -> tuple[Dim, ...]:
    """(size, stride) pairs as Dims."""
    return tuple(Dim(size, stride) for size, stride in pairs)


def _flag(op: Operation, key: str) -> bool:
    value = op.properties.get(key)
    return bool(value.value.data) if value is not None else False
