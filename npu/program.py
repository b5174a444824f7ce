# SPDX-License-Identifier: Apache-2.0
"""Program: one MLIR-AIE module as plain data, the only thing that legality, twin and cost see.

`npu.mlir.load.load_program(text)` makes it from text: object FIFOs are lowered to buffer
pools, locks, BD rings and routes the way mlir-aie's objectFifo-stateful-transform does, so
what is counted here is what the hardware gets. A Program is immutable, hashable by content
and free of xdsl.

Units: sizes, offsets and strides of buffers and BDs are in elements of `element_bytes`
unless a name ends in `_bytes`. Dimensions are written outermost first, as in the text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import prod


class TileKind(StrEnum):
    """What stands at a place of the array."""

    CORE = "core"
    MEMTILE = "memtile"
    SHIM = "shim"


@dataclass(frozen=True, order=True)
class TileId:
    """Column and row of a tile; row 0 is the shim row, row 1 the memtile row."""

    col: int
    row: int

    @property
    def kind(self) -> TileKind:
        return (TileKind.SHIM, TileKind.MEMTILE)[self.row] if self.row < 2 else TileKind.CORE

    def __str__(self) -> str:
        return f"{self.kind}({self.col},{self.row})"


class Direction(StrEnum):
    """Direction of a DMA channel, as mlir-aie spells it."""

    S2MM = "S2MM"  # stream to memory: writes memory
    MM2S = "MM2S"  # memory to stream: reads memory


@dataclass(frozen=True, order=True)
class Channel:
    """One DMA channel of one tile."""

    tile: TileId
    direction: Direction
    index: int

    def __str__(self) -> str:
        return f"{self.tile} {self.direction} {self.index}"


@dataclass(frozen=True)
class MemRef:
    """Shape and element type of a buffer or a sequence argument; dtype is MLIR's name (bf16, f32, i8, i32)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * self.element_bytes

    def __str__(self) -> str:
        return f"memref<{'x'.join(map(str, self.shape))}x{self.dtype}>"


DTYPE_BYTES = {
    "i8": 1, "ui8": 1, "i16": 2, "bf16": 2, "f16": 2, "i32": 4, "ui32": 4, "f32": 4, "index": 4, "i64": 8,
    "v8bfp16ebs8": 9, "v16bfp16ebs16": 17, "i72": 9, "i136": 17,  # blocks of significands with one exponent
}  # fmt: skip


@dataclass(frozen=True)
class Buffer:
    """Memory of a core tile or memtile. `address` is in bytes from the tile's memory start, once placed."""

    name: str
    tile: TileId
    type: MemRef
    address: int | None = None
    bank: int | None = None
    initial: bytes | None = None
    fifo: str | None = None  # the object FIFO whose pool it belongs to


@dataclass(frozen=True)
class Lock:
    """A counting semaphore of a tile."""

    name: str
    tile: TileId
    id: int | None
    init: int


@dataclass(frozen=True)
class LockUse:
    """Acquire (>= value, then subtract) or release (add value) of a lock, by a BD or a core."""

    lock: str
    value: int
    equal: bool = False  # AcquireEqual of AIE1 style; `Acquire` in old text


@dataclass(frozen=True)
class Dim:
    """One dimension of an access pattern: `size` steps of `stride` elements."""

    size: int
    stride: int


@dataclass(frozen=True)
class BufferDescriptor:
    """One BD. Exactly one of `buffer` (a tile's) and `argument` (index of a sequence argument) is set.

    One execution moves `length` elements, in the order of `dims` (product of sizes == length when dims
    are given; empty dims mean linear). `iteration` belongs to the shim: execution number n of a repeated task starts
    at offset + (n mod iteration.size) * iteration.stride.
    """

    element_bytes: int
    offset: int
    length: int
    buffer: str | None = None
    argument: int | None = None
    dims: tuple[Dim, ...] = ()
    iteration: Dim = Dim(1, 0)
    padding: tuple[tuple[int, int], ...] = ()  # (before, after) per dim, memtile MM2S only
    acquire: LockUse | None = None
    release: LockUse | None = None
    next: int | None = None  # index in the chain, None ends it
    bd_id: int | None = None
    packet: tuple[int, int] | None = None  # (type, id)
    burst_bytes: int = 0  # AXI burst of a shim BD, 0 leaves it to the tools; it changes rates, never values
    where: str = ""  # location in the text, for messages


@dataclass(frozen=True)
class DmaProgram:
    """The chain of one in-array channel (aie.mem, aie.memtile_dma): `bds[0]` first, then by `next`.

    A ring has no end; a chain that ends is executed 1 + repeat_count times. Several programs of one channel run one after
    another, in the order in which the device lists them.
    """

    channel: Channel
    bds: tuple[BufferDescriptor, ...]
    repeat_count: int = 0


@dataclass(frozen=True)
class Route:
    """A stream connection from one MM2S channel to one or more S2MM channels (several = broadcast)."""

    source: Channel
    dests: tuple[Channel, ...]
    packet_id: int | None = None
    keep_header: bool = False
    name: str = ""  # the object FIFO or symbol it came from


@dataclass(frozen=True)
class ControlRoute:
    """A packet flow between a DMA channel and the control port of `tile`: requests go `into` it, else answers out of it."""

    channel: Channel
    tile: TileId
    packet_id: int
    into: bool
    keep_header: bool = False


# ---- core bodies -------------------------------------------------------------------------------
# A small tree. Values are names (SSA, unique in a core). Buffers, FIFO ends and functions are named too.


@dataclass(frozen=True)
class FifoEnd:
    """A core's end of an object FIFO after lowering.

    Acquiring n elements waits until n are held: it acquires (n - held) of `acquire_lock`. Element i of an acquire is
    pool[(position + i) mod len(pool)]; releasing n adds n to `release_lock` and moves the position by n.
    With `disable_synchronization` both locks are None. `pool` are buffer names, in ring order. Where the FIFO sends
    each element `repeat` times, every element counts `repeat` at the locks.
    """

    fifo: str
    port: str  # "Produce" | "Consume"
    pool: tuple[str, ...]
    acquire_lock: str | None
    release_lock: str | None
    repeat: int = 1


@dataclass(frozen=True)
class Acquire:
    """Hold `count` elements of FIFO end `end`; `results[i]` names element i's memref value."""

    end: int  # index in Core.ends
    count: int
    results: tuple[str, ...]


@dataclass(frozen=True)
class Release:
    """Release `count` elements of FIFO end `end`."""

    end: int
    count: int


@dataclass(frozen=True)
class UseLock:
    """A core's explicit lock operation."""

    use: LockUse
    acquire: bool


@dataclass(frozen=True)
class Op:
    """A value computed in the core: arith, memref, vector and cascade operations. `result` is None for stores.

    name: MLIR operation name ("arith.addi", "memref.load", ...); `attributes` its constants.
    """

    name: str
    result: str | None
    operands: tuple[str, ...]
    attributes: tuple[tuple[str, object], ...] = ()
    where: str = ""


@dataclass(frozen=True)
class Call:
    """func.call of a kernel: operands are memref values, buffer names or integer values."""

    function: str
    operands: tuple[str, ...]
    where: str = ""


@dataclass(frozen=True)
class Assign:
    """targets := values, all at once: what loops, branches, blocks and called functions pass on."""

    targets: tuple[str, ...]
    values: tuple[str, ...]


@dataclass(frozen=True)
class For:
    """scf.for: `variable` from lower to upper (exclusive) by step, all value names; iter_args become assignments."""

    variable: str
    lower: str
    upper: str
    step: str
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class While:
    """An endless loop: scf.while true, or a for of at least 2^31 - 1 rounds whose variable nobody reads."""

    body: tuple[Statement, ...]


@dataclass(frozen=True)
class If:
    """scf.if on a value; results become assignments."""

    condition: str
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True)
class Loop:
    """scf.while: again and again `head`, then `body` while `condition` holds."""

    head: tuple[Statement, ...]
    condition: str
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Blocks:
    """A control-flow graph (cf.br, cf.cond_br): begins at blocks[0], follows `Jump`, ends where a block has none."""

    blocks: tuple[tuple[Statement, ...], ...]


@dataclass(frozen=True)
class Jump:
    """On to a block of the innermost `Blocks`; the last statement of a block, or of a branch that ends one."""

    block: int


Statement = Acquire | Release | UseLock | Op | Call | Assign | For | While | Loop | If | Blocks | Jump


@dataclass(frozen=True)
class Core:
    """The program of one core. `stack_bytes` is reserved at the start of its data memory."""

    tile: TileId
    body: tuple[Statement, ...]
    ends: tuple[FifoEnd, ...] = ()
    stack_bytes: int = 1024
    dynamic_fifo_lowering: bool = False
    link_files: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelFunction:
    """A private func.func: a kernel compiled from C++. Arguments are MemRefs or integer dtype names."""

    name: str
    arguments: tuple[MemRef | str, ...]
    link_with: str | None


# ---- runtime sequences -------------------------------------------------------------------------


@dataclass(frozen=True)
class ConfigureTask:
    """A shim (or memtile) DMA task: a BD chain on a channel, executed 1 + repeat_count times per start."""

    task: int
    channel: Channel
    bds: tuple[BufferDescriptor, ...]
    issue_token: bool
    repeat_count: int = 0
    where: str = ""


@dataclass(frozen=True)
class StartTask:
    """Push the task into its channel's queue."""

    task: int


@dataclass(frozen=True)
class AwaitTask:
    """Wait for the task's token, then free its BDs."""

    task: int


@dataclass(frozen=True)
class FreeTask:
    """Free the task's BDs without waiting: the author vouches that it has ended."""

    task: int


@dataclass(frozen=True)
class WriteParameter:
    """rtp_write, or a register write into data memory: the bits of `mask` of one 32-bit word of a buffer."""

    buffer: str
    index: int
    value: int
    mask: int = 0xFFFFFFFF


@dataclass(frozen=True)
class SetLock:
    """aiex.set_lock."""

    lock: str
    value: int


@dataclass(frozen=True)
class ArgumentSlice:
    """A constant slice of an outer sequence's argument, passed to a run."""

    argument: int
    offset_bytes: int
    type: MemRef


@dataclass(frozen=True)
class Run:
    """aiex.configure @device { aiex.run @sequence(slices) }. `reconfigure` is False for a further run inside one configure."""

    device: str
    sequence: str
    arguments: tuple[ArgumentSlice, ...]
    reconfigure: bool = True


Instruction = ConfigureTask | StartTask | AwaitTask | FreeTask | WriteParameter | SetLock | Run


@dataclass(frozen=True)
class Sequence:
    """One aie.runtime_sequence: its argument types and its flat instruction list."""

    name: str
    arguments: tuple[MemRef, ...]
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class DeviceProgram:
    """One aie.device, lowered."""

    name: str
    target: str  # npu2, npu1, npu2_1col ...
    tiles: tuple[TileId, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    locks: tuple[Lock, ...] = ()
    dmas: tuple[DmaProgram, ...] = ()
    routes: tuple[Route, ...] = ()
    cores: tuple[Core, ...] = ()
    functions: tuple[KernelFunction, ...] = ()
    sequences: tuple[Sequence, ...] = ()
    # Tiles whose buffers the compiler cannot place bank by bank, each with the reason.
    placement_fallbacks: tuple[tuple[TileId, str], ...] = ()
    cascades: tuple[tuple[TileId, TileId], ...] = ()
    control_routes: tuple[ControlRoute, ...] = ()
    notes: tuple[str, ...] = ()  # what the text asks for and no value depends on (trace), so that nothing is done

    def sequence(self, name: str) -> Sequence:
        """The sequence called `name`; KeyError names those there are."""
        for candidate in self.sequences:
            if candidate.name == name:
                return candidate
        raise KeyError(f"device @{self.name} has no sequence @{name}; it has {[s.name for s in self.sequences]}")


@dataclass(frozen=True)
class Program:
    """One module: its devices by name, and the sha256 of the text it came from."""

    devices: tuple[DeviceProgram, ...]
    text_sha256: str
    spelling: str = "2026-03"  # the mlir-aie version whose spelling the text has
    _index: dict[str, DeviceProgram] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._index.update({device.name: device for device in self.devices})

    def device(self, name: str) -> DeviceProgram:
        """The device called `name`; KeyError names those there are."""
        if name not in self._index:
            raise KeyError(f"no device @{name}; the module has {sorted(self._index)}")
        return self._index[name]
