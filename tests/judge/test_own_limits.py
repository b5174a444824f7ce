# SPDX-License-Identifier: Apache-2.0
"""Limits measured on the model that is judged: honest work on another model passes, faults on it do not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from judge.claims import label_problems, policy_problems
from judge.evidence import Entry, Kind, Measured, Provenance, Record
from judge.gates import judge_block
from judge.measure_models import Probe, Run, block_taps, oracle_block, run_block
from judge.measurement import figures_of
from judge.metrics import Failure, NamedFailure
from judge.model_faults import PLANT
from judge.own_limits import judge_with_own_limits, own_thresholds
from judge.policy import FAULT_SHARE, load_policy
from judge.verdict import Finding, Verdict
from pipeline.phases.outcome import summary
from reference.oracle import load_config, open_weights
from refusal import Refusal
from tests.stand_ins.models import write_stand_in

POLICY = load_policy()
GATE = "phase2.fixture.bfp16"
METRIC = "k_rope/bias"
ROW = POLICY.of(GATE)[METRIC]
LAYER = 1


def missed(value: float) -> Verdict:
    rows = POLICY.of(GATE).values()
    found = tuple(
        Finding(row.metric, value if row.metric == METRIC else row.floor, row.threshold, row.floor) for row in rows
    )
    return Verdict(GATE, False, found, ())


def told(floor: float, fault: float):
    return lambda name: {METRIC: fault if name else floor}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    """A model of another shape than the fixture's, drawn as transformers initialises: its first layers are nearly linear."""
    folder = write_stand_in(
        tmp_path_factory.mktemp("other"), tokenizer=False, hidden_size=256, intermediate_size=512, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=512, tie_word_embeddings=True,
    )  # fmt: skip
    config = load_config(Path(folder))
    ids = np.random.default_rng(7).integers(0, 512, 80)
    return Probe("fixture", config, open_weights(config), {0: Run((ids,), ())}, (LAYER,), False, "a stand-in")


def judge_as_device(probe: Probe, fault: str) -> Verdict:
    """Phase 2 on the probe's block, the rounding oracle in the device's place, with a fault or without."""
    want = oracle_block(probe, LAYER, probe.runs[0].texts[0])
    honest = replace(probe.setting("bfp16"), layer=LAYER)
    device = PLANT[fault](honest) if fault else honest
    got, seen = block_taps(device, LAYER, want, "bfp16", POLICY.limits)

    def run(name: str) -> dict[str, float]:
        setting = PLANT[name](honest) if name else honest
        return figures_of(run_block(setting, LAYER, want, "bfp16", POLICY.limits), honest=not name)

    return judge_with_own_limits(
        partial(judge_block, "fixture", "bfp16", got, seen), POLICY, run, lambda line: None
    )  # fmt: skip


def test_honest_rounding_passes_on_a_model_that_the_policy_never_saw(other: Probe):
    verdict = judge_as_device(other, "")
    assert verdict.passed, verdict.lines()


@pytest.mark.parametrize("fault", ["theta_wrong", "rope_interleaved", "kv_tiled", "mask_ahead", "residual_dropped"])
def test_a_fault_on_that_model_still_fails(other: Probe, fault: str):
    assert not judge_as_device(other, fault).passed


def test_a_limit_is_raised_to_the_rule_and_no_further():
    floor = ROW.threshold  # twice the policy's own floor
    own = own_thresholds(missed(1.9 * floor), POLICY, told(floor, 4.0 * floor / FAULT_SHARE))
    assert [row.threshold for row in own] == [pytest.approx(2 * floor)]


@pytest.mark.parametrize(
    ("floor", "fault", "why"),
    [
        (ROW.floor / 2, 100.0, "honest rounding loses less here than where the policy was measured"),
        (ROW.threshold, 3.9 * ROW.threshold, "the fault is less than twice the limit: the metric could not tell it"),
        (0.0, 100.0, "a floor of zero bounds nothing"),
    ],
)
def test_a_limit_that_the_rule_does_not_give_is_not_raised(floor: float, fault: float, why: str):
    assert own_thresholds(missed(3 * ROW.threshold), POLICY, told(floor, fault)) == (), why


def test_named_failures_are_never_looked_at_twice():
    calls = []
    broken = replace_failures(missed(1.0))
    assert judge_with_own_limits(lambda policy: broken, POLICY, calls.append, calls.append) is broken
    assert not calls


def replace_failures(verdict: Verdict) -> Verdict:
    return Verdict(verdict.gate, False, verdict.findings, (NamedFailure(Failure.NON_FINITE, "NaN"),))


def record(verdict: Verdict, **changes: object) -> Record:
    told_as = summary(verdict) | changes
    figures = {f"block/{f.metric}": Measured(f.value, "", Provenance.TWIN) for f in verdict.findings}
    entry = Entry(Kind.GATE, "phase-2", {"gates": {"block": told_as}}, {"policy": POLICY.sha256}, figures)
    return Record(0, "", "", entry, "00" * 32)


def test_a_record_with_limits_of_its_own_is_held_against_the_rule(other: Probe):
    floor = ROW.threshold
    run = told(floor, 4 * floor / FAULT_SHARE)

    def judge(policy):
        rows = policy.of(GATE)
        found = tuple(
            Finding(m, 1.9 * floor if m == METRIC else r.floor, r.threshold, r.floor) for m, r in rows.items()
        )
        return Verdict(GATE, all(f.passed for f in found), found, ())

    verdict = judge_with_own_limits(judge, POLICY, run, lambda line: None)
    assert verdict.passed and verdict.own
    assert policy_problems([record(verdict)], POLICY) == []
    assert policy_problems([record(verdict, own_limits=[])], POLICY), "a raised limit without its numbers"
    row = summary(verdict)["own_limits"][0]
    for change in ({"floor": floor / 2}, {"weakest_value": 3 * floor}, {"metric": "k_rope/made_up"}):
        problems = policy_problems([record(verdict, own_limits=[row | change])], POLICY)
        assert problems, change


def test_a_row_for_an_unknown_fault_is_refused():
    row = own_thresholds(missed(1.9 * ROW.threshold), POLICY, told(ROW.threshold, 100.0))[0]
    with pytest.raises(Refusal):
        POLICY.with_rows(
            GATE, [type(row)(row.metric, row.threshold, row.floor, "made_up", row.weakest_value, ("made_up",))]
        )


def labelled(synthetic: bool) -> Record:
    return Record(0, "", "", Entry(Kind.GATE, "phase-2", synthetic_weights=synthetic), "00" * 32)


@pytest.mark.parametrize(
    ("described", "provenance", "recorded", "holds"),
    [
        (False, False, False, True),
        (True, True, True, True),
        (True, False, True, True),  # deploy --synthetic: the directory says nothing
        (False, True, False, False),  # made-up weights called trained
        (True, True, False, False),
        (True, False, False, False),
    ],
)
def test_made_up_weights_are_called_so_everywhere(described: bool, provenance: bool, recorded: bool, holds: bool):
    assert (label_problems([labelled(recorded)], described, provenance) == []) is holds
