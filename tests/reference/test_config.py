# SPDX-License-Identifier: Apache-2.0
"""Every key of config.json is consumed, known to be without effect, or refused by name and value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reference.oracle import ARCHITECTURES, RopeConfig, load_config
from reference.oracle.keys import KeyReader
from reference.oracle.windows import layer_windows
from refusal import Refusal
from tests.stand_ins.models import SMALL_LLAMA3_ROPE, stand_in_config


def loaded(tmp_path: Path, model_type: str = "llama", accept: tuple[str, ...] = (), **overrides):
    (tmp_path / "config.json").write_text(json.dumps(stand_in_config(model_type, **overrides)))
    return load_config(tmp_path, accept)


def refused(tmp_path: Path, *parts: str, model_type: str = "llama", **overrides) -> None:
    with pytest.raises(Refusal) as caught:
        loaded(tmp_path, model_type, **overrides)
    for part in (*parts, "config.json"):
        assert part in str(caught.value), str(caught.value)


@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta", "tie_word_embeddings", "vocab_size", "hidden_act"])
def test_there_is_no_default(tmp_path: Path, key: str) -> None:
    refused(tmp_path, f"no key '{key}'", **{key: ...})


def test_head_dim_may_be_absent_only_where_hugging_face_derives_it(tmp_path: Path) -> None:
    config = loaded(tmp_path, head_dim=...)
    assert config.head_dim == 64 // 4
    assert any("head_dim absent" in note for note in config.notes)
    refused(tmp_path, "head_dim", model_type="qwen3", head_dim=...)


def test_kv_heads_may_be_absent_only_where_the_config_class_says_what_that_means(tmp_path: Path) -> None:
    assert loaded(tmp_path, num_key_value_heads=...).num_key_value_heads == 4
    refused(tmp_path, "num_key_value_heads", model_type="qwen2", num_key_value_heads=...)
    assert loaded(tmp_path, "qwen2", num_key_value_heads=None).num_key_value_heads == 4


def test_unknown_keys_are_named_with_their_values(tmp_path: Path) -> None:
    refused(tmp_path, "logit_cap = 30.0", 'window_kind = "odd"', "--accept-key", logit_cap=30.0, window_kind="odd")


def test_an_accepted_key_is_recorded(tmp_path: Path) -> None:
    assert loaded(tmp_path, accept=("logit_cap",), logit_cap=30.0).accepted == {"logit_cap": 30.0}
    with pytest.raises(Refusal, match="--accept-key hidden_size"):
        loaded(tmp_path, accept=("hidden_size",))
    with pytest.raises(Refusal, match="no such key"):
        loaded(tmp_path, accept=("misspelt",))


@pytest.mark.parametrize(
    "override",
    [
        {"hidden_act": "gelu"},
        {"partial_rotary_factor": 0.5},
        {"rope_interleaved": True},
        {"quantization_config": {"bits": 4}},
        {"num_key_value_heads": 3},
        {"head_dim": 15},
        {"hidden_size": "64"},
        {"num_hidden_layers": 0},
        {"rms_norm_eps": -1.0},
        {"tie_word_embeddings": "yes"},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"auto_map": {"AutoModel": "own.py"}},
    ],
    ids=lambda override: next(iter(override)),
)
def test_a_value_that_is_not_implemented_is_refused(tmp_path: Path, override: dict) -> None:
    refused(tmp_path, next(iter(override)), **override)


@pytest.mark.parametrize("model_type", ["gemma2", "granite", "phi3", "qwen3_moe"])
def test_another_architecture_is_refused_with_those_there_are(tmp_path: Path, model_type: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(stand_in_config() | {"model_type": model_type}))
    with pytest.raises(Refusal, match=f"{model_type}.*expected one of {', '.join(sorted(ARCHITECTURES))}"):
        load_config(tmp_path)


def test_keys_without_effect_are_listed(tmp_path: Path) -> None:
    loaded(
        tmp_path,
        use_cache=True,
        transformers_version="4.42.3",
        attention_dropout=0.1,
        initializer_range=0.04,
        **{"is_llama_config": True, "rope_interleaved": False, "pretraining_tp": 1, "transformers.js_config": {}},
    )


class TestRope:
    def test_both_spellings_give_the_same(self, tmp_path: Path) -> None:
        old = loaded(tmp_path, rope_theta=5e5, rope_scaling=SMALL_LLAMA3_ROPE).rope
        new = loaded(tmp_path, rope_theta=..., rope_parameters=SMALL_LLAMA3_ROPE | {"rope_theta": 5e5}).rope
        assert old == new == RopeConfig(5e5, "llama3", 8.0, 1.0, 4.0, 32)

    def test_linear_by_its_old_name(self, tmp_path: Path) -> None:
        rope = loaded(tmp_path, rope_scaling={"type": "linear", "factor": 2}).rope
        assert rope == RopeConfig(10000.0, "linear", 2.0)

    def test_no_scaling(self, tmp_path: Path) -> None:
        assert loaded(tmp_path, rope_scaling=None).rope == RopeConfig(10000.0)

    def test_both_spellings_may_stand_together_if_they_agree(self, tmp_path: Path) -> None:
        same = {"rope_scaling": SMALL_LLAMA3_ROPE, "rope_parameters": SMALL_LLAMA3_ROPE | {"rope_theta": 10000.0}}
        assert loaded(tmp_path, **same).rope.kind == "llama3"
        refused(tmp_path, "rope_scaling", rope_scaling=SMALL_LLAMA3_ROPE, rope_parameters={"rope_type": "default"})
        refused(tmp_path, "rope_theta", rope_parameters={"rope_type": "default", "rope_theta": 5.0})

    @pytest.mark.parametrize("kind", ["yarn", "longrope", "dynamic", "ntk"])
    def test_an_unknown_kind_is_refused(self, tmp_path: Path, kind: str) -> None:
        refused(tmp_path, kind, "llama3", rope_scaling={"rope_type": kind, "factor": 2.0})

    @pytest.mark.parametrize("missing", [key for key in SMALL_LLAMA3_ROPE if key != "rope_type"])
    def test_a_missing_factor_is_refused(self, tmp_path: Path, missing: str) -> None:
        block = {key: value for key, value in SMALL_LLAMA3_ROPE.items() if key != missing}
        refused(tmp_path, missing, rope_scaling=block)

    def test_an_unknown_factor_is_refused(self, tmp_path: Path) -> None:
        refused(tmp_path, "attention_factor = 1.2", rope_scaling=SMALL_LLAMA3_ROPE | {"attention_factor": 1.2})

    def test_rope_by_layer_type_is_refused(self, tmp_path: Path) -> None:
        nested = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}
        refused(tmp_path, "per-layer RoPE", rope_theta=..., rope_parameters=nested)


class TestSlidingWindow:
    """Fault AT-08: a declared window need not be in force."""

    @pytest.mark.parametrize(
        ("declared", "windowed"),
        [
            ({"sliding_window": 8}, []),
            ({"sliding_window": 8, "use_sliding_window": True}, []),  # max_window_layers is 28 when absent
            ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2}, [2, 3, 4]),
            ({"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 2}, []),
        ],
    )
    def test_layers_in_force_are_those_of_transformers(self, declared: dict, windowed: list[int]) -> None:
        windows = layer_windows(KeyReader(declared, where="config.json"), ARCHITECTURES["qwen2"], 5)
        assert [index for index, window in enumerate(windows) if window] == windowed
        transformers = pytest.importorskip("transformers")
        theirs = transformers.Qwen2Config(num_hidden_layers=5, **declared).layer_types
        assert [index for index, kind in enumerate(theirs) if kind == "sliding_attention"] == windowed

    def test_a_window_in_force_is_refused(self, tmp_path: Path) -> None:
        refused(tmp_path, "layers 0-2", "64 of 1024", model_type="mistral", sliding_window=64)
        refused(tmp_path, "4096 of 32768", model_type="mistral", sliding_window=..., max_position_embeddings=32768)
        qwen = {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1}
        refused(tmp_path, "layers 1-2", model_type="qwen2", **qwen)
        types = ["full_attention", "sliding_attention", "full_attention"]
        refused(tmp_path, "layers 1 ", model_type="qwen3", sliding_window=64, layer_types=types)

    def test_a_window_that_covers_the_context_is_no_window(self, tmp_path: Path) -> None:
        config = loaded(tmp_path, "mistral", sliding_window=1024)
        assert "covers all 1024 positions" in config.notes[0]
        loaded(tmp_path, "qwen3", sliding_window=None, use_sliding_window=False, layer_types=["full_attention"] * 3)


class TestBadFile:
    def test_no_config(self, tmp_path: Path) -> None:
        with pytest.raises(Refusal, match=r"no config\.json"):
            load_config(tmp_path)

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1, "a": 2}'])
    def test_broken_config(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(Refusal, match=r"config\.json"):
            load_config(tmp_path)


def test_biases_by_architecture_and_key(tmp_path: Path) -> None:
    def biases(model_type: str, **keys) -> tuple[bool, bool, bool]:
        config = loaded(tmp_path, model_type, **keys)
        return config.qkv_bias, config.o_bias, config.mlp_bias

    assert biases("llama") == (False, False, False)
    assert biases("llama", attention_bias=True, mlp_bias=True) == (True, True, True)
    assert biases("qwen2") == (True, False, False)
    assert biases("qwen3", attention_bias=True) == (True, True, False)
    refused(tmp_path, "attention_bias", model_type="mistral", attention_bias=True)


def test_transformers_derives_the_same_numbers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for model_type in ARCHITECTURES:
        ours = loaded(tmp_path, model_type, rope_scaling=SMALL_LLAMA3_ROPE)
        theirs = transformers.AutoConfig.from_pretrained(tmp_path)
        assert ours.head_dim == getattr(theirs, "head_dim", 64 // 4)
        assert ours.num_key_value_heads == theirs.num_key_value_heads
        assert ours.rms_norm_eps == theirs.rms_norm_eps
        assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
        assert ours.rope.kind == theirs.rope_parameters["rope_type"]
        assert ours.tie_word_embeddings == theirs.tie_word_embeddings
