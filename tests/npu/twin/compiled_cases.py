# SPDX-License-Identifier: Apache-2.0
"""Small kernels of the tests in cases/, compiled once, and aligned arrays to call them on."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np

from npu.twin.hostcc import CoreState, KernelLibrary, compile_kernel

CASES = Path(__file__).parent / "cases"
# Content-addressed, so it may be kept between runs.
CACHE = Path(__file__).parents[3] / ".cache" / "test-kernels"
BF16 = ml_dtypes.bfloat16

FLOOR, CEIL, SYMMETRIC_FLOOR, SYMMETRIC_CEIL = 0, 1, 2, 3
NEGATIVE_INF, POSITIVE_INF, SYMMETRIC_ZERO, SYMMETRIC_INF, CONV_EVEN, CONV_ODD = 8, 9, 10, 11, 12, 13
MODES = (FLOOR, CEIL, SYMMETRIC_FLOOR, SYMMETRIC_CEIL, NEGATIVE_INF, POSITIVE_INF, SYMMETRIC_ZERO, SYMMETRIC_INF)
MODES += (CONV_EVEN, CONV_ODD)


@cache
def library(name: str, *defines: str, flags: tuple[str, ...] = ("-O1",)) -> KernelLibrary:
    """The compiled case `name`.cc."""
    path = compile_kernel(CASES / f"{name}.cc", dict.fromkeys(defines, "1"), cache=CACHE, flags=flags)
    return KernelLibrary(path)


def aligned(values: np.ndarray) -> np.ndarray:
    """A copy whose first element lies at a multiple of 64 bytes."""
    values = np.ascontiguousarray(values)
    room = np.zeros(values.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def call(kernels: KernelLibrary, symbol: str, *arguments: np.ndarray | int, core: CoreState | None = None) -> CoreState:
    """Runs a kernel on aligned arrays and integers; returns the core's state afterwards."""
    core = core or CoreState()
    words = [x if isinstance(x, int) else x.ctypes.data for x in arguments]
    kernels.call(symbol, core, *words)
    return core


def bits16(values: np.ndarray) -> np.ndarray:
    """The bit patterns of bfloat16 values."""
    return values.view(np.uint16)
