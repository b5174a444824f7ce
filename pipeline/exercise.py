# SPDX-License-Identifier: Apache-2.0
"""Phase 1's work: one design on the device, three dispatches and more with changing data, against FP32 formulas.

Inputs are drawn in the range that the operator sees in a trained model and rounded to bf16 first, so that the oracle and
the device start from the same numbers. Expected values come from `reference.oracle.ops` and from FP64 products, not from the
kernels' own oracles. Outputs are filled with signalling NaN before each dispatch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from judge.gates import Dispatch
from judge.metrics import unwritten
from kernels.designs.attention_decode import KEY_GROUP, PARAMS, DecodeAttentionDesign
from kernels.designs.attention_prefill import PrefillAttentionDesign
from kernels.designs.design import NUMPY_DTYPE, OpDesign, as_bf16, single_design_artifact
from kernels.designs.gemm import GemmDesign
from kernels.designs.gemv import GemvDesign
from kernels.designs.rowwise import AddDesign, RmsNormDesign, RopeDesign, SiluMulDesign
from npu.device import Device, Session
from reference.oracle import ops

ROUNDS = 3
# What stands in columns beyond the true width where a kernel promises not to read them into a result. A deployment has
# zeros there; a leak would show only where it does not.
PADDING = 1e4
UNWRITTEN = {"bf16": "bfloat16", "f32": "float32"}


@dataclass(frozen=True)
class Case:
    """One dispatch: operand name -> flat host array for every input, and the expected output with its shape."""

    inputs: dict[str, np.ndarray]
    want: np.ndarray
    # from the output operand's elements to the values that `want` names
    view: Callable[[np.ndarray], np.ndarray] = field(default=lambda out: out)


def gate_of(design: OpDesign) -> str:
    """The phase 1 gate of a design."""
    if isinstance(design, GemmDesign):
        return "lm_head" if design.out == "f32" else f"gemm_{design.mode}"
    if isinstance(design, GemvDesign):
        return "gemv" if design.kind == "plain" else f"gemv_{design.kind}"
    if isinstance(design, PrefillAttentionDesign):
        return "attention_prefill" if design.mode == "bf16" else f"attention_prefill_{design.mode}"
    names = {
        RmsNormDesign: "rmsnorm", RopeDesign: "rope", SiluMulDesign: "silu_mul", AddDesign: "add",
        DecodeAttentionDesign: "attention_decode",
    }  # fmt: skip
    return names[type(design)]


def exercise(design: OpDesign, device: Device, seed: int, rounds: int = ROUNDS) -> tuple[list[Dispatch], Session]:
    """Run the design `rounds` times with fresh data; returns what came out, what was expected, and the session."""
    session = device.open(single_design_artifact(design))
    for operand in design.operands:
        session.allocate(operand.name, operand.type.nbytes)
    session.bind("run", {index: operand.name for index, operand in enumerate(design.operands)})
    rng = np.random.default_rng(seed)
    return [_dispatch(design, session, case_of(design, rng)) for _ in range(rounds)], session


def _dispatch(design: OpDesign, session: Session, case: Case) -> Dispatch:
    output = design.operands[-1]
    for name, values in case.inputs.items():
        session.write(name, 0, values)
    session.write(output.name, 0, unwritten((output.type.elements,), UNWRITTEN[output.type.dtype]))
    session.run("run")
    got = session.read(output.name, 0, (output.type.elements,), NUMPY_DTYPE[output.type.dtype])
    return Dispatch(case.view(got).reshape(case.want.shape), case.want)


def case_of(design: OpDesign, rng: np.random.Generator) -> Case:
    """Draw one case for a design."""
    for kind, make in _CASES.items():
        if isinstance(design, kind):
            return make(design, rng)
    raise TypeError(f"no exercise for {type(design).__name__}")


def _draw(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Normal values as (bf16, the same numbers in FP32)."""
    values = as_bf16(rng.standard_normal(shape) * scale)
    return values, values.astype(np.float32)


def _product(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x @ weight^T in FP64: [.., K] x [N, K]."""
    return x.astype(np.float64) @ weight.astype(np.float64).T


def _gemm(g: GemmDesign, rng: np.random.Generator) -> Case:
    a, a32 = _draw(rng, g.M, g.K)
    w, w32 = _draw(rng, g.N, g.K, scale=g.K**-0.5)
    return Case({"a": a.reshape(-1), "b": g.pack_b(w)}, _product(a32, w32).astype(np.float32))


def _gemv(g: GemvDesign, rng: np.random.Generator) -> Case:
    # Near epsilon where a norm is fused: a wrong epsilon shows there.
    normed = g.kind in ("norm", "swiglu")
    x, _ = _draw(rng, g.K, scale=2 * g.epsilon**0.5 if normed and g.epsilon else 1.0)
    x[g.valid or g.K :] = PADDING
    x32 = x.astype(np.float32)
    pairs = [_draw(rng, g.N, g.K, scale=g.K**-0.5) for _ in range(g.matrices)]
    inputs = {"w": g.pack(*(w for w, _ in pairs)), "x": x}
    if normed:
        gamma = as_bf16(1 + 0.2 * rng.standard_normal(g.K))
        gamma[g.valid :] = PADDING
        inputs["gamma"] = gamma
        valid = x32[None, : g.valid]
        x32 = np.zeros(g.K, np.float32)
        x32[: g.valid] = ops.rms_norm(valid, gamma[: g.valid].astype(np.float32), g.epsilon)[0]
    sums = [_product(x32, w32) for _, w32 in pairs]
    if g.kind == "swiglu":
        want = ops.silu_multiply(sums[0].astype(np.float32), sums[1].astype(np.float32))
    elif g.kind == "add":
        inputs["residual"], residual = _draw(rng, g.N)
        want = sums[0] + residual
    else:
        want = sums[0]
    return Case(inputs, want.astype(np.float32)[None])


def _rmsnorm(g: RmsNormDesign, rng: np.random.Generator) -> Case:
    # Rows of different size, the smallest near epsilon: a wrong epsilon shows there.
    scale = np.geomspace(2 * g.epsilon**0.5, 4.0, g.rows)[:, None]
    x = as_bf16(rng.standard_normal((g.rows, g.width)) * scale)
    x[:, g.valid :] = PADDING
    gamma = as_bf16(1 + 0.2 * rng.standard_normal(g.width))
    gamma[g.valid :] = PADDING
    want = np.zeros((g.rows, g.width), np.float32)
    valid = slice(0, g.valid)
    want[:, valid] = ops.rms_norm(x[:, valid].astype(np.float32), gamma[valid].astype(np.float32), g.epsilon)
    return Case({"x": x.reshape(-1), "gamma": gamma}, want)


def _rope(g: RopeDesign, rng: np.random.Generator) -> Case:
    heads = g.rotated + g.copied
    x, x32 = _draw(rng, g.rows, heads, g.head_dim)
    # Positions start anywhere, so that angles of a long context are among them.
    angles = np.outer(np.arange(g.rows) + rng.integers(0, 8192), 10000.0 ** (-np.arange(0, 1, 2 / g.head_dim)))
    table = as_bf16(np.concatenate([np.cos(angles), np.sin(angles)], axis=1))
    cos, sin = np.split(table.astype(np.float32), 2, axis=1)
    want = x32.copy()
    want[:, : g.rotated] = ops.rotate(x32[:, : g.rotated], cos, sin)
    return Case({"x": x.reshape(-1), "cos_sin": table.reshape(-1)}, want)


def _silu_mul(g: SiluMulDesign, rng: np.random.Generator) -> Case:
    pair, pair32 = _draw(rng, g.rows, 2, g.width, scale=2.0)
    return Case({"gate_up": pair.reshape(-1)}, ops.silu_multiply(pair32[:, 0], pair32[:, 1]))


def _add(g: AddDesign, rng: np.random.Generator) -> Case:
    a, a32 = _draw(rng, g.rows, g.width)
    b, b32 = _draw(rng, g.rows, g.width)
    return Case({"a": a.reshape(-1), "b": b.reshape(-1)}, a32 + b32)


def _prefill_attention(g: PrefillAttentionDesign, rng: np.random.Generator) -> Case:
    rows = g.heads + 2 * g.kv_heads + g.pad_heads
    qkv, x = _draw(rng, g.tokens, rows, g.head_dim)
    k, v = g.heads, g.heads + g.kv_heads
    want = ops.attention(x[:, :k], x[:, k:v].transpose(1, 0, 2), x[:, v : v + g.kv_heads].transpose(1, 0, 2), 0)
    return Case({"qkv": qkv.reshape(-1)}, want.reshape(g.tokens, g.heads, g.head_dim))


def _decode_attention(g: DecodeAttentionDesign, rng: np.random.Generator) -> Case:
    position = int(rng.integers(g.bucket // 2, g.bucket + 1))
    groups = g.context // KEY_GROUP
    cache, cache32 = _draw(rng, g.kv_heads, groups, 2, KEY_GROUP, g.head_dim)
    flat = cache32.transpose(2, 0, 1, 3, 4).reshape(2, g.kv_heads, g.context, g.head_dim)[:, :, :position]
    qkv, row = _draw(rng, g.heads + 2 * g.kv_heads, g.head_dim)
    angles = position * 10000.0 ** (-np.arange(0, 1, 2 / g.head_dim))
    table = as_bf16(np.concatenate([np.cos(angles), np.sin(angles)]))
    cos, sin = np.split(table.astype(np.float32)[None], 2, axis=1)
    k, v = g.heads, g.heads + g.kv_heads
    rotated = ops.rotate(row[None, :v], cos, sin)
    keys = np.concatenate([flat[0], rotated[0, k:v, None]], axis=1)
    values = np.concatenate([flat[1], row[v:, None]], axis=1)
    attention = ops.attention(rotated[:, :k], keys, values, position).reshape(g.heads, g.head_dim)
    want = np.concatenate([attention, rotated[0, k:v], row[v:]])
    params = np.zeros(PARAMS // 2, np.int32)
    params[0] = position
    inputs = {
        "params": np.concatenate([params.view(NUMPY_DTYPE["bf16"]), table]),
        "qkv": qkv.reshape(-1),
        "cache": cache.reshape(-1),
    }
    return Case(inputs, want)


_CASES: dict[type, Callable[..., Case]] = {
    GemmDesign: _gemm, GemvDesign: _gemv, RmsNormDesign: _rmsnorm, RopeDesign: _rope, SiluMulDesign: _silu_mul,
    AddDesign: _add, PrefillAttentionDesign: _prefill_attention, DecodeAttentionDesign: _decode_attention,
}  # fmt: skip
