# SPDX-License-Identifier: Apache-2.0
"""GEMV in FP64, with what decode fuses into it."""

from __future__ import annotations

import numpy as np

from kernels.rounding import Store, exact
from kernels.silu_mul.oracle import silu


def gemv(w: np.ndarray, x: np.ndarray, store: Store = exact) -> np.ndarray:
    """y[N] = W[N,K] @ x[K]."""
    return store(w.astype(np.float64) @ x.astype(np.float64))


def gemv_add(w: np.ndarray, x: np.ndarray, residual: np.ndarray, store: Store = exact) -> np.ndarray:
    """y = W @ x + residual: the sum is stored once, the product not at all."""
    return store(gemv(w, x) + residual.astype(np.float64))


def gemv_swiglu(gate: np.ndarray, up: np.ndarray, x: np.ndarray, store: Store = exact) -> np.ndarray:
    """y = silu(Wg @ x) * (Wu @ x): neither product is stored, SiLU's exponential is."""
    return store(silu(gemv(gate, x), store) * gemv(up, x))
