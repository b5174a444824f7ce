# SPDX-License-Identifier: Apache-2.0
"""Phase 1's data: what each kernel is run on, and what an exact kernel would answer.

`draw` gives a kernel's operands from a seed, already bf16; `answer` is FP64 on those operands. Shapes are the judge's
own, near those of a small model; floors and faults are measured on all of them. M rows, K reduction, D width, H query
and G KV heads, T cached keys:

    gemm_*, gemv, lm_head   a [M, K], b [N, K] (rows are outputs, as torch stores them) -> a b^T [M, N]
    gemv_add                and c [M, N] -> a b^T + c
    gemv_norm, gemv_swiglu  and gamma [K]: the rows of a are normed first; swiglu has b [2, N, K], gate and up
    rmsnorm                 x [M, D], gamma [D] -> [M, D]; rows of different size, the smallest so small that eps counts
    rope                    x [M, H, D], cos_sin [M, D] (D/2 cosines, then sines) -> [M, H, D]
    silu_mul, add           a, b [M, D] -> [M, D]
    attention_prefill       q [M, H, D], k and v [M, G, D] -> [M, H, D], causal
    attention_decode        q [H, D], k and v [G, D] of the current token, not yet rotated; cache_k, cache_v [T, G, D];
                            cos_sin [1, D] -> [H + 2G, D]: attention of the heads, then the rotated k and v
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from judge.rounding import round_bf16

EPS = 1e-5
ROPE_BASE = 10000.0
PRODUCTS = ("gemm_bf16", "gemm_bfp16", "gemv", "gemv_add", "gemv_norm", "gemv_swiglu", "lm_head")

Operands = dict[str, np.ndarray]


@dataclass(frozen=True)
class Shape:
    """rows M, reduction K or width D, outputs N; heads, kv_heads, head_dim and cached keys T where they apply."""

    rows: int
    inner: int = 0
    outputs: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    keys: int = 0


_GEMM = (Shape(256, 576, 192), Shape(64, 1536, 576), Shape(64, 128, 256))
_GEMV = (Shape(1, 576, 576), Shape(1, 1536, 576), Shape(1, 128, 256))
_PREFILL = (
    Shape(256, heads=9, kv_heads=3, head_dim=64, keys=256),
    Shape(64, heads=4, kv_heads=2, head_dim=32, keys=64),
)
SHAPES: dict[str, tuple[Shape, ...]] = {
    "gemm_bf16": _GEMM,
    "gemm_bfp16": _GEMM,
    "gemv": _GEMV,
    "gemv_add": _GEMV,
    "gemv_norm": _GEMV,
    "gemv_swiglu": (Shape(1, 576, 1536), Shape(1, 128, 256)),
    "lm_head": (Shape(1, 576, 2048), Shape(16, 576, 512), Shape(1, 128, 512)),
    "rmsnorm": (Shape(256, 576), Shape(64, 128), Shape(4, 576)),
    "silu_mul": (Shape(256, 1536), Shape(4, 1536), Shape(64, 256)),
    "add": (Shape(256, 576), Shape(4, 576), Shape(64, 128)),
    "rope": (Shape(256, heads=12, head_dim=64), Shape(64, heads=6, head_dim=32), Shape(4, heads=12, head_dim=64)),
    "attention_prefill": _PREFILL,
    "attention_prefill_bfp16": _PREFILL,
    "attention_decode": (
        Shape(1, heads=9, kv_heads=3, head_dim=64, keys=128),
        Shape(1, heads=9, kv_heads=3, head_dim=64, keys=256),
        Shape(1, heads=4, kv_heads=2, head_dim=32, keys=100),
    ),
}


def draw(kernel: str, shape: Shape, seed: int) -> Operands:
    """The operands of one dispatch, bf16 values in FP32."""
    rng = np.random.default_rng([seed, *kernel.encode()])

    def values(*size: int, scale: float | np.ndarray = 1.0) -> np.ndarray:
        return round_bf16((scale * rng.standard_normal(size)).astype(np.float32))

    if kernel in PRODUCTS:
        matrices = (2,) if kernel == "gemv_swiglu" else ()
        b = values(*matrices, shape.outputs, shape.inner, scale=shape.inner**-0.5)
        return {
            "a": values(shape.rows, shape.inner),
            "b": b,
            "c": values(shape.rows, shape.outputs),
            "gamma": round_bf16((1 + 0.2 * rng.standard_normal(shape.inner)).astype(np.float32)),
        }
    if kernel == "rmsnorm":
        scale = np.geomspace(2 * EPS**0.5, 4.0, shape.rows)[:, None]
        gamma = round_bf16(rng.uniform(0.4, 1.8, shape.inner).astype(np.float32))
        return {"x": values(shape.rows, shape.inner, scale=scale), "gamma": gamma}
    if kernel in ("silu_mul", "add"):
        scale = 2.0 if kernel == "silu_mul" else 1.0
        return {name: values(shape.rows, shape.inner, scale=scale) for name in "ab"}
    first = int(rng.integers(0, 4096)) if kernel == "rope" else shape.keys
    table = rope_table(np.arange(first, first + shape.rows), shape.head_dim)
    if kernel == "rope":
        x = values(shape.rows, shape.heads, shape.head_dim)
        return {"x": x, "cos_sin": table, "first": np.array(first)}
    lead = () if kernel == "attention_decode" else (shape.rows,)
    operands = {"q": values(*lead, shape.heads, shape.head_dim)}
    operands |= {name: values(*lead, shape.kv_heads, shape.head_dim) for name in "kv"}
    if kernel == "attention_decode":
        size = (shape.keys, shape.kv_heads, shape.head_dim)
        operands |= {"cache_k": values(*size), "cache_v": values(*size), "cos_sin": table, "first": np.array(first)}
    return operands


def rope_table(positions: np.ndarray, head_dim: int) -> np.ndarray:
    """[positions, head_dim]: cosines, then sines, rounded to bf16."""
    angles = np.outer(positions, ROPE_BASE ** (-np.arange(0, head_dim, 2) / head_dim))
    return round_bf16(np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))


def answer(kernel: str, operands: Operands) -> np.ndarray:
    """What an exact kernel answers on these operands, FP64."""
    x = {name: value.astype(np.float64) for name, value in operands.items()}
    if kernel in PRODUCTS:
        return _product(kernel, x)
    if kernel == "rmsnorm":
        return _norm(x["x"], x["gamma"])
    if kernel == "silu_mul":
        return x["a"] / (1 + np.exp(-x["a"])) * x["b"]
    if kernel == "add":
        return x["a"] + x["b"]
    if kernel == "rope":
        return _turn(x["x"], x["cos_sin"])
    if kernel == "attention_decode":
        q, k = (_turn(x[name][None], x["cos_sin"]) for name in "qk")
        keys = np.concatenate([x["cache_k"], k])
        values = np.concatenate([x["cache_v"], x["v"][None]])
        return np.concatenate([_attention(q, keys, values)[0], k[0], x["v"]])
    return _attention(x["q"], x["k"], x["v"])


def _product(kernel: str, x: dict[str, np.ndarray]) -> np.ndarray:
    a = _norm(x["a"], x["gamma"]) if kernel in ("gemv_norm", "gemv_swiglu") else x["a"]
    if kernel == "gemv_swiglu":
        gate, up = a @ x["b"][0].T, a @ x["b"][1].T
        return gate / (1 + np.exp(-gate)) * up
    return a @ x["b"].T + (x["c"] if kernel == "gemv_add" else 0)


def _norm(x: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPS) * gamma


def _turn(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """[rows, heads, D] by [rows, D]."""
    half = x.shape[2] // 2
    cos, sin = table[:, None, :half], table[:, None, half:]
    low, high = x[..., :half], x[..., half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=2)


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
