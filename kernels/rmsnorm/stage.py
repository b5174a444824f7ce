# SPDX-License-Identifier: Apache-2.0
"""RMSNorm's stage: rows of `dim` elements, of which the first `valid` are the true row."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.stage import Argument, Stage, bf16, float_literal

LANES = 32


@dataclass(frozen=True)
class RmsNormStage(Stage):
    """dim: padded row, a multiple of 32. valid: true row. epsilon: added to the mean square. rows: rows of a call."""

    dim: int
    valid: int
    epsilon: float
    rows: int = 1

    name = "rmsnorm"

    def check(self) -> None:
        """Refuse sizes that the source does not take, and an epsilon that cannot be right."""
        self.require_multiple("dim", self.dim, LANES)
        self.require(
            0 < self.valid <= self.dim, "valid", self.valid, f"1 to dim = {self.dim}", "give the true row length"
        )
        self.require(
            0 <= self.epsilon < 1, "epsilon", self.epsilon, "0 or a small positive number", "read rms_norm_eps"
        )
        self.require_multiple("rows", self.rows, 1)

    @property
    def defines(self) -> dict[str, str | int]:
        return {
            "DIM": self.dim,
            "DIM_VALID": self.valid,
            "EPSILON": float_literal(self.epsilon),
            "ROWS": self.rows,
        }

    @property
    def functions(self) -> dict[str, tuple[Argument, ...]]:
        element = bf16(self.rows * self.dim)
        return {"rmsnorm_rows": (element, bf16(self.dim), element)}

    @property
    def vectors(self) -> int:
        """Vectors of a row that hold true elements."""
        return -(-self.valid // LANES)

    def macs(self, function: str) -> int:
        if function not in self.functions:
            raise self.unknown(function)
        # the square, the product with gamma, five terms of its product with the scale
        return self.rows * self.vectors * LANES * 7

    def vector_operations(self, function: str) -> int:
        if function not in self.functions:
            raise self.unknown(function)
        return self.rows * (norm_operations(self.dim, self.valid))


def norm_operations(dim: int, valid: int) -> int:
    """Vector instructions of one row: per vector of 32, then the scale's three terms and the reduction."""
    vectors, padding = -(-valid // LANES), dim // LANES - -(-valid // LANES)
    tail = 6 if valid % LANES else 0
    return vectors * 12 + padding + tail + 23
