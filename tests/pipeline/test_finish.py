# SPDX-License-Identifier: Apache-2.0
"""The end of a deployment: one freeze, whatever moment it was killed at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from judge import evidence
from judge.claims import AFTER_FREEZE, last_freeze
from judge.evidence import Entry, Kind
from judge.fixture import write_fixture
from pipeline import documents
from pipeline.conduct import PHASES, finish
from pipeline.deployment import OPTIMISATION, Deployment
from pipeline.intake import describe

SHA = "cd" * 32


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """Every phase has a passed gate; nothing after it was done."""
    monkeypatch.chdir(tmp_path)
    found = Deployment.start(describe(str(write_fixture(tmp_path / "small")), device="twin", name="ended"))
    for phase in PHASES:
        if phase not in OPTIMISATION:
            body = {"passed": True, "gates": {}}
            evidence.append(found.evidence, Entry(Kind.GATE, f"phase-{phase}", body, {"config": SHA}))
    monkeypatch.setattr("pipeline.conduct.pending", lambda _: [])
    return found


def context(deployment: Deployment) -> SimpleNamespace:
    policy = SimpleNamespace(sha256=SHA)
    return SimpleNamespace(deployment=deployment, policy=policy, pack=SHA, description=deployment.description)


def frozen_once(deployment: Deployment) -> None:
    chain = list(evidence.records(deployment.evidence))
    assert [record.entry.kind for record in chain].count(Kind.FREEZE) == 1
    freeze = last_freeze(chain)
    assert freeze is not None
    assert freeze.entry.body["head"] == freeze.previous
    assert deployment.state().frozen
    assert not deployment.marker.exists()
    assert documents.stale(deployment) == []


def lose_state(deployment: Deployment) -> None:
    deployment.save(replace(deployment.state(), frozen=False))


def lose_documents(deployment: Deployment) -> None:
    (deployment.folder / "plan.md").write_text("# an older one\n")


def keep_marker(deployment: Deployment) -> None:
    deployment.marker.write_text("{}")


@pytest.mark.parametrize("kill", [lambda _: None, lose_state, lose_documents, keep_marker])
def test_a_kill_anywhere_in_the_end_is_made_up_for(deployment: Deployment, kill: Callable[[Deployment], None]) -> None:
    finish(context(deployment))
    kill(deployment)
    finish(context(deployment))
    frozen_once(deployment)


def test_a_question_after_the_freeze_does_not_spoil_it() -> None:
    assert {Kind.QUESTION, Kind.ANSWER} <= AFTER_FREEZE
    assert Kind.FREEZE not in AFTER_FREEZE
