# SPDX-License-Identifier: Apache-2.0
"""The pack's own fixture model: a small Llama with made-up weights that shows the faults a trained model hides.

Every deployment runs the gates on it as well. What each property is for (facts/faults.md, first table):

- untied LM head, layers that differ: a tied random model returns its input token whatever the layers do;
- 2 KV heads for 4 query heads: tile and repeat differ;
- norm weights that vary along their axis: an order or a swap of norms shows;
- activations small enough that eps counts: mean(x^2) of the residual stream is near eps in every layer;
- attention scores of several units: a mask or a rotation that is wrong changes the result.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from judge.rounding import round_bf16

ACTIVATION = 0.005
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


def write_fixture(model_dir: Path, seed: int = 1) -> Path:
    """Write config.json, model.safetensors (bf16) and provenance.json; returns the directory."""
    model_dir.mkdir(parents=True, exist_ok=True)
    (model_dir / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    provenance = {"weights": "synthetic", "made_by": "judge/fixture.py", "seed": seed}
    (model_dir / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")
    write_bf16_safetensors(model_dir / "model.safetensors", fixture_tensors(seed))
    return model_dir


def fixture_tensors(seed: int) -> dict[str, np.ndarray]:
    """FP32 values of every tensor, by name."""
    rng = np.random.default_rng(seed)
    hidden, inner, dim = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    heads, groups, vocab = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"], CONFIG["vocab_size"]

    def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return (gain * rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def norm() -> np.ndarray:
        return rng.uniform(0.4, 1.8, hidden).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": matrix(vocab, hidden, ACTIVATION * np.sqrt(hidden)),
        "model.norm.weight": norm(),
        "lm_head.weight": matrix(vocab, hidden, 2.0),
    }
    for index in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{index}"
        tensors |= {
            f"{at}.input_layernorm.weight": norm(),
            f"{at}.post_attention_layernorm.weight": norm(),
            f"{at}.self_attn.q_proj.weight": matrix(heads * dim, hidden, 1.5),
            f"{at}.self_attn.k_proj.weight": matrix(groups * dim, hidden, 1.5),
            f"{at}.self_attn.v_proj.weight": matrix(groups * dim, hidden),
            # What a layer adds is about as large as what it got, so the stream stays near sqrt(eps).
            f"{at}.self_attn.o_proj.weight": matrix(hidden, heads * dim, 2 * ACTIVATION),
            f"{at}.mlp.gate_proj.weight": matrix(inner, hidden),
            f"{at}.mlp.up_proj.weight": matrix(inner, hidden),
            f"{at}.mlp.down_proj.weight": matrix(hidden, inner, 2 * ACTIVATION),
        }
    return tensors


def write_bf16_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """A safetensors file: 8 bytes of header length, a JSON header, the data (huggingface/safetensors, README, Format)."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    chunks, offset = [], 0
    for name in sorted(tensors):
        data = (round_bf16(tensors[name]).view(np.uint32) >> 16).astype("<u2").tobytes()
        shape = list(tensors[name].shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        chunks.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_suffix(".tmp")
    partial.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *chunks]))
    partial.replace(path)
