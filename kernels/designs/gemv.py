# SPDX-License-Identifier: Apache-2.0
"""Decode GEMV on all 32 cores: y[N] = W[N,K] @ x[K], with what surrounds it in a decode step done in the same cores.

kind "plain":  header = x;             y = W x
kind "norm":   header = x, gamma;      y = W rmsnorm(x, gamma)
kind "add":    header = x, residual;   y = W x + residual
kind "swiglu": header = x, gamma;      y = silu(Wg n) * (Wu n) with n = rmsnorm(x, gamma); W holds gate and up rows

Weights stream through one shim channel a column; the memtile deals rows to its four cores. The header is broadcast to all cores
from shim 0's second channel and every core normalises for itself: K operations against K*N/32 of the product. Row block
c*N/8 + r*N/32 of y belongs to core (c, r); a column's outputs are joined in its memtile.

A row that is longer than a weight element is taken in parts (kinds "plain" and "add"): part by part of x, all rows of that part;
a core keeps its sums in fp32 between parts and rounds once. The header is then a FIFO of parts: those of x, then the residual,
which is filled up to whole parts with x again.

DDR bytes: W + header + y.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.designs.design import NUMPY_DTYPE, Operand, as_bf16, symbol
from kernels.gemv.stage import IN_PARTS, GemvStage
from npu.artifact import KernelObject
from npu.mlir.build import DeviceBuilder
from npu.program import MemRef
from refusal import Refusal

COLUMNS, ROWS = 8, 4
CORES = COLUMNS * ROWS
BANK_BYTES = 16384  # a weight element must fit one bank beside nothing else


@dataclass(frozen=True)
class GemvDesign:
    """N outputs (padded to a multiple of 64), K inputs (a multiple of 32), `valid` of them real, R rows an element."""

    N: int
    K: int
    rows: int
    kind: str = "plain"
    out: str = "bf16"
    valid: int = 0
    epsilon: float = 0.0
    parts: int = 1

    def __post_init__(self) -> None:
        if self.parts > 1 and not parts_fit(self.N, self.K, self.kind, self.parts):
            raise Refusal(
                f"{self.K} inputs in {self.parts} parts", expected="equal parts of whole vectors; for a residual, of whole core shares",
                where=f"GEMV {self.kind}", next_step="use kernels.designs.gemv.gemv_for",
            )  # fmt: skip
        if self.kind not in ("plain", "norm", "add", "swiglu"):
            raise Refusal(f"GEMV kind {self.kind!r}", expected="plain, norm, add or swiglu")
        if self.N % (2 * CORES) or self.share % self.rows:
            raise Refusal(
                f"N {self.N} with {self.rows} rows an element", expected=f"N a multiple of {2 * CORES}, rows dividing N/{CORES}",
                where="GEMV", next_step="use kernels.designs.gemv.rows_for",
            )  # fmt: skip
        self.stage.check()

    @property
    def share(self) -> int:
        """Outputs of one core."""
        return self.N // CORES

    @property
    def matrices(self) -> int:
        """2 where gate and up are computed together."""
        return 2 if self.kind == "swiglu" else 1

    @property
    def part(self) -> int:
        """Inputs that one weight element holds of a row."""
        return self.K // self.parts

    @property
    def residual_parts(self) -> int:
        """In parts, elements of the header FIFO that the residual takes."""
        return -(-self.N // self.part) if self.kind == "add" and self.parts > 1 else 0

    @property
    def header(self) -> int:
        """Elements of the broadcast header, all of it."""
        if self.parts > 1:
            return self.K + self.residual_parts * self.part
        return self.K + {"plain": 0, "norm": self.K, "swiglu": self.K, "add": self.N}[self.kind]

    @property
    def header_element(self) -> int:
        """Elements of what a core holds of the header at once."""
        return self.part if self.parts > 1 else self.header

    @property
    def stage(self) -> GemvStage:
        return GemvStage(
            dim=self.part, rows=self.rows, out_rows=self.share, out=self.out, header=self.header_element, kind=self.kind,
            valid=self.valid or self.K, epsilon=self.epsilon, parts=self.parts > 1,
        )  # fmt: skip

    @property
    def name(self) -> str:
        return symbol(f"gemv_{self.kind}", {"n": self.N, "k": self.K}, self)

    @property
    def operands(self) -> tuple[Operand, ...]:
        weights = Operand(
            "w", "weight", MemRef((self.matrices * self.N * self.K,), "bf16"),
            "[column][element][core row][gate rows, up rows][K]" if self.kind == "swiglu"
            else "[column][part][element][core row][R][K / parts]",
        )  # fmt: skip
        x = Operand("x", "in", MemRef((self.K,), "bf16"), "[K]")
        extra = {
            "plain": (),
            "norm": (Operand("gamma", "weight", MemRef((self.K,), "bf16"), "[K]"),),
            "swiglu": (Operand("gamma", "weight", MemRef((self.K,), "bf16"), "[K]"),),
            "add": (Operand("residual", "in", MemRef((self.N,), "bf16"), "[N]"),),
        }[self.kind]
        return (weights, x, *extra, Operand("y", "out", MemRef((self.N,), self.out), "[N]"))

    @property
    def objects(self) -> tuple[KernelObject, ...]:
        return (self.stage.object,)

    @property
    def macs(self) -> int:
        return self.matrices * self.N * self.K

    @property
    def ddr_bytes(self) -> int:
        return 2 * self.matrices * self.N * self.K + 2 * self.header + self.N * NUMPY_DTYPE[self.out].itemsize

    def pack(self, *weights: np.ndarray) -> np.ndarray:
        """Bring one weight (or gate and up) [rows <= N, cols <= K] into operand w; pads with zeros."""
        if len(weights) != self.matrices:
            raise Refusal(f"{len(weights)} weights", expected=str(self.matrices), where=self.name)
        full = np.zeros((self.matrices, self.N, self.K), NUMPY_DTYPE["bf16"])
        for slot, weight in zip(full, weights, strict=True):
            slot[: weight.shape[0], : weight.shape[1]] = as_bf16(weight)
        # N = (column, core row, element, R), K = (part, inputs)  ->  [column][part][element][core row][matrix][R][inputs]
        blocks = full.reshape(self.matrices, COLUMNS, ROWS, self.share // self.rows, self.rows, self.parts, self.part)
        return np.ascontiguousarray(blocks.transpose(1, 5, 3, 2, 0, 4, 6)).reshape(-1)

    def write(self, device: DeviceBuilder) -> None:
        _Writer(self, device).write()


class _Writer:
    def __init__(self, design: GemvDesign, device: DeviceBuilder) -> None:
        self.design, self.device = design, device
        g = design
        self.weight_type = MemRef((g.matrices * g.rows * g.part,), "bf16")
        self.weight_column = MemRef((ROWS * g.matrices * g.rows * g.part,), "bf16")
        self.header_type = MemRef((g.header_element,), "bf16")
        self.kernels = {
            name: device.kernel(name, list(types), link_with=g.stage.object.name)
            for name, types in g.stage.functions.items()
        }
        self.y_type, self.y_column = MemRef((g.share,), g.out), MemRef((ROWS * g.share,), g.out)

    def write(self) -> None:
        self._fifos()
        for col in range(COLUMNS):
            for row in range(ROWS):
                (self._core if self.design.parts == 1 else self._core_in_parts)(col, row)
        self._sequence()

    def _fifos(self) -> None:
        d = self.device
        self.cores = {(col, row): d.tile(col, 2 + row) for col in range(COLUMNS) for row in range(ROWS)}
        self.header = d.fifo(
            "header", producer=d.tile(0, 0), consumers=list(self.cores.values()), depth=1, element=self.header_type
        )
        self.w_in, self.w, self.y, self.y_out = [], {}, {}, []
        for col in range(COLUMNS):
            shim, mem = d.tile(col, 0), d.tile(col, 1)
            self.w_in.append(
                d.fifo(f"w_in_c{col}x", producer=shim, consumers=[mem], depth=2, element=self.weight_column)
            )
            self.y_out.append(d.fifo(f"y_out_c{col}x", producer=mem, consumers=[shim], depth=2, element=self.y_column))
            for row in range(ROWS):
                core = self.cores[col, row]
                self.w[col, row] = d.fifo(
                    f"w_c{col}r{row}x", producer=mem, consumers=[core], depth=2, element=self.weight_type
                )
                self.y[col, row] = d.fifo(
                    f"y_c{col}r{row}x", producer=core, consumers=[mem], depth=[1, 2], element=self.y_type
                )
            w_offsets = [row * self.weight_type.elements for row in range(ROWS)]
            y_offsets = [row * self.y_type.elements for row in range(ROWS)]
            d.link([self.w_in[col]], [self.w[col, row] for row in range(ROWS)], dest_offsets=w_offsets)
            d.link([self.y[col, row] for row in range(ROWS)], [self.y_out[col]], source_offsets=y_offsets)

    def _core(self, col: int, row: int) -> None:
        d, g = self.device, self.design
        f = self.kernels
        tile = self.cores[col, row]
        normalised = g.kind in ("norm", "swiglu")
        vector = d.buffer(tile, MemRef((g.K,), "bf16"), name=f"xn_c{col}r{row}x") if normalised else None
        with d.core(tile) as c, c.forever():
            (header,) = c.acquire(self.header, "Consume", 1)
            if normalised:
                c.call(f["gemv_normalise"], header, vector)
            (y,) = c.acquire(self.y[col, row], "Produce", 1)
            with c.loop(g.share, step=g.rows) as first:
                (w,) = c.acquire(self.w[col, row], "Consume", 1)
                if g.kind == "add":
                    # The residual follows x in the header.
                    core_first = g.K + (col * ROWS + row) * g.share
                    c.call(f["gemv_add_rows"], w, header, y, first, core_first)
                elif g.kind == "swiglu":
                    c.call(f["gemv_swiglu_rows"], w, vector, y, first)
                else:
                    c.call(f["gemv_rows"], w, vector if normalised else header, y, first)
                c.release(self.w[col, row], "Consume", 1)
            c.release(self.y[col, row], "Produce", 1)
            c.release(self.header, "Consume", 1)

    def _core_in_parts(self, col: int, row: int) -> None:
        d, g = self.device, self.design
        f = self.kernels
        tile = self.cores[col, row]
        acc = d.buffer(tile, MemRef((g.share,), "f32"), name=f"acc_c{col}r{row}x")
        own, at = divmod((col * ROWS + row) * g.share, g.part)  # where the core's residual lies
        with d.core(tile) as c, c.forever():
            with c.loop(g.parts) as part:
                (x,) = c.acquire(self.header, "Consume", 1)
                with c.loop(0, g.share, g.rows) as first:
                    (w,) = c.acquire(self.w[col, row], "Consume", 1)
                    c.call(f["gemv_part"], w, x, acc, first, part)
                    c.release(self.w[col, row], "Consume", 1)
                c.release(self.header, "Consume", 1)
            (y,) = c.acquire(self.y[col, row], "Produce", 1)
            if g.kind == "plain":
                c.call(f["gemv_whole"], acc, y)
            for index in range(g.residual_parts):
                (residual,) = c.acquire(self.header, "Consume", 1)
                if index == own:
                    c.call(f["gemv_whole_add"], acc, residual, y, at)
                c.release(self.header, "Consume", 1)
            c.release(self.y[col, row], "Produce", 1)

    def _sequence(self) -> None:
        g = self.design
        with self.device.sequence("run", [operand.type for operand in g.operands]) as s:
            parts = [s.bd(1, 0, [1, 1, 1, g.K], [0, 0, 0, 1])]
            extra = g.N if g.kind == "add" else g.header - g.K
            if extra:
                parts.append(s.bd(2, 0, [1, 1, 1, extra], [0, 0, 0, 1]))
            if filler := g.header - g.K - extra:
                parts.append(s.bd(1, 0, [1, 1, 1, filler], [0, 0, 0, 1]))
            inputs = [s.task(self.header, parts)]
            outputs = []
            share = g.matrices * g.N * g.K // COLUMNS
            y_argument = len(g.operands) - 1
            for col in range(COLUMNS):
                bd = s.bd(0, col * share, [1, 1, 1, share], [0, 0, 0, 1])
                inputs.append(s.task(self.w_in[col], [bd]))
                out = s.bd(y_argument, col * ROWS * g.share, [1, 1, 1, ROWS * g.share], [0, 0, 0, 1])
                outputs.append(s.task(self.y_out[col], [out], token=True))
            for task in inputs + outputs:
                s.start(task)
            for task in outputs:
                s.wait(task)
            for task in inputs:
                s.free(task)


def parts_fit(outputs: int, inputs: int, kind: str, parts: int) -> bool:
    """Whether rows can be taken in so many parts: whole vectors, and a core's residual within one part."""
    if kind not in IN_PARTS or inputs % (32 * parts):
        return False
    part = inputs // parts
    return kind == "plain" or outputs <= part or part % (outputs // CORES) == 0


def gemv_for(
    outputs: int,
    inputs: int,
    kind: str = "plain",
    out: str = "bf16",
    valid: int = 0,
    epsilon: float = 0.0,
    rows: int = 0,
) -> GemvDesign | None:
    """The design with the fewest parts and, unless `rows` is given, the most rows an element; None if no element fits a bank."""
    matrices = 2 if kind == "swiglu" else 1
    for parts in range(1, inputs // 32 + 1):
        if parts > 1 and not parts_fit(outputs, inputs, kind, parts):
            continue
        most = rows_for(outputs, inputs // parts, matrices=matrices)
        if most >= max(rows, 1):
            return GemvDesign(outputs, inputs, rows or most, kind, out, valid, epsilon, parts)
    return None


def rows_for(outputs: int, inputs: int, *, matrices: int = 1) -> int:
    """Rows of a weight element: the largest even divisor of a core's share whose element fits a bank; 0 if none does."""
    share = outputs // CORES
    fitting = [r for r in range(2, share + 1, 2) if share % r == 0 and matrices * r * inputs * 2 <= BANK_BYTES]
    return max(fitting, default=0)
