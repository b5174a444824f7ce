# SPDX-License-Identifier: Apache-2.0
"""RMSNorm in FP64 (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import numpy as np

from kernels.rounding import Store, exact


def rmsnorm(x: np.ndarray, gamma: np.ndarray, valid: int, epsilon: float, store: Store = exact) -> np.ndarray:
    """x[..., D] / sqrt(mean over the first `valid` of x^2 + epsilon) * gamma; elements from `valid` on are 0."""
    row, weight = x[..., :valid].astype(np.float64), gamma[:valid].astype(np.float64)
    root = np.sqrt(np.square(row).mean(axis=-1, keepdims=True) + epsilon)
    out = np.zeros(x.shape)
    out[..., :valid] = store(row / root * weight)
    return out
