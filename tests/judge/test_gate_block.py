# SPDX-License-Identifier: Apache-2.0
"""Phase 2's gate: an honest block passes on unseen activations in every precision, a planted fault fails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from judge.gates import BLOCK_TAPS, judge_block
from judge.measure_models import Probe, block_taps, oracle_block
from judge.metrics import Failure
from judge.model_faults import BLOCK_FAULTS, PLANT
from judge.policy import Policy
from judge.rounding_oracle import PRECISIONS

LAYER = 1


def sides(probe: Probe, policy: Policy, precision: str, fault: str = ""):
    ids = probe.runs[next(iter(probe.runs))].texts[0][: policy.limits.block_positions + 8]
    setting = replace(probe.setting(precision), layer=LAYER)
    wrong = PLANT[fault](setting) if fault else setting
    return block_taps(wrong, LAYER, oracle_block(probe, LAYER, ids), precision, policy.limits)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_honest_block_passes_on_unseen_activations(probe: Probe, policy: Policy, precision: str):
    verdict = judge_block("fixture", precision, *sides(probe, policy, precision), policy)
    assert verdict.passed, verdict.lines()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("fault", BLOCK_FAULTS)
def test_a_planted_fault_fails_or_is_listed_as_caught_elsewhere(
    probe: Probe, policy: Policy, precision: str, fault: str
):
    gate = policy.gates[f"phase2.fixture.{precision}"]
    if fault in gate.elsewhere:
        assert fault in policy.gates[gate.elsewhere[fault]].faults
        return
    if fault not in gate.faults:
        assert (precision, fault) == ("mixed", "mask_ahead"), "a decode step has no future position to see"
        return
    verdict = judge_block("fixture", precision, *sides(probe, policy, precision, fault), policy)
    assert verdict.missed


@pytest.mark.parametrize("tap", [tap if tap != "update" else "residual2" for tap in BLOCK_TAPS])
def test_a_tap_that_is_missing_fails(probe: Probe, policy: Policy, tap: str):
    got, want = sides(probe, policy, "bf16")
    got.pop(tap)
    verdict = judge_block("fixture", "bf16", got, want, policy)
    assert [failure.name for failure in verdict.failures] == [Failure.NOT_MEASURED]


def test_fewer_positions_than_asked_for_fail(probe: Probe, policy: Policy):
    got, want = ({tap: value[:63] for tap, value in side.items()} for side in sides(probe, policy, "bf16"))
    verdict = judge_block("fixture", "bf16", got, want, policy)
    assert {failure.name for failure in verdict.failures} == {Failure.TOO_FEW}


def test_a_block_that_passes_its_input_through_fails(probe: Probe, policy: Policy):
    """The residual stream drowns what a layer adds: only the update shows that it added nothing."""
    got, want = sides(probe, policy, "bf16")
    verdict = judge_block("fixture", "bf16", got | {"residual2": got["input"]}, want, policy)
    assert {failure.name for failure in verdict.failures} == {Failure.ALL_ZERO}


def test_an_output_that_was_never_written_stays_visible_through_the_update(probe: Probe, policy: Policy):
    got, want = sides(probe, policy, "bf16")
    got["residual2"] = got["residual2"].astype(np.float32).copy()
    got["residual2"].view(np.uint32)[40:] = 0x7FA57FA5
    verdict = judge_block("fixture", "bf16", got, want, policy)
    assert {failure.name for failure in verdict.failures} == {Failure.UNWRITTEN}
