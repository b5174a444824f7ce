# SPDX-License-Identifier: Apache-2.0
"""A checkpoint is read exactly, or refused: never short, never with a tensor left over."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from reference.oracle import Weights, file_sha256, load_config, open_weights
from reference.oracle.weights import to_fp32
from refusal import Refusal
from tests.stand_ins.models import write_fixture_llama, write_stand_in


def checked(model_dir: Path) -> Weights:
    return open_weights(load_config(model_dir))


def refused(model_dir: Path, *parts: str) -> None:
    with pytest.raises(Refusal) as caught:
        checked(model_dir)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return write_fixture_llama(tmp_path / "model")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_stand_in(tmp_path / "sharded", shards=3)


class TestValues:
    def test_bf16_f16_and_f32_are_exact(self, tmp_path: Path) -> None:
        numbers = [1.0, -2.5, 3.3e38, 1e-38, 1e-40, np.nan, np.inf, -np.inf, 0.0, -0.0]
        tensors = {
            "BF16": np.array(numbers, ml_dtypes.bfloat16),
            "F16": np.array([1.0, -2.5, 65504.0, 6e-8, np.nan, np.inf, -0.0], np.float16),
            "F32": np.array(numbers, np.float32),
        }
        save_file(tensors, tmp_path / "model.safetensors")
        weights = Weights(tmp_path)
        for name, expected in tensors.items():
            assert weights.dtype(name) == name
            assert weights.get(name).dtype == expected.dtype
            assert weights.get(name).tobytes() == expected.tobytes()
            found = weights.fp32(name)
            assert found.dtype == np.float32
            assert np.array_equal(found, expected.astype(np.float32), equal_nan=True)

    def test_every_bf16_pattern(self) -> None:
        patterns = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16)
        words = to_fp32(patterns).view(np.uint32)
        assert np.array_equal(words, np.arange(2**16, dtype=np.uint32) << 16)

    def test_shards_and_single_file_agree_with_the_safetensors_package(self, model_dir: Path, sharded: Path) -> None:
        for folder in (model_dir, sharded):
            weights = checked(folder)
            for path in folder.glob("*.safetensors"):
                for name, value in load_file(path).items():
                    assert weights.get(name).tobytes() == value.tobytes()

    def test_tensors_are_read_only_maps(self, model_dir: Path) -> None:
        assert not checked(model_dir).get("model.norm.weight").flags.writeable


class TestFile:
    def test_no_safetensors(self, tmp_path: Path) -> None:
        write_stand_in(tmp_path)
        (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
        refused(tmp_path, "no safetensors", "pytorch_model.bin")

    @pytest.mark.parametrize("cut", [1, 4096])
    def test_truncated(self, model_dir: Path, cut: int) -> None:
        path = model_dir / "model.safetensors"
        os.truncate(path, path.stat().st_size - cut)
        refused(model_dir, "model.safetensors", "truncated", f"{path.stat().st_size + cut} bytes by the header")

    def test_truncated_shard_is_named(self, sharded: Path) -> None:
        path = sharded / "model-00002-of-00003.safetensors"
        os.truncate(path, path.stat().st_size - 4096)
        refused(sharded, path.name, "truncated")

    def test_longer_than_its_header_says(self, model_dir: Path) -> None:
        with (model_dir / "model.safetensors").open("ab") as file:
            file.write(b"\0" * 4096)
        refused(model_dir, "longer")

    @pytest.mark.parametrize("content", [b"", b"abc", struct.pack("<Q", 2**40) + b"{}", struct.pack("<Q", 2) + b"[]"])
    def test_not_a_safetensors_file(self, model_dir: Path, content: bytes) -> None:
        (model_dir / "model.safetensors").write_bytes(content)
        refused(model_dir, "model.safetensors")

    def test_header_that_disagrees_with_itself(self, model_dir: Path) -> None:
        path = model_dir / "model.safetensors"
        raw = path.read_bytes()
        length = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8 : 8 + length])
        header["model.norm.weight"]["shape"] = [127]
        text = json.dumps(header).encode().ljust(length)
        path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
        refused(model_dir, "model.norm.weight", "256 bytes")

    def test_dtype_that_is_not_read_exactly(self, model_dir: Path) -> None:
        tensors = load_file(model_dir / "model.safetensors")
        tensors["model.norm.weight"] = np.ones(128, np.int8)
        save_file(tensors, model_dir / "model.safetensors")
        refused(model_dir, "model.norm.weight", "I8")


class TestIndex:
    def rewrite(self, folder: Path, change) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        change(index["weight_map"])
        path.write_text(json.dumps(index))

    def test_missing_tensor(self, sharded: Path) -> None:
        self.rewrite(sharded, lambda names: names.update({"model.ghost": "model-00001-of-00003.safetensors"}))
        refused(sharded, "model.ghost", "in no shard")

    def test_missing_shard(self, sharded: Path) -> None:
        (sharded / "model-00003-of-00003.safetensors").unlink()
        refused(sharded, "model-00003-of-00003.safetensors")

    def test_tensor_in_another_shard(self, sharded: Path) -> None:
        self.rewrite(sharded, lambda names: names.update({"model.norm.weight": "model-00001-of-00003.safetensors"}))
        refused(sharded, "model.norm.weight")

    def test_tensor_that_the_index_does_not_name(self, sharded: Path) -> None:
        self.rewrite(sharded, lambda names: names.pop("model.norm.weight"))
        refused(sharded, "model.norm.weight")

    def test_shard_outside_the_directory(self, sharded: Path) -> None:
        self.rewrite(sharded, lambda names: names.update({"model.norm.weight": "../model.safetensors"}))
        refused(sharded, "../model.safetensors")

    def test_both_single_file_and_index(self, sharded: Path) -> None:
        save_file({"x": np.zeros(1, np.float32)}, sharded / "model.safetensors")
        refused(sharded, "both")


class TestNames:
    def test_missing_tensor(self, tmp_path: Path) -> None:
        refused(write_stand_in(tmp_path, drop=("model.layers.1.mlp.up_proj.weight",)), "layers.1.mlp.up_proj.weight")

    def test_tensor_that_nobody_consumes(self, tmp_path: Path) -> None:
        """Fault AT-02: a sibling with more biases than its model_type has."""
        extra = {"model.layers.0.mlp.down_proj.bias": np.ones(64, np.float32)}
        refused(write_stand_in(tmp_path, model_type="qwen2", extra=extra), "layers.0.mlp.down_proj.bias", "consumes")

    def test_bias_that_the_config_denies(self, tmp_path: Path) -> None:
        """Fault AT-01: q, k and v biases of a checkpoint that calls itself llama."""
        extra = {f"model.layers.0.self_attn.{x}_proj.bias": np.ones(64, np.float32) for x in "qkv"}
        refused(write_stand_in(tmp_path, extra=extra), "q_proj.bias")

    def test_bias_that_is_missing(self, tmp_path: Path) -> None:
        refused(
            write_stand_in(tmp_path, model_type="qwen2", drop=("model.layers.2.self_attn.k_proj.bias",)), "k_proj.bias"
        )

    def test_derived_buffers_are_allowed(self, tmp_path: Path) -> None:
        extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
        checked(write_stand_in(tmp_path, extra=extra))

    def test_qk_norm_of_a_width_that_fits_neither_kind(self, tmp_path: Path) -> None:
        extra = {"model.layers.0.self_attn.q_norm.weight": np.ones(24, np.float32)}
        refused(write_stand_in(tmp_path, model_type="qwen3", extra=extra), "q_norm.weight", "[24]", "[16]")

    def test_vocabulary_larger_than_the_embedding(self, model_dir: Path) -> None:
        path = model_dir / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 513}))
        refused(model_dir, "embed_tokens", "[512, 128]", "[513, 128]")


class TestTying:
    """Fault WL-05: the four cases of tie_word_embeddings and a stored head."""

    @pytest.mark.parametrize("tied", [True, False])
    def test_a_stored_head_is_used(self, tmp_path: Path, tied: bool) -> None:
        assert "lm_head.weight" in checked(write_stand_in(tmp_path, tie_word_embeddings=tied, with_head=True))

    def test_absent_and_tied_is_the_embedding(self, tmp_path: Path) -> None:
        checked(write_stand_in(tmp_path, tie_word_embeddings=True, with_head=False))

    def test_absent_and_not_tied_stops(self, tmp_path: Path) -> None:
        refused(write_stand_in(tmp_path, with_head=False), "lm_head.weight", "tie_word_embeddings is false")


class TestNormConvention:
    """Faults NS-01 and NS-02: weights stored as offsets from 1 under the wrong model_type."""

    def test_offsets_from_one_are_refused(self, model_dir: Path) -> None:
        tensors = {name: value.astype(np.float32) for name, value in load_file(model_dir / "model.safetensors").items()}
        shifted = {name: value - 1 if name.endswith("norm.weight") else value for name, value in tensors.items()}
        save_file(shifted, model_dir / "model.safetensors")
        refused(model_dir, "norm weights are negative", "x * (1 + w)")

    def test_one_odd_layer_decides_nothing(self, model_dir: Path) -> None:
        tensors = load_file(model_dir / "model.safetensors")
        tensors["model.layers.1.input_layernorm.weight"] *= -1
        save_file(tensors, model_dir / "model.safetensors")
        checked(model_dir)


class TestHash:
    def test_is_cached_outside_the_model_and_follows_changes(self, model_dir: Path, tmp_path: Path) -> None:
        cache, path = tmp_path / "cache", model_dir / "config.json"
        before = set(model_dir.iterdir())
        first = file_sha256(path, cache)
        assert first == file_sha256(path, cache)
        assert set(model_dir.iterdir()) == before
        path.write_bytes(path.read_bytes().replace(b"128", b"129"))  # the same size
        assert file_sha256(path, cache) != first

    def test_a_damaged_side_file_is_ignored(self, model_dir: Path, tmp_path: Path) -> None:
        first = file_sha256(model_dir / "config.json", tmp_path / "cache")
        for side in (tmp_path / "cache" / "sha256").iterdir():
            side.write_text("{")
        assert file_sha256(model_dir / "config.json", tmp_path / "cache") == first
