# SPDX-License-Identifier: Apache-2.0
"""Store points: what an oracle applies where a kernel stores a value.

Every kernel oracle takes `store`. With `exact` it is the plain mathematics in FP64; with `round_bf16` it rounds where the
kernel's page says that the kernel rounds, and nowhere else: the honest floor of the kernel's error.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

Store = Callable[[np.ndarray], np.ndarray]


def exact(values: np.ndarray) -> np.ndarray:
    """No rounding."""
    return values


def round_bf16(values: np.ndarray) -> np.ndarray:
    """To the nearest bf16, ties to even, as FP64."""
    return values.astype(ml_dtypes.bfloat16).astype(np.float64)
