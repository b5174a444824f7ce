# SPDX-License-Identifier: Apache-2.0
"""Faults of ports, planted one at a time: each moves the logits far beyond the tolerance of the comparison.

The tolerance is 1e-4 relative; a fault that shows by less than 100 times that would mean a blind fixture.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from reference.oracle import Decoder, ModelConfig, TapRecorder, load_config, open_weights, ops
from reference.oracle.config import refuse_long_context
from reference.oracle.decoder import KVCache
from refusal import Refusal
from tests.reference.transformers_oracle import relative_error
from tests.stand_ins.models import SMALL_LLAMA3_ROPE, write_stand_in

VISIBLE = 1e-2
IDS = np.random.default_rng(3).integers(0, 512, 64)


def logits(config: ModelConfig) -> np.ndarray:
    """Prefill of all but two tokens and two decode steps."""
    decoder = Decoder(config, open_weights(config))
    return np.concatenate([decoder.prefill(IDS[:-2]), [decoder.decode(int(token)) for token in IDS[-2:]]])


def changed(config: ModelConfig, **values) -> ModelConfig:
    return dataclasses.replace(config, **values)


def edit_config(config: ModelConfig, **values) -> ModelConfig:
    path = config.model_dir / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return load_config(config.model_dir)


def edit_weights(config: ModelConfig, change: Callable[[dict[str, np.ndarray]], None]) -> ModelConfig:
    path = config.model_dir / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    path.unlink()
    save_file(tensors, path)
    return config


def swap_layers(tensors: dict[str, np.ndarray]) -> None:
    a, b = (f"model.layers.{index}.self_attn.v_proj.weight" for index in (0, 1))
    tensors[a], tensors[b] = tensors[b], tensors[a]


def zero(*parts: str) -> Callable[[dict[str, np.ndarray]], None]:
    def change(tensors: dict[str, np.ndarray]) -> None:
        for name in tensors:
            if name.endswith(parts):
                tensors[name] = np.zeros_like(tensors[name])

    return change


def flatten_qk_norm(tensors: dict[str, np.ndarray]) -> None:
    for name in tensors:
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            tensors[name] = np.ones_like(tensors[name])


FILE_FAULTS: dict[str, tuple[dict, Callable[[ModelConfig], ModelConfig]]] = {
    "theta wrong": ({}, lambda c: edit_config(c, rope_theta=500000.0)),
    "llama3 scaling skipped": ({"rope_scaling": SMALL_LLAMA3_ROPE}, lambda c: edit_config(c, rope_scaling=None)),
    "llama3 factor of a sibling": (
        {"rope_scaling": SMALL_LLAMA3_ROPE},
        lambda c: edit_config(c, rope_scaling=SMALL_LLAMA3_ROPE | {"factor": 32.0}),
    ),
    "linear scaling skipped": (
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        lambda c: edit_config(c, rope_scaling=None),
    ),
    "eps wrong on small activations": (
        {"activation_scale": 0.002, "rms_norm_eps": 1e-6},
        lambda c: edit_config(c, rms_norm_eps=1e-5),
    ),
    "a weight of another layer": ({}, lambda c: edit_weights(c, swap_layers)),
    "q, k and v biases zero": ({"model_type": "qwen2"}, lambda c: edit_weights(c, zero("_proj.bias"))),
    "k bias zero": ({"model_type": "qwen2"}, lambda c: edit_weights(c, zero("k_proj.bias"))),
    "QK-norm weights flat": ({"model_type": "qwen3"}, lambda c: edit_weights(c, flatten_qk_norm)),
    "one layer fewer": (
        {},
        lambda c: edit_weights(c, zero("layers.2.self_attn.o_proj.weight", "layers.2.mlp.down_proj.weight")),
    ),
}


@pytest.mark.parametrize(("properties", "fault"), FILE_FAULTS.values(), ids=FILE_FAULTS.keys())
def test_a_fault_in_the_model_directory_shows(tmp_path: Path, properties: dict, fault: Callable) -> None:
    config = load_config(write_stand_in(tmp_path, **properties))
    right = logits(config)
    assert relative_error(logits(fault(config)), right) > VISIBLE


def interleaved(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    a, b = x[..., 0::2], x[..., 1::2]
    y[..., 0::2] = a * cos[:, None] - b * sin[:, None]
    y[..., 1::2] = b * cos[:, None] + a * sin[:, None]
    return y


def tiled(attention: Callable) -> Callable:
    def with_tile(q: np.ndarray, keys: np.ndarray, values: np.ndarray, past: int) -> np.ndarray:
        times = q.shape[1] // keys.shape[0]
        return attention(q, np.tile(keys, (times, 1, 1)), np.tile(values, (times, 1, 1)), past)

    return with_tile


def shifted_mask(attention: Callable) -> Callable:
    """Causal mask off by one: a token does not see itself, the first one aside."""

    def without_self(q: np.ndarray, keys: np.ndarray, values: np.ndarray, past: int) -> np.ndarray:
        rows = [
            attention(q[i : i + 1], keys[:, : max(past + i, 1)], values[:, : max(past + i, 1)], max(past + i, 1) - 1)
            for i in range(len(q))
        ]
        return np.concatenate(rows)

    return without_self


CODE_FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "RoPE interleaved": lambda patch: patch.setattr(ops, "rotate", interleaved),
    "RoPE left out": lambda patch: patch.setattr(ops, "rotate", lambda x, _cos, _sin: x),
    "KV heads tiled instead of repeated": lambda patch: patch.setattr(ops, "attention", tiled(ops.attention)),
    "causal mask off by one": lambda patch: patch.setattr(ops, "attention", shifted_mask(ops.attention)),
    "silu left out": lambda patch: patch.setattr(ops, "silu_multiply", lambda gate, up: gate * up),
    "norm without weight": lambda patch: patch.setattr(
        ops, "rms_norm", lambda x, _w, eps: x / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(eps))
    ),
}


@pytest.mark.parametrize("fault", CODE_FAULTS.values(), ids=CODE_FAULTS.keys())
def test_a_fault_in_an_operator_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable) -> None:
    config = load_config(write_stand_in(tmp_path))
    right = logits(config)
    fault(monkeypatch)
    assert relative_error(logits(config), right) > VISIBLE


def test_norm_after_rope_instead_of_before_shows(tmp_path: Path) -> None:
    """Fault AT-04; with constant norm weights it would be invisible."""
    config = load_config(write_stand_in(tmp_path, model_type="qwen3"))
    tape = TapRecorder("layers.0.*")
    Decoder(config, open_weights(config)).prefill(IDS, tap=tape)
    weight = open_weights(config).fp32("model.layers.0.self_attn.q_norm.weight")
    cos, sin = ops.rope_table(config.rope, config.head_dim, 0, len(IDS))
    after = ops.rms_norm(ops.rotate(tape["layers.0.qkv.q"], cos, sin), weight, config.rms_norm_eps)
    assert relative_error(after, tape["layers.0.q_rope"]) > VISIBLE


def test_decode_one_position_late_shows(tmp_path: Path) -> None:
    """Fault KV-02: the identity of prefill and decode is broken, while the first token stays right."""
    config = load_config(write_stand_in(tmp_path))
    decoder = Decoder(config, open_weights(config))
    whole = decoder.prefill(IDS)
    decoder.prefill(IDS[:-1])
    decoder.cache.length -= 1  # overwrites the last row of the prompt
    assert relative_error(decoder.decode(int(IDS[-1])), whole[-1]) > VISIBLE


def test_a_hole_in_the_cache_is_nan(tmp_path: Path) -> None:
    config = load_config(write_stand_in(tmp_path))
    decoder = Decoder(config, open_weights(config))
    decoder.prefill(IDS[:10])
    decoder.cache.length += 1
    assert np.isnan(decoder.decode(5)).all()


class TestBadInput:
    @pytest.fixture
    def decoder(self, tmp_path: Path) -> Decoder:
        config = load_config(write_stand_in(tmp_path, max_position_embeddings=16))
        return Decoder(config, open_weights(config))

    @pytest.mark.parametrize("ids", [[], [512], [-1], [[1, 2]], [0.5]])
    def test_ids_that_are_none(self, decoder: Decoder, ids: list) -> None:
        with pytest.raises(Refusal, match="prompt"):
            decoder.prefill(ids)

    def test_a_prompt_longer_than_the_context(self, decoder: Decoder) -> None:
        with pytest.raises(Refusal, match="17 tokens; expected at most max_position_embeddings = 16"):
            decoder.prefill([1] * 17)

    def test_decode_up_to_the_last_position_and_no_further(self, decoder: Decoder) -> None:
        decoder.prefill([1] * 15)
        assert np.isfinite(decoder.decode(1)).all()
        with pytest.raises(Refusal, match="17 tokens"):
            decoder.decode(1)

    def test_capacity_of_a_cache(self, decoder: Decoder) -> None:
        cache = decoder.new_cache(8)
        decoder.prefill([1] * 8, cache=cache)
        with pytest.raises(Refusal, match="capacity"):
            decoder.decode(1, cache=cache)
        with pytest.raises(Refusal, match="max_position_embeddings"):
            KVCache(decoder.config, 17)

    def test_decode_before_prefill(self, decoder: Decoder) -> None:
        with pytest.raises(Refusal, match="empty KV cache"):
            decoder.decode(1)

    def test_long_context_by_itself(self, decoder: Decoder) -> None:
        refuse_long_context(decoder.config, 16)
