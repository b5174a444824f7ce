# SPDX-License-Identifier: Apache-2.0
"""The array: what an npu2 (AIE2P) or npu1 (AIE2) device has, one table with a source for every number.

Everything that counts resources (legality, twin, cost, planner) reads its limits here, and nothing
else in the pack writes one down. All numbers are per tile unless the name says otherwise; sizes are
in bytes, patterns in 32-bit words, since that is what a buffer descriptor stores.

Sources are named shortly: "target model" is mlir-aie's AIETargetModel at commit 1e400306
(2026-03-14), "register map" is aie-rt's xaiemlgbl register database, "verifier" an mlir-aie check
of that commit, "mlir-air" a limit which the mlir-air LLM examples report from hardware.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from types import MappingProxyType

from npu.program import TileId, TileKind
from refusal import Refusal

# The hardware moves whole 32-bit words: lengths, offsets and strides are multiples of this many bytes.
WORD_BYTES = 4


@dataclass(frozen=True)
class PatternLimits:
    """Fields of one buffer descriptor of a tile kind. Steps and sizes as a program writes them, in 32-bit words."""

    dims: int  # data dimensions, without the iteration dimension
    wrap_dims: int  # how many of them have a wrap field, from the innermost; the next one is implied by the length
    wrap_max: int  # largest size of a dimension with a wrap field; the innermost is counted in words
    step_max: int  # largest stride in words; the field holds stride - 1
    iteration_max: int  # largest size of the iteration dimension with a stride; the field holds size - 1
    length_max_words: int  # largest transfer of one execution
    padding_max: tuple[int, ...]  # largest pad before or after per dimension, innermost first (in words); () is none


@dataclass(frozen=True)
class TileLimits:
    """What one tile of a kind has."""

    kind: TileKind
    data_memory_bytes: int
    banks: int  # memory banks of the compiler's placement; 0 where there is no data memory
    program_memory_bytes: int
    locks: int
    bds: int
    channels: int  # DMA channels per direction
    pattern: PatternLimits

    @property
    def bank_bytes(self) -> int:
        return self.data_memory_bytes // self.banks if self.banks else 0


@dataclass(frozen=True)
class PortCounts:
    """Stream switch master ports of one tile towards its neighbours: how many streams can leave that way."""

    north: int
    south: int
    east: int
    west: int


@dataclass(frozen=True)
class Array:
    """One device: its size and what its tiles have."""

    name: str
    generation: str  # "AIE2P" or "AIE2"
    columns: int
    rows: int
    core: TileLimits
    memtile: TileLimits
    shim: TileLimits
    task_queue_waiting: int  # tasks that wait beside the running one, per channel
    repeat_max: int  # repeat_count of a task; it is executed 1 + repeat_count times
    lock_value_max: int
    instruction_bd_max: int  # largest BD id that a start from the instruction stream can name
    argument_offset_bytes: int  # byte offsets into one argument are below this
    packet_id_max: int
    packet_type_max: int
    packet_ids_per_destination: int
    memtile_neighbour_channels: int  # memtile DMA channels that reach the west and east memtiles
    default_stack_bytes: int
    verifier_size_max: int  # largest dimension size, in elements, that mlir-aie takes in aie.mem and aie.memtile_dma
    vector_bytes: int  # alignment of a full vector load

    def limits(self, tile: TileId) -> TileLimits:
        """What `tile` has, by its row."""
        return {TileKind.CORE: self.core, TileKind.MEMTILE: self.memtile, TileKind.SHIM: self.shim}[tile.kind]

    def contains(self, tile: TileId) -> bool:
        return 0 <= tile.col < self.columns and 0 <= tile.row < self.rows

    def tiles(self) -> Iterator[TileId]:
        """Every tile, column by column from the shim up."""
        for col in range(self.columns):
            for row in range(self.rows):
                yield TileId(col, row)

    def memory_reach(self, tile: TileId) -> frozenset[TileId]:
        """Tiles whose memory and locks `tile` reaches directly (a core, or the DMA of a memtile).

        A core sees its own memory and that of its north, south and west neighbours, never a memtile's
        and never the east neighbour's. A memtile's DMA sees the memtiles to its west and east.
        """
        if tile.kind is TileKind.CORE:
            seen = (
                tile,
                TileId(tile.col, tile.row + 1),
                TileId(tile.col, tile.row - 1),
                TileId(tile.col - 1, tile.row),
            )
        elif tile.kind is TileKind.MEMTILE:
            seen = (tile, TileId(tile.col - 1, tile.row), TileId(tile.col + 1, tile.row))
        else:
            seen = (tile,)
        return frozenset(t for t in seen if self.contains(t) and t.kind is tile.kind)

    def cascade_reach(self, tile: TileId) -> frozenset[TileId]:
        """Cores that `tile`'s 512-bit cascade can write to: the one to the south and the one to the east."""
        if tile.kind is not TileKind.CORE:
            return frozenset()
        targets = (TileId(tile.col, tile.row - 1), TileId(tile.col + 1, tile.row))
        return frozenset(t for t in targets if self.contains(t) and t.kind is TileKind.CORE)

    def ports(self, tile: TileId) -> PortCounts:
        """Stream switch ports that lead from `tile` to its neighbours; 0 at the edge of the array."""
        sideways = 0 if tile.kind is TileKind.MEMTILE else 4
        return PortCounts(
            north=6 if tile.row < self.rows - 1 else 0,
            south=4 if tile.row > 0 else 0,
            east=sideways if tile.col < self.columns - 1 else 0,
            west=sideways if tile.col > 0 else 0,
        )


_CORE = TileLimits(
    kind=TileKind.CORE,
    data_memory_bytes=0x10000,
    banks=4,
    program_memory_bytes=0x4000,
    locks=16,
    bds=16,
    channels=2,
    pattern=PatternLimits(
        dims=3,
        wrap_dims=2,
        wrap_max=255,
        step_max=1 << 13,
        iteration_max=64,
        length_max_words=(1 << 14) - 1,
        padding_max=(),
    ),
)

_MEMTILE = TileLimits(
    kind=TileKind.MEMTILE,
    data_memory_bytes=0x80000,
    banks=8,
    program_memory_bytes=0,
    locks=64,
    bds=48,
    channels=6,
    pattern=PatternLimits(
        dims=4,
        wrap_dims=3,
        wrap_max=1023,
        step_max=1 << 17,
        iteration_max=64,
        length_max_words=(1 << 17) - 1,
        padding_max=(63, 31, 15),
    ),
)

_SHIM = TileLimits(
    kind=TileKind.SHIM,
    data_memory_bytes=0,
    banks=0,
    program_memory_bytes=0,
    locks=16,
    bds=16,
    channels=2,
    pattern=PatternLimits(
        dims=3,
        wrap_dims=2,
        wrap_max=1023,
        step_max=1 << 20,
        iteration_max=64,
        length_max_words=(1 << 32) - 1,
        padding_max=(),
    ),
)

# One line a field: where its number stands. Violations quote these lines.
SOURCES = MappingProxyType(
    {
        "columns": "target model: columns() of NPU2TargetModel (8), BaseNPU1 (4) and their virtualised subsets",
        "rows": "target model: rows() is 6: shim, memtile, four compute rows",
        "data_memory_bytes": "target model: getLocalMemorySize 64 KiB (core), getMemTileSize 512 KiB (memtile)",
        "banks": "target model: getNumBanks, 4 for a core (16 KiB each), 8 for a memtile (64 KiB each)",
        "program_memory_bytes": "mlir-air: 16384 B per core, 17168 B of text was refused; same in sibling spec AM027",
        "locks": "target model: getNumLocks, 64 for a memtile, 16 elsewhere",
        "bds": "target model: getNumBDs, 48 for a memtile, 16 elsewhere",
        "channels": "target model: DMA switchbox connections, 6 per direction for a memtile, 2 elsewhere",
        "dims": "verifier: DMABDOp::verify, 3 dimensions, 4 in a memtile; register map: shim has d0..d2 plus iteration",
        "wrap_dims": "register map: wrap fields for d0, d1 (memtile also d2); the next dimension is implied by the length",
        "wrap_max": "register map: 8-bit wrap in a core, 10-bit in memtile and shim; verifier: verifyStridesWraps",
        "step_max": "register map: 13-bit step in a core, 17-bit in a memtile, 20-bit in the shim, stored as value - 1",
        "iteration_max": "register map: 6-bit iteration wrap, stored as value - 1; verifier: NpuWriteBdOp",
        "length_max_words": "register map: 14-bit length in a core, 17-bit in a memtile, 32-bit in the shim",
        "padding_max": "register map: memtile MM2S zero padding, 6 bits for d0, 5 for d1, 4 for d2",
        "task_queue_waiting": "aie-rt: StartQSizeMax 4 on every DMA channel; an overfull queue is only a status bit",
        "repeat_max": "verifier: NpuPushQueueOp, 8-bit repeat field",
        "lock_value_max": "target model: getMaxLockValue 0x3F; mlir-air: 74 was truncated and deadlocked",
        "instruction_bd_max": "lowering: AIEDmaToNpu masks the BD id of a queue push with 0xF on every tile",
        "argument_offset_bytes": "register map and lowering: the address patch adds a 32-bit byte offset; faults KN-19",
        "packet_id_max": "verifier: DMABDOp::verify, 5-bit packet id",
        "packet_type_max": "verifier: DMABDOp::verify, 3-bit packet type",
        "packet_ids_per_destination": "mlir-air: 4 packet ids per S2MM channel",
        "memtile_neighbour_channels": "target model: getMaxChannelNumForAdjacentMemTile 4; verifier: MemTileDMAOp",
        "default_stack_bytes": "mlir-aie: stack_size attribute of aie.core, default 0x400",
        "verifier_size_max": "verifier: DMABDOp::verify refuses size >= 513, though its message says 1023",
        "vector_bytes": "aie_api: a 512-bit load is 64 B aligned; hardware drops the low address bits",
        "ports": "target model: getNumDestSwitchboxConnections, north 6, south 4, east and west 4, none sideways in a memtile",
        "memory_reach": "target model: isLegalMemAffinity: own, north, south, west for a core; west, own, east for a memtile",
        "cascade_reach": "verifier: ConfigureCascadeOp, input from north or west, output to south or east",
        "parity": "target model: isBdChannelAccessible, even memtile channels use BDs 0-23, odd ones 24-47",
        "word": "target model: getAddressGenGranularity 32 bit",
    }
)


def _array(name: str, generation: str, columns: int) -> Array:
    return Array(
        name=name,
        generation=generation,
        columns=columns,
        rows=6,
        core=_CORE,
        memtile=_MEMTILE,
        shim=_SHIM,
        task_queue_waiting=4,
        repeat_max=255,
        lock_value_max=63,
        instruction_bd_max=15,
        argument_offset_bytes=1 << 32,
        packet_id_max=31,
        packet_type_max=7,
        packet_ids_per_destination=4,
        memtile_neighbour_channels=4,
        default_stack_bytes=0x400,
        verifier_size_max=512,
        vector_bytes=64 if generation == "AIE2P" else 32,
    )


# npu1 as a compile target has 4 columns: the fifth physical one lacks a usable shim. aie-rt inherits every tile limit
# of AIE2P from AIE2, so the two generations differ here in columns and vector width alone.
ARRAYS = MappingProxyType(
    {
        array.name: array
        for array in (
            _array("npu2", "AIE2P", 8),
            *(_array(f"npu2_{n}col", "AIE2P", n) for n in range(1, 8)),
            _array("npu1", "AIE2", 4),
            *(_array(f"npu1_{n}col", "AIE2", n) for n in range(1, 4)),
        )
    }
)


def array_of(target: str) -> Array:
    """The table of the device that a text names as `target` ("npu2", "npu1_2col", ...); Refusal if there is none."""
    if target not in ARRAYS:
        raise Refusal(
            f"device {target}",
            expected=f"one of {', '.join(ARRAYS)}",
            where="aie.device",
            next_step="name one of these devices in the text; AIE1 and Versal parts are not supported",
        )
    return ARRAYS[target]


def memtile_bd_range(array: Array, channel: int) -> range:
    """BD ids that memtile DMA channel `channel` can use: the lower half for even channels, the upper for odd."""
    half = array.memtile.bds // 2
    return range(half) if channel % 2 == 0 else range(half, array.memtile.bds)


def limit_fields() -> tuple[str, ...]:
    """Names of every number in the tables, each of which SOURCES must explain."""
    plain = {"name", "generation", "core", "memtile", "shim", "kind", "pattern"}
    names = [f.name for cls in (Array, TileLimits, PatternLimits) for f in fields(cls)]
    return tuple(n for n in names if n not in plain)
