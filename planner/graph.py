# SPDX-License-Identifier: Apache-2.0
"""Operator graph of an entry: what must be computed, in order, before any choice of design.

Names of calls are the oracle's tap names without the ending, so that every device value has its FP32 counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kernels.designs.gemv import gemv_for
from planner.widths import Widths
from reference.oracle.architecture import NormPlace, QKNorm
from reference.oracle.config import ModelConfig
from refusal import Refusal


class Kind(StrEnum):
    """Operator kinds that the kernels of the house cover."""

    NORM = "norm"
    LINEAR = "linear"
    ROPE = "rope"
    ATTENTION = "attention"
    SILU_MUL = "silu_mul"
    ADD = "add"
    LM_HEAD = "lm_head"


@dataclass(frozen=True)
class OperatorCall:
    """One operator on named values. `weights` are logical names, resolved by `planner.weights`."""

    kind: Kind
    name: str
    inputs: tuple[str, ...]
    output: str
    weights: tuple[str, ...] = ()


def require_supported(config: ModelConfig) -> None:
    """Refuse, before any work, what the oracle understands but no kernel of the house does yet."""
    architecture = config.architecture
    missing = []
    if architecture.qk_norm is not QKNorm.NONE:
        missing.append(f"QK-norm ({architecture.qk_norm}): no kernel norms q and k before RoPE")
    if architecture.norm_place is not NormPlace.PRE:
        missing.append(f"norm place {architecture.norm_place}: decode's norm + GEMV kernels norm what they read")
    biased = [name for name in ("qkv", "o", "mlp") if getattr(config, f"{name}_bias")]
    missing += [f"bias in {name}: neither gemm nor gemv adds one" for name in biased]
    if config.head_dim % 32 or config.head_dim > 128:
        missing.append(f"head_dim {config.head_dim}: attention and RoPE take 32, 64, 96 or 128")
    group = config.num_attention_heads // config.num_key_value_heads
    if group > 8:
        missing.append(f"{group} query heads per KV head: attention takes at most 8")
    missing += _decode_rows(Widths.of(config))
    if missing:
        raise Refusal(
            "; ".join(missing),
            expected="a dense pre-norm decoder without biases and QK-norm, in shapes that the kernels cover",
            where=f"kernels for {config.model_dir}",
            next_step="take another model (first: scripts/doctor.py --model MODEL); this one cannot be deployed, not in part "
            "either, until a kernel is written (the pack's issues.md, known limits)",
        )


def _decode_rows(w: Widths) -> list[str]:
    """The products of a decode step whose weight rows fit no element, whole or in parts."""
    products = {
        "q, k and v": (w.qkv, w.hidden, "norm"), "o_proj": (w.hidden, w.attention, "add"),
        "gate and up": (w.intermediate, w.hidden, "swiglu"), "down": (w.hidden, w.intermediate, "add"),
        "LM head": (w.vocab, w.hidden, "norm"),
    }  # fmt: skip
    return [
        f"rows of {inputs} inputs in decode ({name}): no two of them fit a core's bank"
        for name, (outputs, inputs, kind) in products.items()
        if gemv_for(outputs, inputs, kind) is None
    ]


def _layer(index: int, source: str) -> tuple[list[OperatorCall], str]:
    p = f"layers.{index}"
    calls = [
        OperatorCall(Kind.NORM, f"{p}.attn_norm", (source,), f"{p}.attn_norm.out", (f"{p}.attn_norm",)),
        OperatorCall(Kind.LINEAR, f"{p}.qkv", (f"{p}.attn_norm.out",), f"{p}.qkv.out", (f"{p}.qkv",)),
        OperatorCall(Kind.ROPE, f"{p}.rope", (f"{p}.qkv.out",), f"{p}.rope.out", ("rope",)),
        OperatorCall(Kind.ATTENTION, f"{p}.attn", (f"{p}.rope.out",), f"{p}.attn.out"),
        OperatorCall(Kind.LINEAR, f"{p}.o_proj", (f"{p}.attn.out",), f"{p}.o_proj.out", (f"{p}.o_proj",)),
        OperatorCall(Kind.ADD, f"{p}.residual1", (f"{p}.o_proj.out", source), f"{p}.residual1"),
        OperatorCall(Kind.NORM, f"{p}.mlp_norm", (f"{p}.residual1",), f"{p}.mlp_norm.out", (f"{p}.mlp_norm",)),
        OperatorCall(Kind.LINEAR, f"{p}.gate_up", (f"{p}.mlp_norm.out",), f"{p}.gate_up.out", (f"{p}.gate_up",)),
        OperatorCall(Kind.SILU_MUL, f"{p}.act", (f"{p}.gate_up.out",), f"{p}.act"),
        OperatorCall(Kind.LINEAR, f"{p}.down", (f"{p}.act",), f"{p}.down.out", (f"{p}.down",)),
        OperatorCall(Kind.ADD, f"{p}.residual2", (f"{p}.down.out", f"{p}.residual1"), f"{p}.residual2"),
    ]
    return calls, f"{p}.residual2"


def layer_calls(layers: Sequence[int]) -> list[OperatorCall]:
    """The operators of the given layers, from `input` (embedding rows) to the last residual."""
    calls: list[OperatorCall] = []
    value = "input"
    for index in layers:
        more, value = _layer(index, value)
        calls += more
    return calls


def head_calls(source: str) -> list[OperatorCall]:
    """Final norm and LM head on every row of `source`."""
    return [
        OperatorCall(Kind.NORM, "final_norm", (source,), "final_norm.out", ("final_norm",)),
        OperatorCall(Kind.LM_HEAD, "lm_head", ("final_norm.out",), "logits", ("lm_head",)),
    ]
