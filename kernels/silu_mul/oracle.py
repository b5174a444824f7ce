# SPDX-License-Identifier: Apache-2.0
"""SiLU-multiply in FP64."""

from __future__ import annotations

import numpy as np

from kernels.rounding import Store, exact


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x), by the form of the sigmoid that does not overflow."""
    x = x.astype(np.float64)
    decay = np.exp(-np.abs(x))
    return x * np.where(x >= 0, 1.0, decay) / (1.0 + decay)


def silu_mul(gate: np.ndarray, up: np.ndarray, store: Store = exact) -> np.ndarray:
    """silu(gate) * up."""
    return store(silu(gate) * up.astype(np.float64))
