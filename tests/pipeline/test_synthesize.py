# SPDX-License-Identifier: Apache-2.0
"""Synthetic models: labelled as such, whole or not there, and drawn so that a fault would show."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.intake import describe
from pipeline.synthesize import config_values, shapes, synthesize
from reference.oracle.config import load_config
from reference.oracle.decoder import Decoder
from reference.oracle.tensors import expected_tensors, open_weights
from reference.oracle.tokenizer import load_tokenizer
from refusal import Refusal
from tests.scripts.run_verb import verb

IDS = [5, 300, 17, 301, 44, 255, 90, 91, 92, 200, 11, 12]


def make(folder: Path, shape: str = "tiny", **options: object) -> Path:
    """A synthetic model without words on the console."""
    layers, tied = options.pop("layers", None), options.pop("tied", None)
    values = config_values(shape, layers=layers, tied=tied)  # type: ignore[arg-type]
    assert synthesize(values, folder, progress=lambda line: None, **options)  # type: ignore[arg-type]
    return folder


def logits_of(model: Path, ids: list[int] = IDS) -> np.ndarray:
    config = load_config(model)
    decoder = Decoder(config, open_weights(config))
    return decoder.prefill(ids, cache=decoder.new_cache(len(ids)))


def test_it_can_be_deployed_and_says_that_its_weights_are_made_up(tmp_path: Path) -> None:
    description = describe(str(make(tmp_path / "my model")), device="twin")
    assert description.synthetic
    assert description.provenance == "synthetic"
    tokenizer = load_tokenizer(load_config(tmp_path / "my model"))
    assert tokenizer.decode(tokenizer.encode("It was the best of times")) == "It was the best of times"


@pytest.mark.parametrize("shape", ["tiny", "smollm2-135m", "llama-3.2-1b", "qwen3-0.6b"])
def test_every_built_in_shape_has_a_source_and_a_config_that_the_oracle_understands(shape: str, tmp_path: Path) -> None:
    assert set(shapes()) == {"tiny", "smollm2-135m", "llama-3.2-1b", "qwen3-0.6b"}
    assert shapes()[shape]["source"]
    (tmp_path / "config.json").write_text(json.dumps(config_values(shape, layers=1)))
    assert load_config(tmp_path).num_hidden_layers == 1


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "olmo2", "mistral"])
def test_every_architecture_gets_the_tensors_that_it_asks_for(model_type: str, tmp_path: Path) -> None:
    from tests.stand_ins.models import stand_in_config

    (tmp_path / "config.json").write_text(json.dumps(stand_in_config(model_type)))
    model = make(tmp_path / "made", str(tmp_path / "config.json"))
    config = load_config(model)
    weights = open_weights(config)  # checks the set and the shapes
    assert set(expected_tensors(config)) == weights.names
    assert np.isfinite(logits_of(model)).all()


def test_activations_of_an_untied_model_are_so_small_that_eps_counts(tmp_path: Path) -> None:
    model = make(tmp_path / "model")
    right = logits_of(model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": config["rms_norm_eps"] / 10}))
    wrong = logits_of(model)
    assert np.abs(wrong - right).sum() / np.abs(right).sum() > 0.05


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_of_some_size_and_do_not_just_repeat_the_input(tied: bool, tmp_path: Path) -> None:
    logits = logits_of(make(tmp_path / "model", tied=tied))
    assert 0.5 < logits.std() < 20
    repeated = np.mean(logits.argmax(axis=1) == np.array(IDS))
    assert repeated < 0.5


@pytest.mark.parametrize("tied", [True, False])
def test_every_layer_matters(tied: bool, tmp_path: Path) -> None:
    """A model that has one layer less gives other logits."""
    full = logits_of(make(tmp_path / "four", layers=4, tied=tied))
    less = logits_of(make(tmp_path / "three", layers=3, tied=tied))
    assert np.corrcoef(full.ravel(), less.ravel())[0, 1] < 0.95


def test_weights_follow_from_seed_and_name_alone(tmp_path: Path) -> None:
    def tensor(model: Path, name: str) -> np.ndarray:
        return open_weights(load_config(model)).fp32(name)

    one, again = make(tmp_path / "one"), make(tmp_path / "again")
    other, short = make(tmp_path / "other", seed=1), make(tmp_path / "short", layers=2)
    name = "model.layers.1.self_attn.v_proj.weight"
    assert np.array_equal(tensor(one, name), tensor(again, name))
    assert np.array_equal(tensor(one, name), tensor(short, name))
    assert not np.array_equal(tensor(one, name), tensor(other, name))
    assert not np.array_equal(tensor(one, name), tensor(one, name.replace("1", "2")))
    assert tensor(one, name).std() == pytest.approx(1 / 16, rel=0.02)  # 1 / sqrt(256)


def test_shards_hold_the_same_weights_as_one_file(tmp_path: Path) -> None:
    whole, parts = make(tmp_path / "whole"), make(tmp_path / "parts", shard_bytes=1 << 20)
    assert (parts / "model.safetensors.index.json").exists()
    assert len(list(parts.glob("*.safetensors"))) > 2
    assert np.array_equal(logits_of(whole), logits_of(parts))


def test_a_run_that_was_stopped_leaves_no_model_and_goes_on_from_the_last_whole_file(tmp_path: Path) -> None:
    target, values, lines = tmp_path / "model", config_values("tiny"), []
    turns = iter([True, True, False])
    stopped = synthesize(values, target, progress=lines.append, go_on=lambda: next(turns), shard_bytes=1 << 20)
    assert not stopped
    assert not target.exists()
    first = list(lines)
    assert synthesize(values, target, progress=lines.append, shard_bytes=1 << 20)
    assert len(first) == 2
    assert not set(first) & set(lines[2:])
    assert {path.name for path in target.iterdir() if not path.name.endswith(".safetensors")} == {
        "config.json", "generation_config.json", "model.safetensors.index.json", "provenance.json", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    assert not list(tmp_path.glob(".*"))


def test_what_was_begun_with_another_seed_is_not_taken_up(tmp_path: Path) -> None:
    target, values = tmp_path / "model", config_values("tiny")
    turns = iter([True, False])
    synthesize(values, target, progress=lambda line: None, go_on=lambda: next(turns), shard_bytes=1 << 20)
    assert synthesize(values, target, seed=1, progress=lambda line: None, shard_bytes=1 << 20)
    assert np.array_equal(logits_of(target), logits_of(make(tmp_path / "fresh", seed=1)))


def test_the_verb_makes_a_model_and_names_the_next_step(tmp_path: Path) -> None:
    ended = verb("synthesize", "tiny", "my model", "--layers", "2", "--seed", "7", cwd=tmp_path)
    assert ended.code == 0
    assert "2 layers, weights: synthetic (seed 7)" in ended.out
    assert ended.next == "scripts/deploy.py 'my model'"
    assert "exists" in verb("synthesize", "tiny", "my model", cwd=tmp_path).refusal


def test_what_is_no_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="no shape 'huge'; expected one of tiny"):
        config_values("huge")
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 100}))
    with pytest.raises(Refusal, match="vocab_size 100; expected at least 259"):
        config_values(str(tmp_path))
