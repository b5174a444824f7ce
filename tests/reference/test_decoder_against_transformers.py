# SPDX-License-Identifier: Apache-2.0
"""The decoder gives the logits of transformers in FP32, for every architecture and every property that hides faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reference.oracle import Decoder, TapRecorder, load_config, open_weights
from tests.reference.transformers_oracle import (
    absolute_error,
    hugging_face_logits,
    hugging_face_model,
    pearson,
    relative_error,
    torch,
)
from tests.stand_ins.models import SMALL_LLAMA3_ROPE, write_fixture_llama, write_stand_in

LENGTH = 300  # past position 256, and past original_max_position_embeddings of the small llama3 RoPE

CASES: dict[str, dict] = {
    "llama": {},
    "llama, all biases": {"attention_bias": True, "mlp_bias": True},
    "llama, KV heads 1 of 3": {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 48},
    "llama, KV heads 3 of 9": {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 144},
    "llama, as many KV heads as query heads": {"num_key_value_heads": ...},
    "llama, head_dim absent": {"head_dim": ...},
    "llama, head_dim of its own": {"head_dim": 40},
    "llama, tied head": {"tie_word_embeddings": True},
    "llama, tied by config but with a head of its own": {"tie_word_embeddings": True, "with_head": True},
    "llama, small activations": {"activation_scale": 0.02, "rms_norm_eps": 1e-5},
    "llama, linear RoPE": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama, llama3 RoPE": {"rope_scaling": SMALL_LLAMA3_ROPE},
    "llama, llama3 RoPE in rope_parameters": {
        "rope_theta": ...,
        "rope_parameters": SMALL_LLAMA3_ROPE | {"rope_theta": 50000.0},
    },
    "llama, FP32 in shards": {"dtype": "F32", "shards": 3},
    "llama, FP16": {"dtype": "F16"},
    "mistral without window": {"model_type": "mistral"},
    "qwen2, biases without a key": {"model_type": "qwen2"},
    "qwen3, norm of each head": {"model_type": "qwen3"},
    "qwen3, with biases": {"model_type": "qwen3", "attention_bias": True},
    "olmo2, full-width norm and post-norm": {"model_type": "olmo2"},
}


def ids_of(length: int, vocab: int = 512) -> np.ndarray:
    return np.random.default_rng(7).integers(0, vocab, length)


def decoder_of(model_dir: Path) -> Decoder:
    config = load_config(model_dir)
    return Decoder(config, open_weights(config))


@pytest.mark.parametrize("properties", CASES.values(), ids=CASES.keys())
def test_prefill_and_decode_equal_transformers(tmp_path: Path, properties: dict) -> None:
    model_dir = write_stand_in(tmp_path, **properties)
    ids = ids_of(LENGTH)
    decoder = decoder_of(model_dir)
    found = np.concatenate([decoder.prefill(ids[:-2]), [decoder.decode(int(token)) for token in ids[-2:]]])
    expected = hugging_face_logits(model_dir, ids)
    assert relative_error(found, expected) < 1e-4
    assert absolute_error(found, expected) < 1e-3  # absolute logits: scale faults leave argmax and Pearson alone
    assert pearson(found, expected) > 0.999999


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "olmo2"])
@pytest.mark.parametrize("steps", [1, 2, 17])
def test_prefill_of_all_equals_prefill_and_decode_steps(tmp_path: Path, model_type: str, steps: int) -> None:
    decoder = decoder_of(write_stand_in(tmp_path, model_type=model_type))
    ids = ids_of(90)
    whole = decoder.prefill(ids)
    decoder.prefill(ids[:-steps])
    stepped = np.array([decoder.decode(int(token)) for token in ids[-steps:]])
    assert relative_error(stepped, whole[-steps:]) < 1e-5


def test_prefill_in_chunks_equals_prefill_at_once(tmp_path: Path) -> None:
    decoder = decoder_of(write_fixture_llama(tmp_path))
    ids = ids_of(150)
    cache = decoder.new_cache(150)
    chunks = [decoder.prefill(ids[a:b], cache=cache) for a, b in ((0, 1), (1, 66), (66, 150))]
    assert relative_error(np.concatenate(chunks), decoder.prefill(ids)) < 1e-5


def test_prompts_a_b_a_give_the_same_a(tmp_path: Path) -> None:
    decoder = decoder_of(write_fixture_llama(tmp_path))
    a, b = ids_of(40), ids_of(70)[::-1]
    first = decoder.prefill(a)
    decoder.prefill(b)
    decoder.decode(3)
    assert np.array_equal(decoder.prefill(a), first)


def test_weights_beyond_the_memory_budget_change_no_bit(tmp_path: Path) -> None:
    config = load_config(write_fixture_llama(tmp_path))
    weights = open_weights(config)
    ids = ids_of(20)
    kept = Decoder(config, weights).prefill(ids)
    assert np.array_equal(Decoder(config, weights, memory_budget=0).prefill(ids), kept)
    partly = Decoder(config, weights, memory_budget=600_000)  # room for one layer of three
    assert np.array_equal(partly.prefill(ids), kept)


def test_taps_are_the_module_outputs_of_transformers(tmp_path: Path) -> None:
    model_dir = write_stand_in(tmp_path, model_type="qwen3", attention_bias=True)
    ids = ids_of(40)
    tape = TapRecorder()
    decoder_of(model_dir).prefill(ids, tap=tape)
    model = hugging_face_model(model_dir)
    seen: dict[str, np.ndarray] = {}

    def keep(name: str):
        def hook(_module, _inputs, output) -> None:
            value = output[0] if isinstance(output, tuple) else output
            seen[name] = value.detach().numpy().reshape(-1)

        return hook

    layer = model.model.layers[1]
    modules = {
        "layers.1.attn_norm.out": layer.input_layernorm,
        "layers.1.qkv.q": layer.self_attn.q_proj,
        "layers.1.qkv.k": layer.self_attn.k_proj,
        "layers.1.qkv.v": layer.self_attn.v_proj,
        "layers.1.q_norm.out": layer.self_attn.q_norm,
        "layers.1.k_norm.out": layer.self_attn.k_norm,
        "layers.1.o_proj.out": layer.self_attn.o_proj,
        "layers.1.mlp_norm.out": layer.post_attention_layernorm,
        "layers.1.gate": layer.mlp.gate_proj,
        "layers.1.up": layer.mlp.up_proj,
        "layers.1.down.out": layer.mlp.down_proj,
        "layers.1.residual2": layer,
        "final_norm.out": model.model.norm,
        "logits": model.lm_head,
    }
    for name, module in modules.items():
        module.register_forward_hook(keep(name))
    layer.self_attn.o_proj.register_forward_pre_hook(
        lambda _m, x: seen.update({"layers.1.attn.out": x[0].numpy().ravel()})
    )
    layer.mlp.down_proj.register_forward_pre_hook(lambda _m, x: seen.update({"layers.1.act": x[0].numpy().ravel()}))
    with torch.no_grad():
        model(torch.tensor(ids)[None])
    for name, expected in seen.items():
        assert relative_error(tape[name].ravel(), expected) < 1e-5, name
    assert np.array_equal(tape["layers.1.residual1"], tape["layers.1.input"] + tape["layers.1.o_proj.out"])
    assert np.array_equal(tape["layers.1.input"], tape["layers.0.residual2"])


def test_a_partial_run_is_the_prefix_of_the_full_one(tmp_path: Path) -> None:
    decoder = decoder_of(write_fixture_llama(tmp_path))
    ids = ids_of(12)
    tape = TapRecorder("layers.*.residual2")
    decoder.prefill(ids, tap=tape)
    assert set(tape.values) == {f"layers.{index}.residual2" for index in range(3)}
    partial = decoder.hidden(ids, cache=decoder.new_cache(), layers=2)
    assert np.array_equal(partial, tape["layers.1.residual2"])


def test_last_only_gives_the_last_row(tmp_path: Path) -> None:
    decoder = decoder_of(write_fixture_llama(tmp_path))
    ids = ids_of(12)
    assert relative_error(decoder.prefill(ids, last_only=True), decoder.prefill(ids)[-1:]) < 1e-6
