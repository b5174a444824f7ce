# SPDX-License-Identifier: Apache-2.0
"""GEMV's stage: `rows` weight rows a call against one activation, in the four kinds that a decode step has.

kind "plain":  gemv_rows
kind "norm":   gemv_normalise, then gemv_rows
kind "add":    gemv_add_rows (the residual follows x in the header)
kind "swiglu": gemv_normalise, then gemv_swiglu_rows (gate rows, then up rows, in one weight element)

In `parts`, where a row is longer than a weight element, kinds "plain" and "add" are gemv_part for each part of a row, then
gemv_whole or gemv_whole_add.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.rmsnorm.stage import norm_operations
from kernels.stage import Argument, Stage, bf16, f32, float_literal
from npu.program import MemRef

LANES = 32
BATCH = 16  # rows finished together
KINDS = ("plain", "norm", "add", "swiglu")
NORMALISED = ("norm", "swiglu")
IN_PARTS = ("plain", "add")


@dataclass(frozen=True)
class GemvStage(Stage):
    """dim: inputs K; in parts, of one part. rows: of a weight element, even. out_rows: of the core's output element.
    header: elements of the broadcast header (0: what the kind needs at least).
    valid, epsilon: of the RMSNorm, for kinds "norm" and "swiglu"."""

    dim: int
    rows: int
    out_rows: int
    out: str = "bf16"
    header: int = 0
    kind: str = "plain"
    valid: int = 0
    epsilon: float = 0.0
    parts: bool = False

    name = "gemv"

    def check(self) -> None:
        """Refuse what the source does not take."""
        self.require_multiple("dim", self.dim, LANES)
        self.require_multiple("rows", self.rows, 2)
        self.require_multiple("out_rows", self.out_rows, self.rows)
        self.require_one_of("out", self.out, ("bf16", "f32"))
        self.require_one_of("kind", self.kind, KINDS)
        if self.parts:
            self.require_one_of("kind", self.kind, IN_PARTS)
        residual = self.out_rows if self.kind == "add" and not self.parts else 0
        least = self.dim * (2 if self.kind in NORMALISED else 1) + residual
        self.require(
            self.header_elements >= least,
            "header",
            self.header,
            f"at least {least} elements",
            "x, then gamma or residual",
        )
        if self.kind in NORMALISED:
            self.require(
                0 < self.true_dim <= self.dim, "valid", self.valid, f"1 to dim = {self.dim}", "give the true K"
            )
            self.require(
                0 <= self.epsilon < 1, "epsilon", self.epsilon, "0 or a small positive number", "read rms_norm_eps"
            )

    @property
    def true_dim(self) -> int:
        """Inputs that count for the mean square."""
        return self.valid or self.dim

    @property
    def header_elements(self) -> int:
        """Elements of the header: as given, or as the kind needs."""
        extra = {"plain": 0, "norm": self.dim, "swiglu": self.dim, "add": 0 if self.parts else self.out_rows}
        return self.header or self.dim + extra.get(self.kind, 0)

    @property
    def defines(self) -> dict[str, str | int]:
        macros: dict[str, str | int] = {"DIM_K": self.dim, "ROWS": self.rows, "OUT_ROWS": self.out_rows}
        macros["OUT_F32"] = int(self.out == "f32")
        if self.parts:
            macros["PARTS"] = 1
        if self.kind in NORMALISED:
            macros |= {"DIM_VALID": self.true_dim, "EPSILON": float_literal(self.epsilon)}
        return macros

    @property
    def functions(self) -> dict[str, tuple[Argument, ...]]:
        header, x, y = bf16(self.header_elements), bf16(self.dim), MemRef((self.out_rows,), self.out)
        w = bf16(self.rows * self.dim)
        if self.parts:
            acc = f32(self.out_rows)
            whole = (acc, header, y, "i32") if self.kind == "add" else (acc, y)
            return {"gemv_part": (w, header, acc, "i32", "i32"), self.whole: whole}
        normalise = {"gemv_normalise": (header, x)}
        if self.kind == "plain":
            return {"gemv_rows": (w, header, y, "i32")}
        if self.kind == "norm":
            return normalise | {"gemv_rows": (w, x, y, "i32")}
        if self.kind == "add":
            return {"gemv_add_rows": (w, header, y, "i32", "i32")}
        return normalise | {"gemv_swiglu_rows": (bf16(2 * self.rows * self.dim), x, y, "i32")}

    @property
    def whole(self) -> str:
        """In parts, the function that stores a core's finished rows."""
        return "gemv_whole_add" if self.kind == "add" else "gemv_whole"

    @property
    def buffers(self) -> dict[str, MemRef]:
        if self.parts:
            return {"acc": f32(self.out_rows)}
        return {"xn": bf16(self.dim)} if self.kind in NORMALISED else {}

    @property
    def batches(self) -> int:
        """Times that up to 16 rows are finished together."""
        return -(-self.rows // BATCH)

    def macs(self, function: str) -> int:
        if function == "gemv_normalise":
            return -(-self.true_dim // LANES) * LANES * 7
        if function == "gemv_swiglu_rows":
            # on top of the products: 6 terms of the exponent, 5 of the reciprocal, 2 of the Newton step, 3 + 1 of
            # silu, 6 of silu times up
            return 2 * self.rows * self.dim + self.batches * BATCH * 23
        if function in self.functions:
            return 0 if function == self.whole else self.rows * self.dim
        raise self.unknown(function)

    def vector_operations(self, function: str) -> int:
        if function not in self.functions:
            raise self.unknown(function)
        if function == "gemv_normalise":
            return norm_operations(self.dim, self.true_dim)
        if function == self.whole:
            return -(-self.out_rows // BATCH) * {"gemv_whole": 3, "gemv_whole_add": 6}[function]
        matrices = 2 if function == "gemv_swiglu_rows" else 1
        finish = {"gemv_rows": 3, "gemv_add_rows": 6, "gemv_part": 5, "gemv_swiglu_rows": 79}[function]
        return matrices * self._dot_operations + self.batches * finish

    @property
    def _dot_operations(self) -> int:
        """Vector instructions of `rows` dot products: four rows at a time, then two, each group summed over its lanes."""
        lanes = 64 if self.dim % 64 == 0 else 32
        per_row = self.dim // lanes + (3 if lanes == 64 else 2)
        fours, pairs = self.rows // BATCH * 4 + self.rows % BATCH // 4, self.rows % BATCH % 4 // 2
        return fours * (4 * per_row + 12) + pairs * (2 * per_row + 9)
