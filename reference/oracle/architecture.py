# SPDX-License-Identifier: Apache-2.0
"""What differs between the supported decoder architectures, as data.

One row a `model_type`. No other module names a family: config, tensor table and
decoder read these fields. Each row was read off the config and modelling code
of Hugging Face transformers 5.24 (`models/<model_type>/`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Bias(StrEnum):
    """Where the existence of a linear layer's bias is decided."""

    NEVER = "never"
    ALWAYS = "always"  # in the modelling code, without a key in config.json
    ATTENTION_KEY = "attention_bias"  # by that key; absent means false (the config class says so)
    MLP_KEY = "mlp_bias"


class QKNorm(StrEnum):
    """RMSNorm on queries and keys, always before RoPE in the rows below."""

    NONE = "none"
    PER_HEAD = "per_head"  # weight [head_dim], one mean a head
    FULL_WIDTH = "full_width"  # weight [heads * head_dim], one mean over all heads


class NormPlace(StrEnum):
    """Which side of attention and MLP the layer's two norms stand on."""

    PRE = "pre"  # x + f(norm(x))
    POST = "post"  # x + norm(f(x))


class HeadDim(StrEnum):
    """What an absent `head_dim` means."""

    QUOTIENT = "quotient"  # config class or modelling code: hidden_size // num_attention_heads
    REQUIRED = "required"  # the config class has a constant there, which we do not guess with


class AbsentKVHeads(StrEnum):
    """What an absent `num_key_value_heads` means (null always means: as many as query heads)."""

    AS_QUERY_HEADS = "as_query_heads"  # config class default None
    REQUIRED = "required"  # the config class has a constant there


class WindowRule(StrEnum):
    """How the config says which layers attend within a sliding window only."""

    NONE = "none"
    ALL_LAYERS = "all_layers"  # sliding_window holds for every layer; an absent key is 4096
    FROM_LAYER = "from_layer"  # use_sliding_window and index >= max_window_layers, or layer_types


@dataclass(frozen=True)
class Architecture:
    """One row of the table.

    Attributes:
        model_type: the value of `model_type` in config.json.
        class_name: the entry of `architectures` that this row describes.
        attn_norm, mlp_norm: tensor name of the layer's norm beside attention and MLP.
        extra_keys: further keys of this family's config class that change nothing at inference.
    """

    model_type: str
    class_name: str
    qkv_bias: Bias = Bias.NEVER
    o_bias: Bias = Bias.NEVER
    mlp_bias: Bias = Bias.NEVER
    qk_norm: QKNorm = QKNorm.NONE
    norm_place: NormPlace = NormPlace.PRE
    attn_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    head_dim: HeadDim = HeadDim.QUOTIENT
    absent_kv_heads: AbsentKVHeads = AbsentKVHeads.REQUIRED
    window: WindowRule = WindowRule.NONE
    extra_keys: frozenset[str] = frozenset()


# RoPE kinds that `ops.inverse_frequencies` implements; half-split rotation in every row.
ROPE_KINDS = ("default", "linear", "llama3")
# Activations that `ops` implements.
ACTIVATIONS = ("silu",)

ARCHITECTURES: dict[str, Architecture] = {
    row.model_type: row
    for row in (
        Architecture(
            "llama",
            "LlamaForCausalLM",
            qkv_bias=Bias.ATTENTION_KEY,
            o_bias=Bias.ATTENTION_KEY,
            mlp_bias=Bias.MLP_KEY,
            absent_kv_heads=AbsentKVHeads.AS_QUERY_HEADS,
            # SmolLM2 writes these two; modelling code reads neither.
            extra_keys=frozenset({"is_llama_config", "pretraining_tp"}),
        ),
        Architecture("mistral", "MistralForCausalLM", window=WindowRule.ALL_LAYERS),
        Architecture("qwen2", "Qwen2ForCausalLM", qkv_bias=Bias.ALWAYS, window=WindowRule.FROM_LAYER),
        Architecture(
            "qwen3",
            "Qwen3ForCausalLM",
            qkv_bias=Bias.ATTENTION_KEY,
            o_bias=Bias.ATTENTION_KEY,
            qk_norm=QKNorm.PER_HEAD,
            head_dim=HeadDim.REQUIRED,
            window=WindowRule.FROM_LAYER,
        ),
        Architecture(
            "olmo2",
            "Olmo2ForCausalLM",
            qkv_bias=Bias.ATTENTION_KEY,
            o_bias=Bias.ATTENTION_KEY,
            qk_norm=QKNorm.FULL_WIDTH,
            norm_place=NormPlace.POST,
            attn_norm="post_attention_layernorm",
            mlp_norm="post_feedforward_layernorm",
            absent_kv_heads=AbsentKVHeads.AS_QUERY_HEADS,
        ),
    )
}
