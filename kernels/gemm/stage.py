# SPDX-License-Identifier: Apache-2.0
"""The GEMM tile's stage: C[m,n] += A[m,k] @ B[k,n] in one core, fp32 accumulator local to it."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.stage import BFP16_DEFINE, MATRIX_MODES, MMUL_OPERATIONS, Argument, Stage, bf16, f32
from npu.program import MemRef

BLOCK = 8  # the matrix unit multiplies 8x8x8


@dataclass(frozen=True)
class GemmStage(Stage):
    """m, k, n: the core's tile, multiples of 8. mode: "bf16" or "bfp16". out: "bf16" or "f32"."""

    m: int
    k: int
    n: int
    mode: str = "bfp16"
    out: str = "bf16"

    name = "gemm"

    def check(self) -> None:
        """Refuse sizes that are not whole blocks, unknown modes and outputs."""
        for parameter in ("m", "k", "n"):
            self.require_multiple(parameter, getattr(self, parameter), BLOCK)
        self.require_one_of("mode", self.mode, MATRIX_MODES)
        self.require_one_of("out", self.out, ("bf16", "f32"))

    @property
    def defines(self) -> dict[str, str | int]:
        macros: dict[str, str | int] = {"DIM_M": self.m, "DIM_K": self.k, "DIM_N": self.n}
        macros["C_F32"] = int(self.out == "f32")
        if self.mode == "bfp16":
            macros[BFP16_DEFINE] = 1
        return macros

    @property
    def functions(self) -> dict[str, tuple[Argument, ...]]:
        acc = f32(self.m * self.n)
        return {
            "gemm_zero": (acc,),
            "gemm_accumulate": (bf16(self.m * self.k), bf16(self.k * self.n), acc),
            "gemm_store": (acc, MemRef((self.m * self.n,), self.out)),
        }

    @property
    def buffers(self) -> dict[str, MemRef]:
        return {"acc": f32(self.m * self.n)}

    def macs(self, function: str) -> int:
        if function == "gemm_accumulate":
            return self.m * self.k * self.n
        if function in self.functions:
            return 0
        raise self.unknown(function)

    def vector_operations(self, function: str) -> int:
        blocks = (self.m // BLOCK) * (self.n // BLOCK)
        if function == "gemm_zero":
            return 1
        if function == "gemm_accumulate":
            # each block's accumulator is moved in and out (two instructions each way), one mmul a k block between
            return blocks * (4 + self.k // BLOCK * MMUL_OPERATIONS[self.mode])
        if function == "gemm_store":
            return 0 if self.out == "f32" else blocks * 4
        raise self.unknown(function)
