# SPDX-License-Identifier: Apache-2.0
"""GEMM on all 32 cores: C[M,N] = A[M,K] @ B[K,N], bf16 in, FP32 accumulation in the core, one rounding at the end.

Row r of the array computes row tiles r, r+4, ... of C; column c computes column tiles c, c+8, ...
A enters in columns 0, 2, 4, 6 and is broadcast along a row of cores; B enters in every column and is broadcast down it;
the four C tiles of a column are joined in its memtile. All three are staged in memtiles, inputs double-buffered.

DDR bytes: A * N/(8n) + B * M/(4m) + C.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from kernels.designs.design import NUMPY_DTYPE, Operand, as_bf16, padded, symbol
from kernels.gemm.stage import GemmStage
from npu.artifact import KernelObject
from npu.mlir.build import DeviceBuilder
from npu.program import MemRef
from refusal import Refusal

COLUMNS, ROWS = 8, 4
MAX_ITERATION = 64  # 6 bits of a shim BD's iteration wrap
BANK_BYTES, L1_BYTES, STACK_BYTES = 16384, 65536, 1024


@dataclass(frozen=True)
class GemmDesign:
    """M, K, N are padded sizes; m, k, n the core tile; mode "bfp16" or "bf16"; out "bf16" or "f32"."""

    M: int
    K: int
    N: int
    m: int
    k: int
    n: int
    mode: str = "bfp16"
    out: str = "bf16"

    def __post_init__(self) -> None:
        for size, multiple, what in (
            (self.M, ROWS * self.m, f"M and {ROWS}*m"),
            (self.K, self.k, "K and k"),
            (self.N, COLUMNS * self.n, f"N and {COLUMNS}*n"),
        ):
            if size % multiple:
                raise Refusal(
                    f"{what}: {size} is not a multiple of {multiple}",
                    expected="a padded size",
                    where=f"GEMM {self.M}x{self.K}x{self.N} tile {self.m}x{self.k}x{self.n}",
                    next_step="pad the operand with kernels.designs.design.padded or choose another tile",
                )
        self.stage.check()

    @property
    def stage(self) -> GemmStage:
        return GemmStage(m=self.m, k=self.k, n=self.n, mode=self.mode, out=self.out)

    @property
    def name(self) -> str:
        return symbol("gemm", {"m": self.M, "k": self.K, "n": self.N}, self)

    @property
    def tiles(self) -> tuple[int, int, int]:
        """Rounds over M, N and K: (M/4m, N/8n, K/k)."""
        return self.M // (ROWS * self.m), self.N // (COLUMNS * self.n), self.K // self.k

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            Operand("a", "in", MemRef((self.M * self.K,), "bf16"), "[M][K] row-major"),
            Operand("b", "weight", MemRef((self.K * self.N,), "bf16"), "[column][N/8n][K/k][k/8][n/8][8 k][8 n]"),
            Operand("c", "out", MemRef((self.M * self.N,), self.out), "[M][N] row-major"),
        )

    @property
    def objects(self) -> tuple[KernelObject, ...]:
        return (self.stage.object,)

    @property
    def macs(self) -> int:
        return self.M * self.K * self.N

    @property
    def ddr_bytes(self) -> int:
        mt, nt, _ = self.tiles
        out_bytes = NUMPY_DTYPE[self.out].itemsize
        return 2 * self.M * self.K * nt + 2 * self.K * self.N * mt + out_bytes * self.M * self.N

    def pack_b(self, weight: np.ndarray) -> np.ndarray:
        """Bring a weight [rows <= N, cols <= K] (out x in, as checkpoints store it) into operand b; pads with zeros."""
        rows, cols = weight.shape
        if rows > self.N or cols > self.K:
            raise Refusal(f"weight {rows}x{cols}", expected=f"at most {self.N}x{self.K}", where=self.name)
        full = np.zeros((self.N, self.K), NUMPY_DTYPE["bf16"])
        full[:rows, :cols] = as_bf16(weight)
        _, nt, kt = self.tiles
        # N = (round, column, n/8, 8), K = (kt, k/8, 8)  ->  [column][round][kt][k/8][n/8][8 k][8 n]
        blocks = full.reshape(nt, COLUMNS, self.n // 8, 8, kt, self.k // 8, 8)
        return np.ascontiguousarray(blocks.transpose(1, 0, 4, 5, 2, 6, 3)).reshape(-1)

    def write(self, device: DeviceBuilder) -> None:
        _GemmWriter(self, device).write()


class _GemmWriter:
    """Writes one GEMM: FIFOs in, cores, FIFOs out, sequence."""

    def __init__(self, design: GemmDesign, device: DeviceBuilder) -> None:
        self.design, self.device = design, device
        self.a_tile = MemRef((design.m * design.k,), "bf16")
        self.b_tile = MemRef((design.k * design.n,), "bf16")
        self.c_tile = MemRef((design.m * design.n,), design.out)
        self.c_column = MemRef((ROWS * design.m * design.n,), design.out)

    def write(self) -> None:
        self._feeds()
        self._cores()
        self._sequence()

    def _core(self, col: int, row: int):
        return self.device.tile(col, 2 + row)

    def _feeds(self) -> None:
        d, g = self.device, self.design
        m, k, n = g.m, g.k, g.n
        self.a_in, self.a_row, self.b_in, self.b_col, self.c_core, self.c_out = [], [], [], [], {}, []
        for row in range(ROWS):
            shim, mem = d.tile(2 * row, 0), d.tile(2 * row, 1)
            self.a_in.append(d.fifo(f"a_in_r{row}x", producer=shim, consumers=[mem], depth=2, element=self.a_tile))
            # row-major m x k in the memtile -> [m/8][k/8][8][8] in the cores
            to_blocks = [(m // 8, 8 * k), (k // 8, 8), (8, k), (8, 1)]
            cores = [self._core(col, row) for col in range(COLUMNS)]
            self.a_row.append(
                d.fifo(
                    f"a_row_r{row}x", producer=mem, consumers=cores, depth=2, element=self.a_tile, to_stream=to_blocks
                )
            )
            d.link([self.a_in[row]], [self.a_row[row]])
        for col in range(COLUMNS):
            shim, mem = d.tile(col, 0), d.tile(col, 1)
            self.b_in.append(d.fifo(f"b_in_c{col}x", producer=shim, consumers=[mem], depth=2, element=self.b_tile))
            cores = [self._core(col, row) for row in range(ROWS)]
            self.b_col.append(d.fifo(f"b_col_c{col}x", producer=mem, consumers=cores, depth=2, element=self.b_tile))
            d.link([self.b_in[col]], [self.b_col[col]])
            for row in range(ROWS):
                self.c_core[col, row] = d.fifo(
                    f"c_core_c{col}r{row}x",
                    producer=self._core(col, row),
                    consumers=[mem],
                    depth=[1, 2],
                    element=self.c_tile,
                )
            # Each of the four joined tiles leaves by a BD of its own: [m/8][n/8][8][8] -> row-major m x n.
            to_rows = [(m // 8, 8 * n), (8, 8), (n // 8, 64), (8, 1)]
            self.c_out.append(
                d.fifo(
                    f"c_out_c{col}x", producer=mem, consumers=[shim], depth=2, element=self.c_column, to_stream=to_rows
                )
            )
            offsets = [row * m * n for row in range(ROWS)]
            d.link([self.c_core[col, row] for row in range(ROWS)], [self.c_out[col]], source_offsets=offsets)

    def _cores(self) -> None:
        d, g = self.device, self.design
        functions = {
            name: d.kernel(name, list(types), link_with=g.stage.object.name)
            for name, types in g.stage.functions.items()
        }
        accumulator_type = g.stage.functions["gemm_zero"][0]
        for col in range(COLUMNS):
            for row in range(ROWS):
                tile = self._core(col, row)
                acc = d.buffer(tile, accumulator_type, name=f"acc_c{col}r{row}x")
                with d.core(tile) as c, c.forever():
                    c.call(functions["gemm_zero"], acc)
                    with c.loop(g.tiles[2]):
                        (a,) = c.acquire(self.a_row[row], "Consume", 1)
                        (b,) = c.acquire(self.b_col[col], "Consume", 1)
                        c.call(functions["gemm_accumulate"], a, b, acc)
                        c.release(self.a_row[row], "Consume", 1)
                        c.release(self.b_col[col], "Consume", 1)
                    (out,) = c.acquire(self.c_core[col, row], "Produce", 1)
                    c.call(functions["gemm_store"], acc, out)
                    c.release(self.c_core[col, row], "Produce", 1)

    def _sequence(self) -> None:
        """B is one task a column; A and C are one task a round of rows and at most 64 column rounds, two rounds in flight."""
        g = self.design
        mt, nt, _ = g.tiles
        steps = [(i, j, min(MAX_ITERATION, nt - j)) for i in range(mt) for j in range(0, nt, MAX_ITERATION)]
        with self.device.sequence("run", [operand.type for operand in g.operands]) as s:
            b_tasks = [self._start_b(s, col) for col in range(COLUMNS)]
            in_flight: list[tuple[list, list]] = []
            for i, j, count in steps:
                in_flight.append(self._start_round(s, i, j, count))
                if len(in_flight) == 2:
                    self._finish_round(s, *in_flight.pop(0))
            for round_tasks in in_flight:
                self._finish_round(s, *round_tasks)
            for task in b_tasks:
                s.free(task)

    def _start_b(self, s, col: int):
        g = self.design
        mt, nt, kt = g.tiles
        length = nt * kt * g.k * g.n
        bd = s.bd(1, col * length, [mt, 1, 1, length], [0, 0, 0, 1])
        task = s.task(self.b_in[col], [bd], repeat=mt - 1)
        s.start(task)
        return task

    def _start_round(self, s, i: int, j: int, count: int) -> tuple[list, list]:
        g = self.design
        kt = g.tiles[2]
        a_tasks, c_tasks = [], []
        for row in range(ROWS):
            offset = (i * ROWS + row) * g.m * g.K
            bd = s.bd(0, offset, [count, kt, g.m, g.k], [0, g.k, g.K, 1])
            # A token shows that the task has left the channel's queue; a free would not.
            a_tasks.append(s.task(self.a_in[row], [bd], token=True, repeat=count - 1))
        for col in range(COLUMNS):
            offset = i * ROWS * g.m * g.N + (j * COLUMNS + col) * g.n
            bd = s.bd(2, offset, [count, 1, ROWS * g.m, g.n], [COLUMNS * g.n, 0, g.N, 1])
            c_tasks.append(s.task(self.c_out[col], [bd], token=True, repeat=count - 1))
        for task in a_tasks + c_tasks:
            s.start(task)
        return a_tasks, c_tasks

    def _finish_round(self, s, a_tasks: list, c_tasks: list) -> None:
        for task in c_tasks + a_tasks:
            s.wait(task)


def candidates(
    rows: int, cols_in: int, cols_out: int, *, mode: str, out: str = "bf16", exact: bool = True
) -> list[GemmDesign]:
    """Tilings of a GEMM [rows, cols_in] x [cols_in, cols_out] that a core's memory can hold.

    With `exact` false, N may be padded by up to a quarter. `npu.legality` has the last word on each.
    """
    found = []
    out_bytes = NUMPY_DTYPE[out].itemsize
    for m, n, k in product((8, 16, 32, 48, 64, 96, 128), range(8, 129, 8), (32, 48, 64, 96, 128)):
        outputs = padded(cols_out, COLUMNS * n)
        if rows % (ROWS * m) or cols_in % k or outputs > (1 if exact else 1.25) * cols_out:
            continue
        elements = (2 * m * k, 2 * k * n, 4 * m * n, out_bytes * m * n)
        l1 = 2 * elements[0] + 2 * elements[1] + elements[2] + elements[3] + STACK_BYTES
        if max(elements) <= BANK_BYTES and l1 <= L1_BYTES:
            found.append(GemmDesign(rows, cols_in, outputs, m, k, n, mode, out))
    return found
