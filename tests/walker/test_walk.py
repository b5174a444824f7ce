# SPDX-License-Identifier: Apache-2.0
"""Whoever only does what the last line says gets from an empty directory to the verdict."""

from __future__ import annotations

import json

import pytest

from pipeline.conduct import PHASES
from tests.walker.conftest import NAME, Proven
from tests.walker.walk import waits

pytestmark = pytest.mark.slow
VERDICT = "PROVEN on synthetic weights (values by the twin)"


def test_the_walk_leads_from_deploy_to_the_verdict_and_to_the_deployments_use(proven: Proven) -> None:
    assert proven.walk.ending == "done", proven.walk.out[-3000:]
    verbs = [name for name in proven.walk.verbs if name != "status"]
    assert verbs == ["deploy", "evaluate", "generate"]


def test_no_step_failed(proven: Proven) -> None:
    assert [(step.words, step.code) for step in proven.walk.steps if step.code] == []
    assert [step.err for step in proven.walk.steps if step.err] == []


def test_every_phase_passed_and_the_verdict_is_the_most_that_made_up_weights_can_have(proven: Proven) -> None:
    evaluation = json.loads((proven.deployment / "evaluation.json").read_text())
    assert evaluation["verdict"] == VERDICT
    assert evaluation["violated"] == []
    last = next(step for step in reversed(proven.walk.steps) if step.verb == "status")
    rows = [line.split()[-1] for line in last.out.splitlines() if line.startswith("  phase ")]
    assert rows == ["passed"] * len(PHASES)
    assert f"evaluated: {VERDICT}" in last.out


def test_the_verdict_was_told_to_whoever_followed_the_lines(proven: Proven) -> None:
    judged = [step for step in proven.walk.steps if f"evaluation: {VERDICT}" in step.out]
    assert len(judged) == 1
    assert judged[0].next == f"scripts/generate.py {NAME} --prompt TEXT"
    assert judged[0].verb == "evaluate" or waits(judged[0].words)


def test_the_walk_left_nothing_but_the_model_and_its_deployment(proven: Proven) -> None:
    assert sorted(path.name for path in proven.project.iterdir()) == ["deployments", "my model"]
    assert not (proven.deployment / "UNDER_WAY").exists()
