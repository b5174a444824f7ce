# SPDX-License-Identifier: Apache-2.0
"""The operators of a dense decoder in FP32 numpy, each with its formula's source.

Shapes: n tokens, H query heads, G KV heads, d = head_dim, t positions seen.
All arrays are FP32 and rows are contiguous; nothing here keeps state.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from reference.oracle.rope_keys import RopeConfig
from reference.oracle.row_blocks import for_row_blocks, product_block

# Rows of queries handled at once: scores of a block stay in the cache, and blocks above the diagonal are not computed.
_QUERY_BLOCK = 64
_ELEMENTWISE_BLOCK = 64


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """x W^T + b, the layout of torch.nn.Linear: x [n, in], weight [out, in] in any memory order -> [n, out]."""
    rows = len(weight)
    y = np.empty((len(x), rows), np.float32)

    def block(start: int, stop: int) -> None:
        np.matmul(x, weight[start:stop].T, out=y[:, start:stop])
        if bias is not None:
            y[:, start:stop] += bias[start:stop]

    for_row_blocks(rows, product_block(len(x), rows), block)
    return y


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * w over the last axis (Zhang and Sennrich 2019, arXiv 1910.07467, eq. 4)."""
    mean_square = np.einsum("...i,...i->...", x, x)[..., None] / np.float32(x.shape[-1])
    y = x * (np.float32(1) / np.sqrt(mean_square + np.float32(eps)))
    y *= weight
    return y


def silu_multiply(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """silu(gate) * up, with silu(x) = x / (1 + exp(-x)) (SwiGLU: Shazeer 2020, arXiv 2002.05202)."""
    y = np.empty(gate.shape, np.float32)

    def block(start: int, stop: int) -> None:
        g, part = gate[start:stop], y[start:stop]
        np.negative(g, out=part)
        with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, -0
            np.exp(part, out=part)
        part += np.float32(1)
        np.divide(g, part, out=part)
        part *= up[start:stop]

    for_row_blocks(len(y), _ELEMENTWISE_BLOCK, block)
    return y


def softmax(x: np.ndarray) -> np.ndarray:
    """exp(x - max) / sum(exp(x - max)) over the last axis."""
    y = x - x.max(axis=-1, keepdims=True)
    np.exp(y, out=y)
    y /= y.sum(axis=-1, keepdims=True)
    return y


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Radians a position for each of head_dim / 2 pairs, in FP64.

    default: theta^(-2i/d) (Su et al. 2021, arXiv 2104.09864, section 3.2.2).
    linear: divided by `factor` (positions interpolated; Chen et al. 2023, arXiv 2306.15595).
    llama3: by wavelength, long ones divided by `factor`, short ones kept, between the two
        interpolated (Llama 3.1 model code, `apply_scaling`; same in transformers).
    """
    base = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.kind == "default":
        return base
    if rope.kind == "linear":
        return base / rope.factor
    # Turns within the original context: few turns is a long wavelength.
    turns = rope.original_max_position_embeddings * base / (2 * np.pi)
    share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = np.clip(share, 0.0, 1.0)
    return base * (keep + (1 - keep) / rope.factor)


def rope_table(rope: RopeConfig, head_dim: int, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of positions first .. first+count-1: two arrays [count, head_dim / 2].

    Angles are taken in FP64: in FP32 the angle of position 100,000 is off by 0.004 already.
    """
    positions = np.arange(first, first + count, dtype=np.float64)
    angles = np.outer(positions, inverse_frequencies(rope, head_dim))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Half-split RoPE: element i pairs with i + d/2 (`rotate_half` of transformers).

    x [n, heads, d], cos and sin [n, d/2] -> [n, heads, d].
    """
    half = x.shape[-1] // 2
    # Whole heads at a time: numpy pays for each run of contiguous elements, and half a head is a short one.
    y = x * np.concatenate([cos, cos], axis=-1)[:, None]
    partner = np.concatenate([x[..., half:], x[..., :half]], axis=-1)
    partner *= np.concatenate([-sin, sin], axis=-1)[:, None]
    y += partner
    return y


def attention(q: np.ndarray, keys: np.ndarray, values: np.ndarray, past: int) -> np.ndarray:
    """Causal grouped-query attention: softmax(q k^T / sqrt(d)) v.

    Query i stands at position past + i and sees positions up to its own. Query head h reads
    KV head h // (H / G): each KV head is repeated, not the set of them tiled
    (Ainslie et al. 2023, arXiv 2305.13245; `repeat_kv` of transformers).

    Args:
        q: [n, H, d]. keys, values: [G, past + n, d].

    Returns:
        [n, H * d].
    """
    n, heads, dim = q.shape
    groups = keys.shape[0]
    size = heads // groups
    grouped = (q * np.float32(dim**-0.5)).reshape(n, groups, size, dim).transpose(1, 0, 2, 3)
    out = np.empty((n, groups, size, dim), np.float32)

    def attend(start: int, stop: int) -> None:
        seen = past + stop
        rows = grouped[:, start:stop].reshape(groups, (stop - start) * size, dim)
        scores = rows @ keys[:, :seen].transpose(0, 2, 1)
        if stop - start > 1:
            scores[:, :, past + start :] += _causal(stop - start, size)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        block = scores @ values[:, :seen]
        block /= scores.sum(axis=-1, keepdims=True)
        out[start:stop] = block.reshape(groups, stop - start, size, dim).transpose(1, 0, 2, 3)

    for_row_blocks(n, _QUERY_BLOCK, attend)
    return out.reshape(n, heads * dim)


@cache
def _causal(tokens: int, size: int) -> np.ndarray:
    """[tokens * size, tokens]: 0 where the row's token sees the column, -inf above the diagonal."""
    visible = np.tri(tokens, dtype=bool).repeat(size, axis=0)
    return np.where(visible, np.float32(0), np.float32(-np.inf))
