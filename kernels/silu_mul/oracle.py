# SPDX-License-Identifier: Apache-2.0
"""SiLU-multiply in FP64."""

from __future__ import annotations

import numpy as np

from kernels.rounding import Store, exact

#: exp of it is finite in FP64; rounded to bf16 it is infinity, and silu is then -0, as it should be
MOST = 700.0


def silu(x: np.ndarray, store: Store = exact) -> np.ndarray:
    """x / (1 + exp(-x)). Store point: the exponential, which the hardware's exp2 gives in bf16."""
    x = x.astype(np.float64)
    return x / (1.0 + store(np.exp(np.minimum(-x, MOST))))


def silu_mul(gate: np.ndarray, up: np.ndarray, store: Store = exact) -> np.ndarray:
    """silu(gate) * up."""
    return store(silu(gate, store) * up.astype(np.float64))
