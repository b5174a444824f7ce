# SPDX-License-Identifier: Apache-2.0
"""Model directories with made-up weights that let no fault hide.

A plain random fixture is blind: tied and random, it returns its input token
whatever the layers do. So these have an untied head, 2 KV heads for 4 query
heads, biases that are not zero, norm weights that vary along their axis, and
attention scores large enough to matter. No torch: numpy and safetensors only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from reference.oracle.config import ModelConfig, load_config
from reference.oracle.tensors import EMBEDDING, LM_HEAD, expected_tensors
from tests.stand_ins.byte_level import write_byte_level_tokenizer

CLASS_NAMES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
}
# original_max_position_embeddings / high_freq_factor is 8: any prompt of 16 tokens is past it.
SMALL_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_DTYPES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}


def stand_in_config(model_type: str = "llama", **overrides: Any) -> dict[str, Any]:
    """The config.json of a small model; an override of `...` (Ellipsis) removes the key."""
    config: dict[str, Any] = {
        "architectures": [CLASS_NAMES[model_type]],
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 512,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }
    if model_type == "mistral":
        config["sliding_window"] = None
    if model_type in ("llama", "qwen3", "olmo2"):
        config["attention_bias"] = False
    config |= overrides
    return {key: value for key, value in config.items() if value is not ...}


def write_stand_in(
    model_dir: Path | str,
    *,
    model_type: str = "llama",
    dtype: str = "BF16",
    seed: int = 0,
    activation_scale: float = 1.0,
    shards: int = 1,
    drop: tuple[str, ...] = (),
    extra: dict[str, np.ndarray] | None = None,
    with_head: bool | None = None,
    tokenizer: bool = True,
    **config: Any,
) -> Path:
    """Write a small Hugging Face directory; returns its path.

    Args:
        activation_scale: factor on the embedding; 0.02 makes the residual stream small enough that eps counts.
        shards: number of safetensors files; more than one come with an index.
        drop, extra: tensors to leave out or to add, for bad checkpoints.
        with_head: whether lm_head.weight is stored; None is as `tie_word_embeddings` says.
        config: overrides of config.json; `...` removes a key.
    """
    model_dir = Path(model_dir)
    model_dir.mkdir(parents=True, exist_ok=True)
    values = stand_in_config(model_type, **config)
    _write_json(model_dir / "config.json", values)
    parsed = load_config(model_dir)
    stored = not parsed.tie_word_embeddings if with_head is None else with_head
    tensors = made_up_tensors(parsed, seed=seed, activation_scale=activation_scale)
    left_out = {*drop, *(() if stored else (LM_HEAD,))}
    kept = {name: value.astype(_DTYPES[dtype]) for name, value in tensors.items() if name not in left_out}
    kept |= extra or {}
    _write_tensors(model_dir, kept, shards)
    if tokenizer:
        write_byte_level_tokenizer(model_dir, values["vocab_size"])
    _write_json(model_dir / "generation_config.json", {"bos_token_id": 1, "eos_token_id": values.get("eos_token_id")})
    provenance = {"weights": "synthetic", "made_by": "tests/stand_ins/models.py", "seed": seed}
    _write_json(model_dir / "provenance.json", provenance)
    return model_dir


def write_fixture_llama(model_dir: Path | str, *, seed: int = 1) -> Path:
    """The house's default fixture: a plain Llama without biases and QK-norm.

    hidden 128, 3 layers, 4 query and 2 KV heads of 32, intermediate 256, vocabulary 512, untied
    head, norm weights that vary, byte-level tokenizer with ChatML template.
    """
    return write_stand_in(
        model_dir, seed=seed, hidden_size=128, head_dim=32, intermediate_size=256, max_position_embeddings=2048
    )


def made_up_tensors(config: ModelConfig, *, seed: int, activation_scale: float = 1.0) -> dict[str, np.ndarray]:
    """FP32 values for every tensor of the config, from a seed; each layer's differ."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in expected_tensors(config).items():
        if name == EMBEDDING:
            value = activation_scale * rng.standard_normal(shape)
        elif name.endswith("norm.weight"):
            value = rng.uniform(0.4, 1.8, shape)
        elif name.endswith(".bias"):
            value = 0.5 * rng.standard_normal(shape)
        else:
            # q and k twice as large: scores spread over several units, so attention is far from a mean.
            gain = 2.0 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.0
            value = gain * rng.standard_normal(shape) / np.sqrt(shape[1])
        tensors[name] = value.astype(np.float32)
    return tensors


def _write_tensors(model_dir: Path, tensors: dict[str, np.ndarray], shards: int) -> None:
    if shards == 1:
        save_file(tensors, model_dir / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for index in range(shards):
        name = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        part = {key: tensors[key] for key in sorted(tensors)[index::shards]}
        save_file(part, model_dir / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    total = sum(value.nbytes for value in tensors.values())
    index_file = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(model_dir / "model.safetensors.index.json", index_file)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
