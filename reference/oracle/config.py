# SPDX-License-Identifier: Apache-2.0
"""`ModelConfig` from a model directory's config.json, with every key accounted for.

A key is consumed, or on a list of keys known to be without effect on inference,
or the model is refused with the key and its value. Nothing that changes a
logit has a default of ours: where a key may be absent, the Hugging Face config
class says what that means, and `architecture.py` records it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reference.oracle.architecture import (
    ACTIVATIONS,
    ARCHITECTURES,
    AbsentKVHeads,
    Architecture,
    Bias,
    HeadDim,
)
from reference.oracle.keys import KeyReader, read_json_object
from reference.oracle.rope_keys import RopeConfig, read_rope
from reference.oracle.windows import read_windows
from refusal import Refusal

# Keys that no supported model's forward pass reads (transformers 5.24); values do not matter.
WITHOUT_EFFECT = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",  # checked against model_type below
        "attention_dropout",  # training only
        "bos_token_id",
        "dtype",  # storage type; every tensor carries its own
        "eos_token_id",  # read by tokenizer.py
        "initializer_range",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "return_dict",
        "tokenizer_class",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    }
)

# Keys whose named value means "as in the plain architecture"; any other value is refused.
ONLY_VALUE: dict[str, Any] = {
    "add_cross_attention": False,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
    "rope_interleaved": False,
    "tie_encoder_decoder": False,
}


@dataclass(frozen=True)
class ModelConfig:
    """A dense decoder, complete: what the forward pass needs and nothing it does not.

    Attributes follow the names of Hugging Face configs. `head_dim` is a number
    of elements; `max_position_embeddings` and windows are numbers of tokens.
    `accepted` holds the unknown keys, with value, that the caller accepted;
    evidence must carry them. `notes` holds one line per value that was derived.
    """

    model_dir: Path
    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    rope: RopeConfig
    hidden_act: str = "silu"
    accepted: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def model_type(self) -> str:
        return self.architecture.model_type

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_key_value_heads * self.head_dim

    @property
    def group_size(self) -> int:
        """Query heads per KV head: query head h reads KV head h // group_size."""
        return self.num_attention_heads // self.num_key_value_heads


def load_config(model_dir: Path | str, accept_keys: Iterable[str] = ()) -> ModelConfig:
    """Read and check config.json.

    Args:
        model_dir: a Hugging Face model directory.
        accept_keys: unknown keys to accept as being without effect.

    Raises:
        Refusal: no or broken config.json, unknown key, unsupported architecture or value.
    """
    model_dir = Path(model_dir)
    path = model_dir / "config.json"
    keys = KeyReader(read_json_object(path), where=str(path))
    architecture = _architecture(keys)
    for key in WITHOUT_EFFECT | architecture.extra_keys:
        keys.drop(key)
    for key, value in ONLY_VALUE.items():
        keys.only(key, value)

    sizes = _sizes(keys, architecture)
    activation = keys.string("hidden_act")
    if activation not in ACTIVATIONS:
        raise keys.refuse("hidden_act", expected=f"one of {', '.join(ACTIVATIONS)}")
    attention_bias, mlp_bias = _bias_keys(keys, architecture)
    by_key = {Bias.NEVER: False, Bias.ALWAYS: True, Bias.ATTENTION_KEY: attention_bias, Bias.MLP_KEY: mlp_bias}
    rope = read_rope(keys)
    notes = list(read_windows(keys, architecture, sizes["num_hidden_layers"], sizes["max_position_embeddings"]))
    notes += [f"{key} absent: {meaning}" for key, meaning in keys.derived.items()]
    config = ModelConfig(
        model_dir=model_dir,
        architecture=architecture,
        **sizes,
        rms_norm_eps=keys.positive("rms_norm_eps"),
        tie_word_embeddings=keys.boolean("tie_word_embeddings"),
        qkv_bias=by_key[architecture.qkv_bias],
        o_bias=by_key[architecture.o_bias],
        mlp_bias=by_key[architecture.mlp_bias],
        rope=rope,
        hidden_act=activation,
        accepted=keys.accept(accept_keys),
        notes=tuple(notes),
    )
    keys.refuse_unknown()
    return config


def _architecture(keys: KeyReader) -> Architecture:
    model_type = keys.string("model_type")
    row = ARCHITECTURES.get(model_type)
    if row is None:
        known = ", ".join(sorted(ARCHITECTURES))
        experts = any("expert" in key for key in keys.values)
        raise keys.refuse(
            "model_type",
            expected=f"one of {known}{'; mixtures of experts are not covered' if experts else ''}",
            next_step="take a dense model of one of these families; doctor tells whether it is covered",
        )
    names = keys.peek("architectures")
    if names is not None and names != [row.class_name]:
        raise keys.refuse("architectures", expected=f"[{row.class_name!r}] for model_type {model_type!r}")
    if keys.peek("auto_map") is not None:
        raise keys.refuse("auto_map", expected="no code of the model's own; the oracle runs its own forward pass only")
    return row


def _sizes(keys: KeyReader, architecture: Architecture) -> dict[str, int]:
    """The integers of the model, checked against each other."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    sizes = {name: keys.count(name) for name in (*names, "max_position_embeddings")}
    heads, hidden = sizes["num_attention_heads"], sizes["hidden_size"]
    absent_kv = architecture.absent_kv_heads is AbsentKVHeads.AS_QUERY_HEADS or keys.is_null("num_key_value_heads")
    sizes["num_key_value_heads"] = keys.count("num_key_value_heads", absent=heads if absent_kv else None)
    absent_dim = hidden // heads if architecture.head_dim is HeadDim.QUOTIENT and hidden % heads == 0 else None
    sizes["head_dim"] = keys.count("head_dim", absent=absent_dim)
    if heads % sizes["num_key_value_heads"]:
        raise keys.refuse("num_key_value_heads", expected=f"a divisor of num_attention_heads {heads}")
    if sizes["head_dim"] % 2:
        raise keys.refuse("head_dim", expected="an even number: RoPE rotates the two halves of a head")
    return sizes


def _bias_keys(keys: KeyReader, architecture: Architecture) -> tuple[bool, bool]:
    """attention_bias and mlp_bias. Absent is false in each config class that has the key."""
    used = {architecture.qkv_bias, architecture.o_bias, architecture.mlp_bias}
    values = []
    for kind in (Bias.ATTENTION_KEY, Bias.MLP_KEY):
        if kind in used:
            values.append(keys.boolean(kind.value, absent=False))
        else:  # the class has no such key, so a true value would be ignored in silence there
            keys.only(kind.value, False)
            values.append(False)
    return values[0], values[1]


def refuse_long_context(config: ModelConfig, tokens: int) -> None:
    """Refuse a context of more tokens than the model was made for."""
    if tokens > config.max_position_embeddings:
        raise Refusal(
            f"{tokens} tokens",
            expected=f"at most max_position_embeddings = {config.max_position_embeddings}",
            where=str(config.model_dir),
            next_step="shorten the prompt or ask for fewer new tokens",
        )
