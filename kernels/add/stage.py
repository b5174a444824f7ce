# SPDX-License-Identifier: Apache-2.0
"""The residual add's stage: y = a + b over one element of `dim` values."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.stage import Argument, Stage, bf16

LANES = 32


@dataclass(frozen=True)
class AddStage(Stage):
    """dim: elements of a call, a multiple of 32."""

    dim: int

    name = "add"

    def check(self) -> None:
        """Refuse a size that is not whole vectors."""
        self.require_multiple("dim", self.dim, LANES)

    @property
    def defines(self) -> dict[str, str | int]:
        return {"DIM": self.dim}

    @property
    def functions(self) -> dict[str, tuple[Argument, ...]]:
        element = bf16(self.dim)
        return {"add": (element, element, element)}

    def macs(self, function: str) -> int:
        if function not in self.functions:
            raise self.unknown(function)
        return 0

    def vector_operations(self, function: str) -> int:
        if function not in self.functions:
            raise self.unknown(function)
        return self.dim // LANES * 4  # two widenings, one addition, one rounding
