# SPDX-License-Identifier: Apache-2.0
"""One decode step's attention in FP64: rotate, attend to the cache and to the token itself."""

from __future__ import annotations

import numpy as np

from kernels.attention_prefill.oracle import attention
from kernels.rope.oracle import rope
from kernels.rounding import Store, exact


def decode_attention(
    qkv: np.ndarray, cos_sin: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, heads: int, store: Store = exact
) -> np.ndarray:
    """qkv[heads + 2 KV, D] of the token, cos_sin[D], caches [pos, KV, D] -> [heads attention, KV rotated k, KV v][D].

    Store points: rotated q and k, probabilities, output.
    """
    kv_heads = k_cache.shape[1]
    turned = rope(qkv[None, : heads + kv_heads], cos_sin[None], heads + kv_heads, store)[0]
    q, new_k, new_v = turned[:heads], turned[heads:], qkv[heads + kv_heads :].astype(np.float64)
    k = np.concatenate([k_cache.astype(np.float64), new_k[None]])
    v = np.concatenate([v_cache.astype(np.float64), new_v[None]])
    return np.concatenate([attention(q[None], k, v, store)[0], new_k, new_v])
