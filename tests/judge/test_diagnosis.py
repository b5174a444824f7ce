# SPDX-License-Identifier: Apache-2.0
"""From symptoms to a skill: each pattern from a fault that makes it, and the operator where the error enters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from judge.diagnosis import Symptoms, diagnose, first_jump, position_losses, rules, tap_losses
from judge.fixture import write_fixture
from judge.measure_models import Probe, Run
from judge.metrics import Failure, NamedFailure
from judge.model_faults import PLANT
from judge.verdict import Finding, Verdict
from reference.oracle import TapRecorder, load_config, open_weights
from refusal import Refusal

ORDER = [f"layers.{layer}.{tap}" for layer in range(3) for tap in
         ("input", "qkv.v", "k_rope", "attn.out", "o_proj.out", "residual1", "act", "down.out", "residual2")]  # fmt: skip


def failed(*findings: tuple[str, float], failure: Failure | None = None) -> Verdict:
    found = tuple(Finding(metric, value, 0.01, 0.005) for metric, value in findings)
    return Verdict("phase2.x", False, found, (NamedFailure(failure, "made up"),) if failure else ())


@pytest.mark.parametrize(
    ("failure", "skill"),
    [
        (Failure.UNWRITTEN, "debug-nan"),
        (Failure.NON_FINITE, "debug-nan"),
        (Failure.STALE, "debug-stale-data"),
        (Failure.ALL_ZERO, "debug-wrong-values"),
        (Failure.ZERO_ROWS, "debug-wrong-values"),
        (Failure.CONSTANT, "debug-wrong-values"),
        (Failure.DIVERGED, "debug-position"),
        (Failure.OUTSIDE_VOCABULARY, "debug-wrong-values"),
        (Failure.EMPTY, ""),
        (Failure.TOO_FEW, ""),
        (Failure.NOT_MEASURED, ""),
        (Failure.SHAPE_MISMATCH, ""),
        (Failure.NOT_CONSUMED, ""),
        (Failure.ORACLE_UNUSABLE, ""),
    ],
)
def test_each_named_failure_has_its_skill(failure: Failure, skill: str):
    found = diagnose(Symptoms(failed(failure=failure)))
    assert found.skill == skill
    assert found.next_step == (skill or "ask a human")


def test_no_failure_is_without_a_rule():
    assert {failure for rule in rules() for failure in rule.failure} == set(Failure)


def test_an_oracle_that_only_reads_badly_is_not_called_inaccurate():
    found = diagnose(Symptoms(failed(("perplexity", 5e4))))
    assert found.skill == "phase-0-oracle" and "never trained" in found.reason
    both = diagnose(Symptoms(failed(("perplexity", 5e4), ("identity/rel", 1.0))))
    assert "never trained" not in both.reason


def test_a_device_fault_comes_before_everything_else():
    found = diagnose(Symptoms(failed(failure=Failure.UNWRITTEN), device_fault="deadlock: core (0, 2) waits"))
    assert found.skill == "debug-resources"


def test_bias_alone_is_the_rounding_mode():
    found = diagnose(Symptoms(failed(("abs", 0.001), ("bias", 0.02), ("gain", 0.02))))
    assert "rounding mode" in found.reason


def test_right_prefill_and_wrong_decode_is_a_position():
    found = diagnose(Symptoms(failed(("text/kl_mean", 0.001), ("decode/kl_mean", 0.4))))
    assert found.skill == "debug-position"


def test_low_correlation_at_all_positions_is_wrong_values():
    losses = tuple(np.random.default_rng(0).uniform(0.5, 0.6, 64))
    found = diagnose(Symptoms(failed(("pearson_loss", 0.6)), losses))
    assert (found.skill, "layout" in found.reason) == ("debug-wrong-values", True)


def test_nothing_known_asks_a_human():
    assert diagnose(Symptoms(failed(("abs", 0.001)))).next_step == "ask a human"


def test_a_passed_gate_has_no_diagnosis():
    with pytest.raises(Refusal, match="passed"):
        diagnose(Symptoms(Verdict("phase1.add", True, (), ())))


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    config = load_config(write_fixture(tmp_path_factory.mktemp("fixture")))
    run = Run((np.random.default_rng(3).integers(0, 512, 96),), ())
    return Probe("fixture", config, open_weights(config), {0: run}, (1,), False, "test")


def taps(probe: Probe, fault: str = "") -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    ids = probe.runs[0].texts[0]
    want, got = TapRecorder(), {}
    probe.oracle.prefill(ids, cache=probe.oracle.new_cache(), tap=want)
    setting = probe.setting("bf16")
    (PLANT[fault](setting) if fault else setting).decoder().logits(ids, tap=lambda t, v: got.__setitem__(t, v))
    return got, {tap: want[tap].reshape(got[tap].shape) for tap in ORDER}


@pytest.mark.parametrize(
    ("fault", "tap"),
    [
        ("rope_interleaved", "layers.0.k_rope"),
        ("theta_wrong", "layers.0.k_rope"),
        ("kv_tiled", "layers.0.attn.out"),
        ("mask_ahead", "layers.0.attn.out"),
        ("weight_of_other_layer", "layers.1.down.out"),
        ("residual_dropped", "layers.1.residual1"),
        ("eps_wrong", "layers.0.qkv.v"),
        ("", ""),
    ],
)
def test_the_first_wrong_operator_is_named(probe: Probe, fault: str, tap: str):
    assert first_jump(tap_losses(*taps(probe, fault), ORDER)) == tap


def test_a_wrong_theta_grows_with_the_position(probe: Probe):
    got, want = taps(probe, "theta_wrong")
    losses = position_losses(got["layers.0.k_rope"], want["layers.0.k_rope"])
    assert diagnose(Symptoms(failed(("k_rope/pearson_loss", 0.4)), losses)).skill == "debug-position"


def test_a_swapped_weight_does_not(probe: Probe):
    got, want = taps(probe, "weight_of_other_layer")
    losses = position_losses(got["layers.1.residual2"], want["layers.1.residual2"])
    assert diagnose(Symptoms(failed(("update/pearson_loss", 0.4)), losses)).skill == "debug-wrong-values"


def test_a_tap_that_is_not_finite_is_a_jump():
    want = np.random.default_rng(0).standard_normal((4, 4))
    assert first_jump(tap_losses({"a": want, "b": want * np.nan}, {"a": want, "b": want}, ["a", "b"])) == "b"


def test_a_table_with_an_unknown_pattern_is_refused(tmp_path: Path):
    table = tmp_path / "table.toml"
    table.write_text('[[rule]]\npattern = ["sounds_wrong"]\nskill = "debug-nan"\nreason = "x"\n')
    with pytest.raises(Refusal, match="sounds_wrong"):
        rules(table)
