# SPDX-License-Identifier: Apache-2.0
"""The second implementation: in FP64 it is the oracle, and each store point and each fault changes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from judge.logits import compare_logits
from judge.model_faults import PLANT, Setting
from judge.rounding import quantise_bfp16, round_bf16
from judge.rounding_oracle import EXACT, PRECISIONS, Mistake, Numerics, RoundingDecoder
from reference.oracle import Decoder, TapRecorder, load_config, open_weights
from tests.stand_ins.models import SMALL_LLAMA3_ROPE, write_stand_in

IDS = np.random.default_rng(9).integers(3, 500, 40)
# Each with what another would leave unseen: biases, both widths of QK-norm, norms behind, RoPE scaling, a tied head.
ARCHITECTURES = {
    "llama": {},
    "llama3": {"rope_scaling": SMALL_LLAMA3_ROPE},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3"},
    "olmo2": {"model_type": "olmo2"},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_in_fp64_it_agrees_with_the_oracle_tap_by_tap(tmp_path: Path, name: str):
    config = load_config(write_stand_in(tmp_path, **ARCHITECTURES[name]))
    weights = open_weights(config)
    oracle, taps = TapRecorder(), {}
    want = Decoder(config, weights).prefill(IDS, tap=oracle)
    got = RoundingDecoder(config, weights, EXACT).logits(IDS, tap=lambda tap, value: taps.__setitem__(tap, value))
    assert compare_logits(got, want).figures["logits_abs"].value < 1e-4
    assert len(taps) > 8 * config.num_hidden_layers
    for tap, value in taps.items():
        assert np.allclose(value, oracle[tap].reshape(value.shape), rtol=1e-3, atol=1e-4), tap


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    config = load_config(write_stand_in(tmp_path_factory.mktemp("plain"), activation_scale=0.005))
    return Setting(config, open_weights(config), EXACT)


def test_decode_steps_equal_one_prefill(setting: Setting):
    decoder = setting.decoder()
    assert np.allclose(decoder.decode(IDS[:20], IDS[20:]), decoder.logits(IDS)[20:], rtol=1e-9, atol=1e-9)


def test_greedy_chooses_what_its_logits_say(setting: Setting):
    ids, logits = setting.decoder().greedy(IDS[:10], 12)
    assert len(ids) == 12
    assert list(ids) == logits.argmax(axis=1).tolist()
    assert np.allclose(setting.decoder().logits([*IDS[:10], *ids])[9:-1], logits)


def test_every_store_point_is_bf16(setting: Setting):
    taps = {}
    decoder = RoundingDecoder(setting.config, setting.weights, PRECISIONS["bf16"])
    logits = decoder.logits(IDS, tap=lambda tap, value: taps.__setitem__(tap, value))
    assert all(np.array_equal(value, round_bf16(value)) for value in taps.values())
    assert not np.array_equal(logits, round_bf16(logits)), "logits leave in FP32"


def test_bfp16_operands_are_quantised_along_k(setting: Setting):
    decoder = RoundingDecoder(setting.config, setting.weights, PRECISIONS["bfp16"])
    taps = {}
    decoder.logits(IDS, tap=lambda tap, value: taps.__setitem__(tap, value))
    weight = quantise_bfp16(round_bf16(setting.weights.fp32("model.layers.0.mlp.down_proj.weight")))
    expected = round_bf16(quantise_bfp16(taps["layers.0.act"]) @ weight.T)
    assert np.array_equal(taps["layers.0.down.out"], expected)


def test_precisions_are_ordered(setting: Setting):
    want = setting.decoder().logits(IDS)
    losses = [
        compare_logits(RoundingDecoder(setting.config, setting.weights, PRECISIONS[name]).logits(IDS), want)
        .figures["kl_mean"]
        .value
        for name in ("bf16", "bfp16")
    ]
    assert 0 < 4 * losses[0] < losses[1]


@pytest.mark.parametrize("fault", sorted(PLANT))
def test_every_planted_fault_changes_the_result(setting: Setting, fault: str):
    honest = Setting(setting.config, setting.weights, Numerics())
    right, wrong = honest.decoder(), PLANT[fault](honest).decoder()
    assert not np.array_equal(right.decode(IDS[:30], IDS[30:]), wrong.decode(IDS[:30], IDS[30:]))


def test_no_mistake_is_the_default():
    assert Mistake() == Mistake(False, False, 0, -1, 0)
