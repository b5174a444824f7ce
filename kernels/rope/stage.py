# SPDX-License-Identifier: Apache-2.0
"""RoPE's stage: half-split rotation of the first heads of a row, the other heads copied."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.stage import Argument, Stage, bf16


@dataclass(frozen=True)
class RopeStage(Stage):
    """head_dim: a multiple of 16. rotated_heads + copied_heads: the heads of a row. rows: rows of a call."""

    head_dim: int
    rotated_heads: int
    copied_heads: int = 0
    rows: int = 1

    name = "rope"

    def check(self) -> None:
        """Refuse a head whose half is not whole vectors, and a row without heads."""
        self.require_multiple("head_dim", self.head_dim, 16)
        self.require_multiple("rotated_heads", self.rotated_heads, 1)
        self.require(self.copied_heads >= 0, "copied_heads", self.copied_heads, "0 or more", "count the value heads")
        self.require_multiple("rows", self.rows, 1)

    @property
    def defines(self) -> dict[str, str | int]:
        return {
            "HEAD_DIM": self.head_dim,
            "ROTATED_HEADS": self.rotated_heads,
            "COPIED_HEADS": self.copied_heads,
            "ROWS": self.rows,
        }

    @property
    def functions(self) -> dict[str, tuple[Argument, ...]]:
        element = bf16(self.rows * (self.rotated_heads + self.copied_heads) * self.head_dim)
        return {"rope_rows": (element, bf16(self.rows * self.head_dim), element)}

    @property
    def lanes(self) -> int:
        """Elements of a vector: the widest that half a head is whole vectors of."""
        return rope_lanes(self.head_dim)

    def macs(self, function: str) -> int:
        if function not in self.functions:
            raise self.unknown(function)
        return self.rows * self.rotated_heads * self.head_dim * 2

    def vector_operations(self, function: str) -> int:
        if function not in self.functions:
            raise self.unknown(function)
        # two multiplications, two multiply-adds, two roundings
        return self.rows * self.rotated_heads * (self.head_dim // 2 // self.lanes) * 6


def rope_lanes(head_dim: int) -> int:
    """Lanes of the rotation's vectors for a head dimension."""
    half = head_dim // 2
    return 32 if half % 32 == 0 else 16 if half % 16 == 0 else 8
