# SPDX-License-Identifier: Apache-2.0
"""The tensors that a config asks for, and the check that a checkpoint has exactly those.

Set equality in both directions: a missing tensor stops, and so does one that
nobody would read (a dropped bias is the most common silent fault of a port).
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from reference.oracle.architecture import QKNorm
from reference.oracle.config import ModelConfig
from reference.oracle.weights import Weights, shortened
from refusal import Refusal

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"

# Buffers that old exports carry and that follow from the config.
_DERIVED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
# RMSNorm weights are factors around 1 here. Families that store w - 1 have about half of them below 0.
_MAX_NEGATIVE_NORMS = 0.25
_NOT_TOGETHER = "take config.json and the weights from the same place: these are not of one model"


def layer_tensors(config: ModelConfig, index: int) -> dict[str, tuple[int, ...]]:
    """Name to shape of one layer's tensors."""
    arch, hidden, inner = config.architecture, config.hidden_size, config.intermediate_size
    at, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
    linear = {
        f"{at}.q_proj": (config.q_size, hidden, config.qkv_bias),
        f"{at}.k_proj": (config.kv_size, hidden, config.qkv_bias),
        f"{at}.v_proj": (config.kv_size, hidden, config.qkv_bias),
        f"{at}.o_proj": (hidden, config.q_size, config.o_bias),
        f"{mlp}.gate_proj": (inner, hidden, config.mlp_bias),
        f"{mlp}.up_proj": (inner, hidden, config.mlp_bias),
        f"{mlp}.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (rows, columns, bias) in linear.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    for norm in (arch.attn_norm, arch.mlp_norm):
        shapes[f"model.layers.{index}.{norm}.weight"] = (hidden,)
    if arch.qk_norm is not QKNorm.NONE:
        per_head = arch.qk_norm is QKNorm.PER_HEAD
        shapes[f"{at}.q_norm.weight"] = (config.head_dim if per_head else config.q_size,)
        shapes[f"{at}.k_norm.weight"] = (config.head_dim if per_head else config.kv_size,)
    return shapes


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name to shape of every tensor of the model, with `lm_head.weight` also where it is tied."""
    shapes = {EMBEDDING: (config.vocab_size, config.hidden_size), FINAL_NORM: (config.hidden_size,)}
    for index in range(config.num_hidden_layers):
        shapes |= layer_tensors(config, index)
    shapes[LM_HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def head_tensor(config: ModelConfig, weights: Weights) -> str:
    """The tensor that the LM head multiplies by.

    `lm_head.weight` wherever it is stored, also when the config says tied: transformers 5
    does not tie either when both are in the checkpoint. The embedding when absent and tied.

    Raises:
        Refusal: not tied, and not stored.
    """
    if LM_HEAD in weights:
        return LM_HEAD
    if config.tie_word_embeddings:
        return EMBEDDING
    raise Refusal(
        f"no {LM_HEAD}",
        expected="that tensor, since tie_word_embeddings is false",
        where=str(config.model_dir),
        next_step="check that all shards are there, or that config.json belongs to these weights",
    )


def open_weights(config: ModelConfig, model_dir: Path | None = None) -> Weights:
    """The weights of a config's model directory, checked against the config.

    Raises:
        Refusal: all that `Weights` refuses; a missing tensor, one that nobody consumes, a wrong
            shape, a dtype that is not F32, F16 or BF16, or norm weights of another convention.
    """
    weights = Weights(model_dir or config.model_dir)
    shapes = expected_tensors(config)
    if head_tensor(config, weights) != LM_HEAD:
        del shapes[LM_HEAD]
    where = str(weights.model_dir)
    missing = sorted(shapes.keys() - weights.names)
    if missing:
        raise Refusal(
            f"missing tensors: {shortened(missing)}", expected=f"{len(shapes)} tensors by config", where=where,
            next_step=_NOT_TOGETHER,
        )  # fmt: skip
    unread = sorted(name for name in weights.names - shapes.keys() if not _DERIVED.fullmatch(name))
    if unread:
        raise Refusal(
            f"tensors that nobody consumes: {shortened(unread)}",
            expected=f"those of {config.model_type} as config.json describes it",
            where=where,
            next_step="check model_type and the bias keys: these weights belong to another architecture",
        )
    for name, shape in shapes.items():
        _check_tensor(weights, name, shape)
    _check_norm_convention(weights, [name for name in shapes if name.endswith("norm.weight")])
    return weights


def _check_tensor(weights: Weights, name: str, shape: tuple[int, ...]) -> None:
    found = weights.shape(name)
    if found != shape:
        raise Refusal(f"{name} has shape {list(found)}", expected=f"{list(shape)}", where=str(weights.model_dir),
                      next_step=_NOT_TOGETHER)  # fmt: skip
    weights.get(name)  # refuses dtypes that are not exact in FP32


def _check_norm_convention(weights: Weights, names: list[str]) -> None:
    """A vote over all norm weights, so that no order and no single odd layer decides."""
    values = np.concatenate([weights.fp32(name) for name in names])
    negative = float(np.mean(values < 0))
    if not np.isfinite(values).all():
        raise Refusal("norm weights hold NaN or infinity", where=str(weights.model_dir),
                      next_step="download the weights again, or take another checkpoint: these compute nothing")  # fmt: skip
    if negative > _MAX_NEGATIVE_NORMS:
        raise Refusal(
            f"{negative:.0%} of all norm weights are negative, their mean is {values.mean():.3f}",
            expected="factors around 1, as this model_type applies them; these look like offsets from 1",
            where=str(weights.model_dir),
            next_step="check model_type: norms that compute x * (1 + w) are not implemented",
        )
