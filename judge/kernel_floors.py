# SPDX-License-Identifier: Apache-2.0
"""Phase 1's two numbers: each kernel as an honest core would compute it, and with one fault planted in its code.

`run` is an independent model of the kernel's arithmetic: bf16 operands, FP32 accumulation, one rounding at each store.
It is not the kernel and not the twin; it knows nothing of tiles or layouts. A fault's name selects a wrong line in it.
"""

from __future__ import annotations

import numpy as np

from judge.kernel_cases import EPS, PRODUCTS, Operands, Shape, rope_table
from judge.rounding import quantise_bfp16, round_bf16

# Elements of K that one instruction takes, and the K tile after which a wrong kernel rounds its accumulator.
STEP = 8
K_TILE = 64
KEY_BLOCK = 32
_OUT_OF_SIGHT = np.float32(-1e30)

_ROUNDING = ("floor_rounding", "cut_rounding")
_PRODUCT = ("bf16_accumulation", "tail_dropped", "padding_leaks")
_MASK = ("mask_ahead", "mask_behind", "kv_tiled", "scale_missing")
FAULTS: dict[str, tuple[str, ...]] = {
    "gemm_bf16": (*_ROUNDING, *_PRODUCT, "tiles_swapped"),
    "gemm_bfp16": (*_ROUNDING, *_PRODUCT, "tiles_swapped"),
    "gemv": (*_ROUNDING, *_PRODUCT),
    "gemv_add": (*_ROUNDING, "tail_dropped", "padding_leaks", "operand_dropped"),
    "gemv_norm": (*_ROUNDING, "tail_dropped", "padding_leaks", "norm_dropped"),
    "gemv_swiglu": (*_ROUNDING, "tail_dropped", "padding_leaks", "norm_dropped", "operands_swapped"),
    "lm_head": ("bf16_logits", *_PRODUCT),
    "rmsnorm": (*_ROUNDING, "eps_wrong", "mean_over_padding", "weight_plus_one"),
    "rope": (*_ROUNDING, "interleaved", "position_late", "sine_negated"),
    "silu_mul": (*_ROUNDING, "operands_swapped", "gelu_for_silu"),
    "add": (*_ROUNDING, "operand_dropped"),
    "attention_prefill": (*_ROUNDING, "bf16_accumulation", *_MASK),
    "attention_prefill_bfp16": (*_ROUNDING, "bf16_accumulation", *_MASK),
    "attention_decode": (*_ROUNDING, "key_too_few", "key_too_many", "kv_tiled", "merge_unscaled", "position_late"),
}
# Where a kernel's own error hides a fault: the gate of the kernel whose store code is the same and which shows it.
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "gemm_bfp16": ("phase1.gemm_bf16",),
    "attention_prefill_bfp16": ("phase1.attention_prefill",),
    "gemv_swiglu": ("phase1.silu_mul",),
}


def shows(fault: str, shape: Shape) -> bool:
    """Whether a shape can show a fault: a bf16 accumulator needs several roundings to differ from one."""
    return fault != "bf16_accumulation" or shape.inner >= 512 or shape.keys >= 256


def run(kernel: str, operands: Operands, fault: str = "") -> np.ndarray:
    """The kernel's output: FP32 values, bf16 ones where the kernel stores bf16."""
    if kernel in PRODUCTS:
        return _matrix_kernel(kernel, operands, fault)
    if kernel == "rmsnorm":
        return _rms_norm(operands["x"], operands["gamma"], fault)
    if kernel == "rope":
        return _rope(operands["x"], operands, fault)
    if kernel == "silu_mul":
        return _silu_mul(operands["a"], operands["b"], fault)
    if kernel == "add":
        b = np.zeros_like(operands["b"]) if fault == "operand_dropped" else operands["b"]
        return _store(operands["a"] + b, fault)
    if kernel == "attention_decode":
        return _decode(operands, fault)
    return _attention(operands["q"], operands["k"], operands["v"], fault, bfp16=kernel.endswith("_bfp16"))


def _store(x: np.ndarray, fault: str = "") -> np.ndarray:
    return round_bf16(x, {"floor_rounding": "floor", "cut_rounding": "zero"}.get(fault, "even"))


def _matrix_kernel(kernel: str, x: Operands, fault: str) -> np.ndarray:
    a = x["a"]
    if kernel in ("gemv_norm", "gemv_swiglu") and fault != "norm_dropped":
        a = _rms_norm(a, x["gamma"], "")
    if kernel == "gemv_swiglu":
        gate, up = (_product(a, matrix, fault) for matrix in x["b"])
        return _silu_mul(gate, up, fault)
    total = _product(a, x["b"], fault, bfp16=kernel == "gemm_bfp16", step=1 if kernel == "lm_head" else STEP)
    if kernel == "lm_head":
        return round_bf16(total) if fault == "bf16_logits" else total
    if kernel == "gemv_add" and fault != "operand_dropped":
        total = total + x["c"]
    return _store(total, fault)


def _product(a: np.ndarray, b: np.ndarray, fault: str, *, bfp16: bool = False, step: int = STEP) -> np.ndarray:
    """a [M, K] times b [N, K] transposed, accumulated in FP32 in the order of K, `step` elements at a time."""
    if fault == "tail_dropped":
        a, b = a[:, :-STEP], b[:, :-STEP]
    if fault == "padding_leaks":  # eight K rows of padding that hold an old tile instead of zeros
        a, b = np.concatenate([a, a[:, :STEP]], axis=1), np.concatenate([b, b[:, :STEP]], axis=1)
    if fault == "tiles_swapped":
        b = np.concatenate([b[STEP : 2 * STEP], b[:STEP], b[2 * STEP :]])
    if bfp16:
        a, b = quantise_bfp16(a), quantise_bfp16(b)
    total = np.zeros((len(a), len(b)), np.float32)
    for start in range(0, a.shape[1], step):
        total += a[:, start : start + step] @ b[:, start : start + step].T
        if fault == "bf16_accumulation" and (start + step) % K_TILE == 0:
            total = round_bf16(total)
    return total


def _rms_norm(rows: np.ndarray, gamma: np.ndarray, fault: str) -> np.ndarray:
    width = rows.shape[1] + (64 if fault == "mean_over_padding" else 0)
    eps = np.float32(1e-6 if fault == "eps_wrong" else EPS)
    scale = 1 / np.sqrt((rows * rows).sum(axis=1, keepdims=True) / np.float32(width) + eps)
    return _store(rows * scale * (gamma + 1 if fault == "weight_plus_one" else gamma), fault)


def _rope(values: np.ndarray, x: Operands, fault: str) -> np.ndarray:
    table, dim = x["cos_sin"], values.shape[2]
    if fault == "position_late":
        first = int(x["first"]) + 1
        table = rope_table(np.arange(first, first + len(values)), dim)
    cos, sin = table[:, None, : dim // 2], table[:, None, dim // 2 :]
    sin = -sin if fault == "sine_negated" else sin
    halves = (slice(0, dim // 2), slice(dim // 2, dim))
    one, two = (slice(0, None, 2), slice(1, None, 2)) if fault == "interleaved" else halves
    out = np.empty_like(values)
    out[..., one] = values[..., one] * cos - values[..., two] * sin
    out[..., two] = values[..., two] * cos + values[..., one] * sin
    return _store(out, fault)


def _silu_mul(gate: np.ndarray, up: np.ndarray, fault: str) -> np.ndarray:
    """exp2 is a hardware vector operation with a bf16 result."""
    if fault == "operands_swapped":
        gate, up = up, gate
    if fault == "gelu_for_silu":
        inner = np.float32(0.7978845608) * (gate + np.float32(0.044715) * gate**3)
        return _store(gate * up * (1 + np.tanh(inner)) / 2)
    return _store(gate * up / (1 + round_bf16(np.exp(np.minimum(-gate, 80)))), fault)


def _decode(x: Operands, fault: str) -> np.ndarray:
    """q and k of the current token are turned and stored; older rows come from the cache."""
    q, k = (_rope(x[name][None], x, fault) for name in "qk")
    keys, values = np.concatenate([x["cache_k"], k]), np.concatenate([x["cache_v"], x["v"][None]])
    return np.concatenate([_attention(q, keys, values, fault)[0], k[0], x["v"]])


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, fault: str, *, bfp16: bool = False) -> np.ndarray:
    (rows, heads, _), (keys, groups, _) = q.shape, k.shape
    if fault == "key_too_many":  # the row after the last valid one, left over from an earlier sequence
        k, v = np.concatenate([k, k[:1]]), np.concatenate([v, -v[:1]])
    shift = {"mask_ahead": 1, "mask_behind": -1, "key_too_few": -1, "key_too_many": 1}.get(fault, 0)
    # A query always sees one key at least, as the first row of a causal mask that is one too strict would not.
    last = np.maximum(np.arange(keys - rows, keys) + shift, 0)
    visible = np.arange(len(k))[None, :] <= last[:, None]
    out = np.empty_like(q)
    for head in range(heads):
        group = head % groups if fault == "kv_tiled" else head // (heads // groups)
        out[:, head] = _head(q[:, head], k[:, group], v[:, group], visible, fault, bfp16)
    return _store(out, fault)


def _head(q: np.ndarray, k: np.ndarray, v: np.ndarray, visible: np.ndarray, fault: str, bfp16: bool) -> np.ndarray:
    """Blocks of keys with running maximum, sum and accumulator in FP32; probabilities are bf16, as exp2 gives them."""
    scale = np.float32(1 if fault == "scale_missing" else q.shape[1] ** -0.5)
    if bfp16:  # blocks of 8 lie along head_dim in q and k, along the keys in v
        q, k, v = quantise_bfp16(q), quantise_bfp16(k), quantise_bfp16(v.T).T
    top = np.full((len(q), 1), _OUT_OF_SIGHT, np.float32)
    total, mass = np.zeros_like(q), np.zeros((len(q), 1), np.float32)
    for start in range(0, len(k), KEY_BLOCK):
        part = slice(start, start + KEY_BLOCK)
        scores = np.where(visible[:, part], q @ k[part].T * scale, _OUT_OF_SIGHT)
        new = np.maximum(top, scores.max(axis=1, keepdims=True))
        weight = np.where(visible[:, part], round_bf16(np.exp(scores - new)), np.float32(0))
        shrink = np.float32(1) if fault == "merge_unscaled" else np.exp(top - new)
        add = (quantise_bfp16(weight) if bfp16 else weight) @ v[part]
        total, mass = total * shrink + add, mass * shrink + weight.sum(axis=1, keepdims=True)
        if fault == "bf16_accumulation":
            total, mass = round_bf16(total), round_bf16(mass)
        top = new
    return total / mass
