# SPDX-License-Identifier: Apache-2.0
"""Half-split RoPE in FP64: heads as complex numbers x[i] + j x[i + D/2], turned by exp(j angle)."""

from __future__ import annotations

import numpy as np

from kernels.rounding import Store, exact


def rope(x: np.ndarray, cos_sin: np.ndarray, rotated_heads: int, store: Store = exact) -> np.ndarray:
    """x[rows, heads, D] with its first `rotated_heads` heads turned by cos_sin[rows, D] = cos[D/2], sin[D/2]."""
    half = x.shape[-1] // 2
    turn = cos_sin[:, None, :half].astype(np.float64) + 1j * cos_sin[:, None, half:].astype(np.float64)
    out = x.astype(np.float64)
    heads = out[:, :rotated_heads]
    turned = (heads[..., :half] + 1j * heads[..., half:]) * turn
    out[:, :rotated_heads] = store(np.concatenate([turned.real, turned.imag], axis=-1))
    return out
