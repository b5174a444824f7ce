# SPDX-License-Identifier: Apache-2.0
"""Decisions and lessons: words that become records, and that cannot bring a number or a record into being."""

from __future__ import annotations

from pathlib import Path

import pytest

from judge import evidence
from judge.evidence import Entry, Kind, Measured, Provenance, Record
from judge.fixture import write_fixture
from pipeline import documents, journal
from pipeline.deployment import Deployment
from pipeline.intake import describe
from pipeline.journal import Decision, Lesson
from refusal import Refusal

SHA = "ab" * 32


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.chdir(tmp_path)
    return Deployment.start(describe(str(write_fixture(tmp_path / "small")), device="twin", name="told"))


def gate(deployment: Deployment, subject: str, passed: bool, value: float = 0.0371) -> Record:
    figures = {"rel": Measured(value, "1", Provenance.HOST)}
    body = {"passed": passed, "gates": {"block": {"passed": passed}}}
    return evidence.append(deployment.evidence, Entry(Kind.GATE, subject, body, {"config": SHA}, figures))


def lesson(shown: Record, **changes: str) -> Lesson:
    said = {
        "subject": "phase-2", "symptom": "rel 0.0371 beyond its limit", "evidence": shown.hash[:10],
        "cause": "epsilon of another model", "fix": "the model's own", "check": "the gate of the norm with small inputs",
    } | changes  # fmt: skip
    return Lesson(**said)


def test_a_lesson_becomes_a_record_and_part_of_the_issues(deployment: Deployment):
    shown = gate(deployment, "phase-2", passed=False)
    written = journal.write_down(deployment, lesson(shown))
    assert written.entry.kind == Kind.LESSON
    assert written.entry.body["evidence"] == shown.hash, "the whole hash, not the digits that were typed"
    page = (deployment.folder / "issues.md").read_text()
    for words in (
        "epsilon of another model",
        "the model's own",
        "the gate of the norm with small inputs",
        shown.hash[:12],
    ):
        assert words in page
    assert documents.stale(deployment) == []


def test_a_decision_becomes_a_record_and_part_of_the_plan(deployment: Deployment):
    shown = gate(deployment, "phase-3", passed=True)
    said = Decision("tiles", "wide | rows", ("narrow rows", "none"), "fewer bytes", shown.hash[:8])
    written = journal.write_down(deployment, said)
    row = next(line for line in (deployment.folder / "plan.md").read_text().splitlines() if "| tiles |" in line)
    assert row == f"| tiles | wide / rows | narrow rows; none | fewer bytes | {shown.hash[:12]} | {written.hash[:12]} |"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cause": "a limit of 0.05"}, "0.05"),
        ({"subject": "phase-2 at 77 tok/s"}, "77"),
        ({"fix": "  "}, "nothing under fix"),
        ({"evidence": "0123456789"}, "0 records"),
        ({"evidence": ""}, "nothing under evidence"),
    ],
)
def test_what_no_evidence_has_is_refused_and_nothing_is_written(deployment: Deployment, changes: dict, said: str):
    shown = gate(deployment, "phase-2", passed=False)
    before = deployment.evidence.read_bytes()
    with pytest.raises(Refusal, match=said):
        journal.write_down(deployment, lesson(shown, **changes))
    assert deployment.evidence.read_bytes() == before


def test_few_digits_name_no_record_even_if_only_one_begins_so(deployment: Deployment):
    shown = gate(deployment, "phase-2", passed=False)
    with pytest.raises(Refusal, match="first 8 digits"):
        journal.write_down(deployment, lesson(shown, evidence=shown.hash[:4]))


def test_words_justify_no_number(deployment: Deployment):
    """The fault: a number typed into a question would count as evidence for itself from then on."""
    shown = gate(deployment, "phase-2", passed=False)
    evidence.append(deployment.evidence, Entry(Kind.QUESTION, "human", {"question": "is 123.4 tok/s enough?"}))
    with pytest.raises(Refusal, match=r"123\.4"):
        journal.write_down(deployment, lesson(shown, cause="it ran at 123.4 tok/s"))


def test_words_end_no_generated_part(deployment: Deployment):
    shown = gate(deployment, "phase-2", passed=False)
    journal.write_down(deployment, lesson(shown, cause=f"a\n{documents.END}\n# another page"))
    text = (deployment.folder / "issues.md").read_text()
    assert text.count(documents.END) == 1
    assert "\n# another page" not in text
    assert documents.stale(deployment) == []


def test_a_gate_that_failed_and_then_passed_is_harvested_once_unless_it_was_told(deployment: Deployment):
    first = gate(deployment, "phase-1", passed=False)
    second = gate(deployment, "phase-2", passed=False)
    journal.write_down(deployment, lesson(second))
    gate(deployment, "phase-1", passed=True)
    gate(deployment, "phase-2", passed=True)
    gate(deployment, "phase-3", passed=False)
    (found,) = journal.harvest(evidence.records(deployment.evidence))
    assert (found.subject, found.evidence, found.symptom) == ("phase-1", first.hash, "failed: block")
    evidence.append(deployment.evidence, found.entry)
    assert journal.harvest(evidence.records(deployment.evidence)) == []
    documents.write(deployment)
    assert "cause: not told" in (deployment.folder / "issues.md").read_text()


def test_an_optimisation_decides_for_what_it_kept_against_what_it_reverted(deployment: Deployment):
    def tried(name: str, kept: bool, reason: str) -> Record:
        body = {"phase": 4, "name": name, "kept": kept, "reason": reason}
        return evidence.append(deployment.evidence, Entry(Kind.EXPERIMENT, name, body))

    def decided() -> Decision:
        return journal.of_optimisation(4, list(evidence.records(deployment.evidence)))

    tried("a bucket of 256", True, "faster")
    tried("wide tiles", False, "not faster")
    judged = gate(deployment, "phase-4", passed=True)
    said = decided()
    assert said == Decision(
        "phase-4", "a bucket of 256", ("wide tiles (not faster)",), "predicted faster and no less right", judged.hash
    )
    gate(deployment, "phase-4", passed=True)
    assert decided().choice == "the plan stays as it was", "earlier experiments belong to the earlier gate"
