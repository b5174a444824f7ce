# SPDX-License-Identifier: Apache-2.0
"""Phase 1's data: what each kernel is run on, and what an exact kernel would answer.

`draw` gives a kernel's operands from a seed, already bf16; `answer` is FP64 on those operands. "positive" data makes
every output positive, so that rounding that always goes one way shows as a bias. Shapes are the judge's own, near
those of a small model; floors and faults are measured on all of them.

    gemm_*, gemv, lm_head   a [M, K], b [N, K] (rows are outputs, as torch stores them) -> [M, N]
    rmsnorm                 x [M, D], gamma [D], eps -> [M, D]; every third row is so small that eps counts
    rope                    x [M, H, D], cos_sin [M, D] (D/2 cosines, then sines) -> [M, H, D]
    silu_mul, add           a, b [M, D] -> [M, D]
    attention_*             q [M, H, D], k and v [T, G, D] -> [M, H, D]; query i sees keys 0 .. T - M + i
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from judge.rounding import round_bf16

EPS = 1e-5
ROPE_BASE = 10000.0
# Scale of the small rows of rmsnorm: mean(x^2) is 2.5 eps.
SMALL = 0.005

Operands = dict[str, np.ndarray]


@dataclass(frozen=True)
class Shape:
    """rows M, reduction K (or width D), outputs N; heads, kv_heads, head_dim and keys T for attention and RoPE."""

    rows: int
    inner: int = 0
    outputs: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    keys: int = 0


SHAPES: dict[str, tuple[Shape, ...]] = {
    "gemm_bf16": (Shape(256, 576, 192), Shape(64, 1536, 576), Shape(64, 128, 256)),
    "gemm_bfp16": (Shape(256, 576, 192), Shape(64, 1536, 576), Shape(64, 128, 256)),
    "gemv": (Shape(1, 576, 576), Shape(1, 1536, 576), Shape(1, 128, 256)),
    "lm_head": (Shape(1, 576, 2048), Shape(16, 576, 512), Shape(1, 128, 512)),
    "rmsnorm": (Shape(256, 576), Shape(64, 128), Shape(3, 576)),
    "silu_mul": (Shape(256, 1536), Shape(1, 1536), Shape(64, 256)),
    "add": (Shape(256, 576), Shape(1, 576), Shape(64, 128)),
    "rope": (Shape(256, heads=12, head_dim=64), Shape(64, heads=6, head_dim=32), Shape(1, heads=12, head_dim=64)),
    "attention_prefill": (
        Shape(256, heads=9, kv_heads=3, head_dim=64, keys=256),
        Shape(64, heads=4, kv_heads=2, head_dim=32, keys=64),
    ),
    "attention_decode": (
        Shape(1, heads=9, kv_heads=3, head_dim=64, keys=40),
        Shape(1, heads=9, kv_heads=3, head_dim=64, keys=200),
        Shape(1, heads=4, kv_heads=2, head_dim=32, keys=100),
    ),
}
SHAPES["attention_prefill_bfp16"] = SHAPES["attention_prefill"]
# Kernels whose outputs can all be positive; a bfp16 product is biased by its format, so that bias says nothing there.
POSITIVE = ("gemm_bf16", "gemv", "rmsnorm", "silu_mul", "add", "attention_prefill", "attention_decode")


def draw(kernel: str, shape: Shape, seed: int, *, positive: bool = False) -> Operands:
    """The operands of one dispatch, bf16 values in FP32."""
    rng = np.random.default_rng([seed, *kernel.encode()])

    def values(*size: int, scale: float = 1.0) -> np.ndarray:
        x = scale * rng.standard_normal(size)
        return round_bf16((np.abs(x) if positive else x).astype(np.float32))

    if kernel.startswith("gemm") or kernel in ("gemv", "lm_head"):
        scale = shape.inner**-0.5
        return {"a": values(shape.rows, shape.inner), "b": values(shape.outputs, shape.inner, scale=scale)}
    if kernel == "rmsnorm":
        x = values(shape.rows, shape.inner)
        x[::3] = round_bf16(x[::3] * np.float32(SMALL))
        return {"x": x, "gamma": round_bf16(rng.uniform(0.4, 1.8, shape.inner).astype(np.float32))}
    if kernel in ("silu_mul", "add"):
        return {"a": values(shape.rows, shape.inner), "b": values(shape.rows, shape.inner)}
    if kernel == "rope":
        first = int(rng.integers(0, 1024))
        table = rope_table(np.arange(first, first + shape.rows), shape.head_dim)
        return {"x": values(shape.rows, shape.heads, shape.head_dim), "cos_sin": table, "first": np.array(first)}
    return {
        "q": round_bf16(rng.standard_normal((shape.rows, shape.heads, shape.head_dim)).astype(np.float32) * 1.5),
        "k": round_bf16(rng.standard_normal((shape.keys, shape.kv_heads, shape.head_dim)).astype(np.float32)),
        "v": values(shape.keys, shape.kv_heads, shape.head_dim),
    }


def rope_table(positions: np.ndarray, head_dim: int) -> np.ndarray:
    """[positions, head_dim]: cosines, then sines, rounded to bf16."""
    angles = np.outer(positions, ROPE_BASE ** (-np.arange(0, head_dim, 2) / head_dim))
    return round_bf16(np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))


def answer(kernel: str, operands: Operands) -> np.ndarray:
    """What an exact kernel answers on these operands, FP64."""
    x = {name: value.astype(np.float64) for name, value in operands.items()}
    if kernel.startswith("gemm") or kernel in ("gemv", "lm_head"):
        return x["a"] @ x["b"].T
    if kernel == "rmsnorm":
        return x["x"] / np.sqrt((x["x"] ** 2).mean(axis=1, keepdims=True) + EPS) * x["gamma"]
    if kernel == "silu_mul":
        return x["a"] / (1 + np.exp(-x["a"])) * x["b"]
    if kernel == "add":
        return x["a"] + x["b"]
    if kernel == "rope":
        half = x["x"].shape[2] // 2
        cos, sin = x["cos_sin"][:, None, :half], x["cos_sin"][:, None, half:]
        low, high = x["x"][..., :half], x["x"][..., half:]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=2)
    return _attention(x["q"], x["k"], x["v"])


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    rows, heads, dim = q.shape
    keys, groups, _ = k.shape
    out = np.empty_like(q)
    visible = np.arange(keys)[None, :] <= np.arange(keys - rows, keys)[:, None]
    for head in range(heads):
        group = head // (heads // groups)
        scores = np.where(visible, q[:, head] @ k[:, group].T / np.sqrt(dim), -np.inf)
        weight = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weight @ v[:, group] / weight.sum(axis=1, keepdims=True)
    return out
