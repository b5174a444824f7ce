# SPDX-License-Identifier: Apache-2.0
"""The next token: greedy by raw logits, or drawn reproducibly; settings of the model are reported only."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from reference.oracle import Decoder, load_config, open_weights
from reference.oracle.sampling import Sampler, Sampling, generate, ignored_settings, token_probabilities
from reference.oracle.tokenizer import load_tokenizer
from refusal import Refusal
from tests.reference.transformers_oracle import hugging_face_model, torch, transformers
from tests.stand_ins.models import write_fixture_llama

LOGITS = np.random.default_rng(0).standard_normal(200).astype(np.float32) * 3


def test_greedy_takes_the_largest() -> None:
    assert Sampler()(LOGITS) == int(LOGITS.argmax())


def test_nan_is_refused_and_minus_infinity_is_not() -> None:
    logits = LOGITS.copy()
    logits[3] = -np.inf
    Sampler()(logits)
    logits[3] = np.nan
    with pytest.raises(Refusal, match="NaN"):
        Sampler()(logits)


@pytest.mark.parametrize(
    "sampling", [Sampling(0.7), Sampling(1.0, top_k=5), Sampling(1.3, top_p=0.8), Sampling(0.9, top_k=20, top_p=0.5)]
)
def test_probabilities_are_those_of_transformers(sampling: Sampling) -> None:
    process = transformers.generation.logits_process
    steps = [process.TemperatureLogitsWarper(sampling.temperature)]
    steps += [process.TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    steps += [process.TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    scores = torch.tensor(LOGITS).double()[None]
    for step in steps:
        scores = step(None, scores)
    expected = torch.softmax(scores, dim=-1)[0].numpy()
    assert np.allclose(token_probabilities(LOGITS, sampling), expected, atol=1e-9)


def test_the_seed_decides() -> None:
    def draw(seed: int) -> list[int]:
        sampler = Sampler(Sampling(2.0, seed=seed))
        return [sampler(LOGITS) for _ in range(20)]

    assert draw(1) == draw(1) != draw(2)


def test_draws_follow_the_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    sampler = Sampler(Sampling(1.0, seed=3))
    counts = np.bincount([sampler(logits) for _ in range(4000)], minlength=3) / 4000
    assert np.abs(counts - [0.5, 0.3, 0.2]).max() < 0.03


@pytest.mark.parametrize("values", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}])
def test_settings_out_of_range_are_refused(values: dict) -> None:
    with pytest.raises(Refusal, match="sampling"):
        Sampling(**values)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return write_fixture_llama(tmp_path)


def greedy(model_dir: Path, count: int) -> list[int]:
    config = load_config(model_dir)
    tokenizer = load_tokenizer(config)
    decoder = Decoder(config, open_weights(config))
    return list(generate(decoder, tokenizer, tokenizer.encode("It was the age"), count))


def test_greedy_tokens_are_those_of_transformers_and_ignore_generation_config(model_dir: Path) -> None:
    """Fault TG-08: a repetition penalty on one side only."""
    plain = greedy(model_dir, 24)
    settings = {"eos_token_id": 2, "repetition_penalty": 1.3, "do_sample": True, "temperature": 0.2}
    (model_dir / "generation_config.json").write_text(json.dumps(settings))
    assert greedy(model_dir, 24) == plain
    tokenizer = load_tokenizer(load_config(model_dir))
    assert ignored_settings(tokenizer) == {"repetition_penalty": 1.3, "do_sample": True, "temperature": 0.2}

    ids = torch.tensor(tokenizer.encode("It was the age"))[None]
    model = hugging_face_model(model_dir)
    expected = []
    with torch.no_grad():
        for _ in range(24):
            row = model(ids).logits[0, -1]
            row[tokenizer.id_limit :] = -torch.inf
            if int(row.argmax()) in tokenizer.eos_ids:
                break
            expected.append(int(row.argmax()))
            ids = torch.cat([ids, row.argmax()[None, None]], dim=1)
    assert plain == expected


def test_every_eos_ends_a_generation(model_dir: Path) -> None:
    """Fault TG-03: the model emits an EOS that only one of the files names."""
    plain = greedy(model_dir, 12)
    stop = plain[5]
    (model_dir / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, stop]}))
    assert greedy(model_dir, 12) == plain[: plain.index(stop)]
