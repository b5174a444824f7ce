# SPDX-License-Identifier: Apache-2.0
"""Row-wise operators: RMSNorm, RoPE, SiLU-multiply and residual add over [M][W] activations.

Column c of the array works on rows c*M/8 ... (c+1)*M/8 - 1 in one core, fed straight from its shim: two streams in and
one out are all the DMA channels that a shim has. All eight cores do the same work. Elements are double-buffered.

DDR bytes: every operand once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernels.add.stage import AddStage
from kernels.designs.design import Operand, symbol
from kernels.rmsnorm.stage import RmsNormStage
from kernels.rope.stage import RopeStage
from kernels.silu_mul.stage import SiluMulStage
from npu.artifact import KernelObject
from npu.mlir.build import DeviceBuilder
from npu.program import MemRef
from refusal import Refusal

COLUMNS = 8
MAX_CHUNK = 1024  # elements: a BD's inner wrap is at most 1023 words of two bf16


def rows_per_column(rows: int, where: str) -> int:
    """Rows of one column; refuses what does not divide."""
    if rows % COLUMNS:
        raise Refusal(
            f"{rows} rows", expected=f"a multiple of {COLUMNS}", where=where, next_step="use a prefill bucket"
        )
    return rows // COLUMNS


def chunk_of(width: int, limit: int = MAX_CHUNK) -> int:
    """The largest divisor of `width` that is a multiple of 32 and at most `limit`."""
    for size in range(min(width, limit) // 32 * 32, 0, -32):
        if width % size == 0:
            return size
    raise Refusal(f"row width {width}", expected="a multiple of 32", where="row-wise design")


@dataclass(frozen=True)
class Slab:
    """A [rows][width] view in a DDR operand: row pitch and first column, in elements."""

    pitch: int
    first: int = 0

    def bd(self, s, argument: int, row: int, rows: int, width: int):
        """A BD over rows [row, row + rows) that streams each row's `width` elements in order."""
        chunk = chunk_of(width) if width > MAX_CHUNK else width
        sizes = [1, rows, width // chunk, chunk]
        return s.bd(argument, row * self.pitch + self.first, sizes, [0, self.pitch, chunk, 1])


@dataclass(frozen=True)
class _Stream:
    """One FIFO family between the shims and the eight cores."""

    argument: int
    slab: Slab
    width: int  # elements a row
    element: MemRef
    produce: bool = False


def _write_streams(
    device: DeviceBuilder,
    rows: int,
    streams: list[_Stream],
    argument_types: list[MemRef],
    elements_per_column: int,
    call: Callable,
    constant: tuple[int, MemRef] | None = None,
) -> None:
    """Write eight cores that call `call(core, inputs..., output)` per element, and the sequence that feeds them.

    constant: (argument, type) of a vector that is broadcast once to every core and passed after the inputs.
    """
    share = rows_per_column(rows, device.name)
    cores = [device.tile(col, 2) for col in range(COLUMNS)]
    fifos = []
    for index, stream in enumerate(streams):
        family = []
        for col, core in enumerate(cores):
            producer, consumer = (core, device.tile(col, 0)) if stream.produce else (device.tile(col, 0), core)
            name = f"s{index}_c{col}x"
            family.append(device.fifo(name, producer=producer, consumers=[consumer], depth=2, element=stream.element))
        fifos.append(family)
    shared = None
    if constant:
        shared = device.fifo("shared", producer=device.tile(0, 0), consumers=cores, depth=1, element=constant[1])
    for col, core in enumerate(cores):
        with device.core(core) as c, c.forever():
            held = c.acquire(shared, "Consume", 1) if shared else []
            with c.loop(elements_per_column):
                ports = ["Produce" if stream.produce else "Consume" for stream in streams]
                values = [c.acquire(fifos[i][col], port, 1)[0] for i, port in enumerate(ports)]
                call(c, values[:-1] + list(held) + values[-1:])
                for i, port in enumerate(ports):
                    c.release(fifos[i][col], port, 1)
            if shared:
                c.release(shared, "Consume", 1)
    with device.sequence("run", argument_types) as s:
        tasks = []
        if constant:
            argument, vector = constant
            tasks.append(s.task(shared, [s.bd(argument, 0, [1, 1, 1, vector.elements], [0, 0, 0, 1])]))
        outputs = []
        for index, stream in enumerate(streams):
            for col in range(COLUMNS):
                bd = stream.slab.bd(s, stream.argument, col * share, share, stream.width)
                task = s.task(fifos[index][col], [bd], token=stream.produce)
                (outputs if stream.produce else tasks).append(task)
        for task in tasks + outputs:
            s.start(task)
        for task in outputs:
            s.wait(task)
        for task in tasks:
            s.free(task)


@dataclass(frozen=True)
class RmsNormDesign:
    """y = x / rms(x) * gamma, row by row; `valid` of `width` columns count for the mean."""

    rows: int
    width: int
    valid: int
    epsilon: float

    @property
    def stage(self) -> RmsNormStage:
        return RmsNormStage(dim=self.width, valid=self.valid, epsilon=self.epsilon, rows=1)

    @property
    def name(self) -> str:
        return symbol("rmsnorm", {"m": self.rows, "w": self.width}, self)

    @property
    def operands(self) -> tuple[Operand, ...]:
        flat = MemRef((self.rows * self.width,), "bf16")
        return (
            Operand("x", "in", flat, "[M][W]"),
            Operand("gamma", "weight", MemRef((self.width,), "bf16"), "[W]"),
            Operand("y", "out", flat, "[M][W]"),
        )

    @property
    def objects(self) -> tuple[KernelObject, ...]:
        return (self.stage.object,)

    @property
    def macs(self) -> int:
        return 3 * self.rows * self.width

    @property
    def ddr_bytes(self) -> int:
        return 4 * self.rows * self.width + 2 * self.width

    def write(self, device: DeviceBuilder) -> None:
        stage, row = self.stage, MemRef((self.width,), "bf16")
        function = device.kernel("rmsnorm_rows", list(stage.functions["rmsnorm_rows"]), link_with=stage.object.name)
        slab = Slab(self.width)
        streams = [_Stream(0, slab, self.width, row), _Stream(2, slab, self.width, row, produce=True)]
        _write_streams(
            device, self.rows, streams, [o.type for o in self.operands], self.rows // COLUMNS,
            lambda c, values: c.call(function, *values), constant=(1, row),
        )  # fmt: skip


@dataclass(frozen=True)
class RopeDesign:
    """Half-split rotation of the first `rotated` heads of each row; the other `copied` heads pass through."""

    rows: int
    rotated: int
    copied: int
    head_dim: int

    @property
    def width(self) -> int:
        return (self.rotated + self.copied) * self.head_dim

    @property
    def stage(self) -> RopeStage:
        return RopeStage(head_dim=self.head_dim, rotated_heads=self.rotated, copied_heads=self.copied, rows=1)

    @property
    def name(self) -> str:
        return symbol("rope", {"m": self.rows, "w": self.width}, self)

    @property
    def operands(self) -> tuple[Operand, ...]:
        flat = MemRef((self.rows * self.width,), "bf16")
        return (
            Operand("x", "in", flat, "[M][heads][D]"),
            Operand("cos_sin", "weight", MemRef((self.rows * self.head_dim,), "bf16"), "[M][cos D/2, sin D/2]"),
            Operand("y", "out", flat, "[M][heads][D]"),
        )

    @property
    def objects(self) -> tuple[KernelObject, ...]:
        return (self.stage.object,)

    @property
    def macs(self) -> int:
        return 2 * self.rows * self.rotated * self.head_dim

    @property
    def ddr_bytes(self) -> int:
        return 4 * self.rows * self.width + 2 * self.rows * self.head_dim

    def write(self, device: DeviceBuilder) -> None:
        stage = self.stage
        function = device.kernel("rope_rows", list(stage.functions["rope_rows"]), link_with=stage.object.name)
        row, angles = MemRef((self.width,), "bf16"), MemRef((self.head_dim,), "bf16")
        slab = Slab(self.width)
        streams = [
            _Stream(0, slab, self.width, row),
            _Stream(1, Slab(self.head_dim), self.head_dim, angles),
            _Stream(2, slab, self.width, row, produce=True),
        ]
        _write_streams(
            device, self.rows, streams, [o.type for o in self.operands], self.rows // COLUMNS,
            lambda c, values: c.call(function, *values),
        )  # fmt: skip


@dataclass(frozen=True)
class SiluMulDesign:
    """y = silu(gate) * up, where gate and up are the two halves of each [2*width] row."""

    rows: int
    width: int

    @property
    def stage(self) -> SiluMulStage:
        return SiluMulStage(dim=chunk_of(self.width))

    @property
    def name(self) -> str:
        return symbol("silu_mul", {"m": self.rows, "w": self.width}, self)

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            Operand("gate_up", "in", MemRef((self.rows * 2 * self.width,), "bf16"), "[M][gate W, up W]"),
            Operand("y", "out", MemRef((self.rows * self.width,), "bf16"), "[M][W]"),
        )

    @property
    def objects(self) -> tuple[KernelObject, ...]:
        return (self.stage.object,)

    @property
    def macs(self) -> int:
        return 2 * self.rows * self.width

    @property
    def ddr_bytes(self) -> int:
        return 6 * self.rows * self.width

    def write(self, device: DeviceBuilder) -> None:
        stage = self.stage
        function = device.kernel("silu_mul", list(stage.functions["silu_mul"]), link_with=stage.object.name)
        element = MemRef((stage.dim,), "bf16")
        streams = [
            _Stream(0, Slab(2 * self.width), self.width, element),
            _Stream(0, Slab(2 * self.width, first=self.width), self.width, element),
            _Stream(1, Slab(self.width), self.width, element, produce=True),
        ]
        _write_streams(
            device, self.rows, streams, [o.type for o in self.operands],
            self.rows // COLUMNS * (self.width // stage.dim), lambda c, values: c.call(function, *values),
        )  # fmt: skip


@dataclass(frozen=True)
class AddDesign:
    """y = a + b over [M][W], rounded once to bf16."""

    rows: int
    width: int

    @property
    def stage(self) -> AddStage:
        return AddStage(dim=chunk_of(self.width))

    @property
    def name(self) -> str:
        return symbol("add", {"m": self.rows, "w": self.width}, self)

    @property
    def operands(self) -> tuple[Operand, ...]:
        flat = MemRef((self.rows * self.width,), "bf16")
        return tuple(Operand(n, r, flat, "[M][W]") for n, r in (("a", "in"), ("b", "in"), ("y", "out")))

    @property
    def objects(self) -> tuple[KernelObject, ...]:
        return (self.stage.object,)

    @property
    def macs(self) -> int:
        return 0

    @property
    def ddr_bytes(self) -> int:
        return 6 * self.rows * self.width

    def write(self, device: DeviceBuilder) -> None:
        stage = self.stage
        function = device.kernel("add", list(stage.functions["add"]), link_with=stage.object.name)
        element, slab = MemRef((stage.dim,), "bf16"), Slab(self.width)
        streams = [_Stream(i, slab, self.width, element, produce=i == 2) for i in range(3)]
        _write_streams(
            device, self.rows, streams, [o.type for o in self.operands],
            self.rows // COLUMNS * (self.width // stage.dim), lambda c, values: c.call(function, *values),
        )  # fmt: skip
