# SPDX-License-Identifier: Apache-2.0
"""Verdict, question, freeze and abandonment are what the chain says, whatever the files beside it say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from judge import evidence
from judge.evaluation import PROPERTIES, Evaluation, check
from judge.evidence import Entry, Kind
from judge.fixture import write_fixture
from pipeline import documents, worker
from pipeline.deployment import Deployment, State
from pipeline.evaluation_report import VERDICT, after_freeze, conclude, verdict_of
from pipeline.intake import describe
from pipeline.verbs.abandon import abandon
from pipeline.verbs.console import End
from pipeline.verbs.deploy import deploy, standing
from pipeline.verbs.status import status
from refusal import Refusal

SHA = "cd" * 32
PROVEN = "PROVEN on synthetic weights (values by the twin)"


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.chdir(tmp_path)
    return Deployment.start(describe(str(write_fixture(tmp_path / "small")), device="twin", name="ended"))


@pytest.fixture
def frozen(begun: Deployment, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A frozen deployment that no one has evaluated; its phases are taken as passed."""
    head = evidence.append(begun.evidence, Entry(Kind.RUN, "work")).hash
    evidence.append(begun.evidence, Entry(Kind.FREEZE, "frozen", {"head": head}))
    begun.end_marker()
    documents.write(begun)
    for module in ("verbs.status", "verbs.deploy", "conduct"):
        monkeypatch.setattr(f"pipeline.{module}.pending", lambda _: [])
    return begun


def evaluated(deployment: Deployment, *violated: str, obstacle: str = "") -> int:
    checks = tuple(check(name, ["it is broken"] if name in violated else [], "all") for name in PROPERTIES)
    return conclude(deployment, Evaluation(deployment.name, checks, "00", True, "twin", obstacle))


def last(deployment: Deployment) -> Entry:
    return list(evidence.records(deployment.evidence))[-1].entry


def spoil(deployment: Deployment) -> None:
    """Break the chain at its first record."""
    lines = deployment.evidence.read_text().splitlines(keepends=True)
    lines[0] = lines[0].replace('"schema":1', '"schema":2')
    deployment.evidence.write_text("".join(lines))
    assert not evidence.verify_chain(deployment.evidence).intact


# ---- the verdict ----


def test_an_evaluation_is_a_record_that_names_its_file(frozen: Deployment) -> None:
    assert evaluated(frozen) == 0
    entry = last(frozen)
    assert (entry.kind, entry.body["result"], entry.body["verdict"]) == (Kind.EVALUATION, "PROVEN", PROVEN)
    assert entry.inputs["evaluation"] == evidence.file_digest(frozen.folder / VERDICT)
    assert verdict_of(frozen) == PROVEN
    assert after_freeze(frozen).startswith("scripts/generate.py")
    assert documents.stale(frozen) == []


def test_what_was_violated_stands_in_the_record(frozen: Deployment) -> None:
    assert evaluated(frozen, "kernels-hold") == 1
    assert last(frozen).body["violated"] == ["kernels-hold"]
    assert verdict_of(frozen) == "NOT PROVEN"


def test_an_evaluation_that_somebody_wrote_is_no_verdict(
    frozen: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    head = evidence.verify_chain(frozen.evidence).head
    (frozen.folder / VERDICT).write_text(json.dumps({"verdict": PROVEN, "result": "PROVEN", "head": head}))
    frozen.save(State(detail=f"evaluated: {PROVEN}", next="scripts/generate.py ended --prompt TEXT", frozen=True))
    assert verdict_of(frozen) is None
    for verb, words in ((status, ["ended"]), (deploy, ["--name", "ended"])):
        assert verb(words).next == "scripts/evaluate.py ended"
        assert "PROVEN" not in capsys.readouterr().out


def test_an_edited_evaluation_changes_no_verdict(frozen: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated(frozen, "kernels-hold")
    path = frozen.folder / VERDICT
    path.write_text(path.read_text().replace("NOT PROVEN", "PROVEN"))
    frozen.save(replace(frozen.kept_state(), detail=f"evaluated: {PROVEN}"))
    assert verdict_of(frozen) == "NOT PROVEN"
    assert status(["ended"]).next == "scripts/evaluate.py ended"
    assert "evaluated: NOT PROVEN" in capsys.readouterr().out
    path.unlink()
    assert verdict_of(frozen) == "NOT PROVEN"


def test_a_verdict_holds_until_the_evidence_goes_on(frozen: Deployment) -> None:
    evaluated(frozen)
    evidence.append(frozen.evidence, Entry(Kind.LESSON, "later"))
    assert verdict_of(frozen) is None
    evaluated(frozen)
    assert verdict_of(frozen) == PROVEN


def test_an_evaluation_of_a_broken_chain_is_told_and_proves_nothing(frozen: Deployment) -> None:
    spoil(frozen)
    before = frozen.evidence.read_bytes()
    assert evaluated(frozen, "evidence-unbroken") == 1
    assert frozen.evidence.read_bytes() == before
    assert json.loads((frozen.folder / VERDICT).read_text())["result"] == "NOT PROVEN"
    assert verdict_of(frozen) is None


def test_documents_that_were_not_the_evidences_stay_for_a_reader_to_see(frozen: Deployment) -> None:
    page = frozen.folder / "plan.md"
    page.write_text(page.read_text().replace("Evidence: 2", "Evidence: 9"))
    evaluated(frozen, "documents-from-evidence")
    assert "Evidence: 9" in page.read_text()


def test_an_evaluation_does_not_spoil_the_next_one(frozen: Deployment) -> None:
    from judge import claims

    evaluated(frozen)
    evaluated(frozen)
    state = evidence.verify_chain(frozen.evidence)
    assert claims.chain_problems(state, list(evidence.records(frozen.evidence))) == []


# ---- questions, freeze, abandonment ----


def ask(deployment: Deployment, *questions: str) -> None:
    for question in questions:
        evidence.append(deployment.evidence, Entry(Kind.QUESTION, "human", {"question": question}))


def answer(deployment: Deployment, question: str) -> None:
    evidence.append(deployment.evidence, Entry(Kind.ANSWER, "human", {"question": question, "answer": "yes"}))


def test_a_question_taken_out_of_the_state_still_waits(begun: Deployment) -> None:
    ask(begun, "which?")
    begun.save(State(question=None))
    assert begun.state().question == "which?"
    assert deploy(["--name", "ended"]).code == 3


def test_a_question_that_was_never_asked_holds_nothing_up(begun: Deployment) -> None:
    begun.save(State(question="invented?"))
    assert begun.state().question is None


def test_each_question_waits_for_its_own_answer(begun: Deployment) -> None:
    ask(begun, "first?", "second?")
    answer(begun, "second?")
    assert begun.state().question == "first?"
    answer(begun, "first?")
    assert begun.state().question is None


def test_the_same_question_asked_twice_has_two_answers(begun: Deployment) -> None:
    """By their words alone the first answer would take both away."""
    ask(begun, "which?", "which?")
    first = next(r for r in evidence.records(begun.evidence) if r.entry.kind == Kind.QUESTION)
    named = {"question": "which?", "answer": "yes", "asked": first.hash}
    evidence.append(begun.evidence, Entry(Kind.ANSWER, "human", named))
    assert begun.state().question == "which?"


def test_a_failure_that_stands_is_named_after_an_earlier_phase_was_judged_again(
    begun: Deployment, capsys: pytest.CaptureFixture
) -> None:
    """The fault: the worker that judged phase 0 again ended with 0, and phase 1 looked as if nobody had tried it."""
    found = {"reason": "a sum in a narrow format", "next": "skill debug-wrong-values"}
    gates = {"x": {"passed": True, "gate": "g", "findings": [], "failures": []}}
    for phase, passed in ((0, True), (1, False), (0, True)):
        body = {"passed": passed, "gates": gates, "data": {} if passed else {"diagnosis": found}}
        evidence.append(begun.evidence, Entry(Kind.GATE, f"phase-{phase}", body, inputs={"policy": SHA}))
    documents.write(begun)
    worker.record_end(begun, 0)
    end = status(["ended"])
    assert (end.code, end.next) == (1, "skill debug-wrong-values")
    assert "phase 1 failed" in (said := capsys.readouterr().out)
    assert "a sum in a narrow format" in said


def test_after_a_gate_was_judged_again_the_next_step_is_the_evaluation_and_no_phase_that_has_passed(
    frozen: Deployment,
) -> None:
    frozen.save(State(next="scripts/deploy.py --name ended --phase 2"))
    worker.record_end(frozen, 0)
    assert standing(frozen) == End(0, "scripts/evaluate.py ended")


def test_what_the_worker_refused_is_shown_again_by_status(begun: Deployment, capsys: pytest.CaptureFixture) -> None:
    with worker.ending(begun):
        raise Refusal("no space", expected="some", where="disk", next_step="free some")
    capsys.readouterr()
    end = status(["ended"])
    assert end.code == 2
    assert "no space" in capsys.readouterr().out


def test_a_freeze_is_a_record(begun: Deployment) -> None:
    begun.save(State(frozen=True))
    assert not begun.state().frozen
    head = evidence.append(begun.evidence, Entry(Kind.RUN, "work")).hash
    evidence.append(begun.evidence, Entry(Kind.FREEZE, "frozen", {"head": head}))
    (begun.folder / "state.json").unlink()
    assert begun.state().frozen


def test_an_abandonment_is_a_record(begun: Deployment) -> None:
    begun.save(State(abandoned=True))
    assert not begun.state().abandoned
    assert abandon(["ended", "--reason", "a trial"]).code == 0
    begun.save(State(abandoned=False))
    assert begun.state().abandoned
    with pytest.raises(Refusal, match="was abandoned"):
        deploy(["--name", "ended"])


# ---- abandon ----


def test_a_proven_deployment_is_not_abandoned_without_saying_so(frozen: Deployment) -> None:
    evaluated(frozen)
    evidence.append(frozen.evidence, Entry(Kind.LESSON, "later"))  # proven all the same
    before = frozen.evidence.read_bytes()
    with pytest.raises(Refusal, match="PROVEN") as refused:
        abandon(["ended", "--reason", "tidying"])
    assert "--although-proven" in refused.value.next_step
    assert frozen.evidence.read_bytes() == before
    assert abandon(["ended", "--reason", "tidying", "--although-proven"]).code == 0
    assert frozen.state().abandoned


def test_a_deployment_that_was_not_proven_is_abandoned_as_before(frozen: Deployment) -> None:
    evaluated(frozen)
    evaluated(frozen, "kernels-hold")
    assert abandon(["ended", "--reason", "it fails"]).code == 0


def forget(deployment: Deployment) -> None:
    (deployment.folder / "state.json").unlink(missing_ok=True)


def garble(deployment: Deployment) -> None:
    (deployment.folder / "state.json").write_text("{")


@pytest.mark.parametrize("state", [lambda _: None, forget, garble])
def test_a_deployment_whose_chain_is_broken_can_be_ended(
    state: Callable[[Deployment], None], begun: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(begun, "which?", "another?")
    begun.save(begun.state())
    spoil(begun)
    before = begun.evidence.read_bytes()
    state(begun)
    end: End = abandon(["ended", "--reason", "nobody knows why"])
    assert end.code == 0
    said = capsys.readouterr().out
    assert "broken at record 0" in said
    assert "no record" in said
    assert begun.evidence.read_bytes() == before, "a broken chain is left as it was found"
    assert not begun.marker.exists()
    assert begun.state().abandoned
    assert "nobody knows why" in begun.state().detail
    with pytest.raises(Refusal, match="was abandoned"):
        deploy(["--name", "ended"])


def test_abandoning_again_finishes_what_a_kill_left_and_adds_no_record(begun: Deployment) -> None:
    assert abandon(["ended", "--reason", "a trial"]).code == 0
    count = len(list(evidence.records(begun.evidence)))
    begun.marker.write_text("{}")
    assert abandon(["ended", "--reason", "again"]).code == 0
    assert not begun.marker.exists()
    assert len(list(evidence.records(begun.evidence))) == count
