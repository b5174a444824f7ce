# SPDX-License-Identifier: Apache-2.0
"""The SiLU-multiply's stage: y = silu(gate) * up over one element of `dim` values."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.stage import Argument, Stage, bf16

LANES = 32


@dataclass(frozen=True)
class SiluMulStage(Stage):
    """dim: elements of a call, a multiple of 32."""

    dim: int

    name = "silu_mul"

    def check(self) -> None:
        """Refuse a size that is not whole vectors."""
        self.require_multiple("dim", self.dim, LANES)

    @property
    def defines(self) -> dict[str, str | int]:
        return {"DIM": self.dim}

    @property
    def functions(self) -> dict[str, tuple[Argument, ...]]:
        element = bf16(self.dim)
        return {"silu_mul": (element, element, element)}

    def macs(self, function: str) -> int:
        if function not in self.functions:
            raise self.unknown(function)
        # exponent 3, reciprocal 5, Newton step 2, gate product 1, correction 1, three terms of silu times up
        return self.dim * 15

    def vector_operations(self, function: str) -> int:
        if function not in self.functions:
            raise self.unknown(function)
        return self.dim // LANES * OPERATIONS + 1


#: vector instructions of 32 elements
OPERATIONS = 49
