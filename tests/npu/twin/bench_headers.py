# SPDX-License-Identifier: Apache-2.0
"""Measures the emulation headers on one core of this host: `python -m tests.npu.twin.bench_headers`.

The best of many calls counts, so that other work on the machine disturbs little. Not a test: it asserts nothing.
"""

from __future__ import annotations

import time

import numpy as np

from npu.twin.hostcc import CoreState, KernelLibrary, find_compiler
from tests.npu.twin import compiled_cases as cases

EMULATED = "AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16"
CALLS = 2000


def best_seconds(kernels: KernelLibrary, symbol: str, *arguments: np.ndarray | int) -> float:
    """Seconds of the fastest of CALLS calls."""
    core, best = CoreState(), float("inf")
    for _ in range(CALLS):
        begin = time.perf_counter()
        cases.call(kernels, symbol, *arguments, core=core)
        best = min(best, time.perf_counter() - begin)
    return best


def random(count: int) -> np.ndarray:
    return cases.aligned(np.random.default_rng(1).standard_normal(count).astype(np.float32).astype(cases.BF16))


def main() -> None:
    print(find_compiler().version)
    for name, defines in (("native", ()), ("bfp16-emulated", (EMULATED,))):
        kernels = cases.library("bench", *defines, flags=())
        c = cases.aligned(np.zeros(32 * 32, np.float32))
        seconds = best_seconds(kernels, "gemm", random(32 * 512), random(512 * 32), c, 64)
        print(f"GEMM 8x8x8 {name}: {2 * 32 * 32 * 512 / seconds / 1e9:.1f} GFLOP/s")
    kernels = cases.library("bench", flags=())
    y = cases.aligned(np.zeros(64, np.float32))
    seconds = best_seconds(kernels, "gemv", random(64 * 2048), random(2048), y, 64, 2048)
    print(f"GEMV by mac: {2 * 64 * 2048 / seconds / 1e9:.1f} GFLOP/s")
    count = 1 << 16
    a, b, out = random(count), random(count), cases.aligned(np.zeros(count, cases.BF16))
    for symbol in ("add", "mul", "exp2_of", "tanh_of"):
        seconds = best_seconds(kernels, symbol, a, b, out, count)
        print(f"{symbol}: {count / seconds / 1e6:.0f} Melem/s")


if __name__ == "__main__":
    main()
