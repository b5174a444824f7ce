# SPDX-License-Identifier: Apache-2.0
"""GEMM in FP64, and the blocked layouts of the core's tiles."""

from __future__ import annotations

import numpy as np

from kernels.rounding import Store, exact

BLOCK = 8


def gemm(a: np.ndarray, b: np.ndarray, store: Store = exact) -> np.ndarray:
    """C[M,N] = A[M,K] @ B[K,N]; `store` is applied once to the whole sum."""
    return store(a.astype(np.float64) @ b.astype(np.float64))


def to_blocks(matrix: np.ndarray) -> np.ndarray:
    """[R][C] as [R/8][C/8][8][8], flat."""
    rows, cols = matrix.shape
    blocks = matrix.reshape(rows // BLOCK, BLOCK, cols // BLOCK, BLOCK).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(blocks).reshape(-1)


def from_blocks(flat: np.ndarray, rows: int, cols: int) -> np.ndarray:
    """The inverse of `to_blocks`."""
    blocks = flat.reshape(rows // BLOCK, cols // BLOCK, BLOCK, BLOCK).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(blocks).reshape(rows, cols)
