# SPDX-License-Identifier: Apache-2.0
"""Causal attention in FP64, and where the kernel keeps the query tiles."""

from __future__ import annotations

import numpy as np

from kernels.rounding import Store, exact


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, store: Store = exact) -> np.ndarray:
    """softmax(q k^T / sqrt(D)) v over keys 0..token: q[T, H, D], k and v[S, KV, D] with S >= T; token t is key t + S - T.

    Store points: the unnormalised probabilities 2^(score - n), with n an integer near the row's maximum (which integer
    does not matter to a floating-point rounding), whose sum is taken of the stored ones, and the output.
    """
    tokens, heads, dim = q.shape
    keys, kv_heads = k.shape[:2]
    group = heads // kv_heads
    out = np.empty((tokens, heads, dim))
    visible = np.arange(keys)[None, :] <= np.arange(tokens)[:, None] + keys - tokens
    for head in range(heads):
        scores = q[:, head].astype(np.float64) @ k[:, head // group].astype(np.float64).T / np.sqrt(dim)
        scores = np.where(visible, scores * np.log2(np.e), -np.inf)
        p = store(np.exp2(scores - np.rint(scores.max(axis=1, keepdims=True))))
        out[:, head] = store(p @ v[:, head // group].astype(np.float64) / p.sum(axis=1, keepdims=True))
    return out


def tile_of(slot: int, row: int, col: int, core_rows: int, group: int) -> tuple[int, int]:
    """(first token, head of the group) of a slot on core (col, row): pairs are token-major, dealt to rows in turn."""
    token_tile, head = divmod(slot * core_rows + row, group)
    return (token_tile * 8 + col) * 8, head
