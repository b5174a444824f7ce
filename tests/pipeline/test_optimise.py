# SPDX-License-Identifier: Apache-2.0
"""Phases 4 and 5 keep what is predicted faster and no less right, revert the rest, and record each experiment.

On the pack's own fixture model with small buckets. Faults are planted where a user could be wrong: in a kernel's macros, in
the plan's choices, in choices.json, in the runner's writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from judge import evidence
from judge.evidence import Entry, Kind, Provenance, Record, records
from judge.experiment import judge_speed, less_right
from judge.fixture import write_fixture
from judge.policy import load_policy
from judge.verdict import Finding, Verdict
from kernels.attention_prefill.stage import PrefillAttentionStage
from kernels.designs.design import single_design_artifact
from npu.cost_rates import HOST_COPY
from npu.twin.device import TwinDevice
from pipeline import documents
from pipeline.context import PhaseContext, Subject, fixture_choices
from pipeline.deployment import Deployment, Description
from pipeline.host_time import decode_host, prefill_host
from pipeline.model_session import ModelSession
from pipeline.phases.optimise import DECODE, PREFILL, Optimiser, Side, short_plan, skill_for
from pipeline.phases.outcome import Outcome
from pipeline.verbs.deploy import next_skill
from planner.alternatives import Alternative, Lever
from planner.plan import Choices, make_plan
from refusal import Refusal

CHOICES = Choices(prefill_buckets=(64, 128), decode_buckets=(256,), context=256, score_bucket=128)


CACHE = Path(__file__).parents[2] / ".cache" / "test-optimise"  # by content: programs, kernels, schedules, counts


@dataclass
class Bench:
    """A deployment of the fixture, as it stands when phase 4 begins."""

    ctx: PhaseContext
    gated: list[Choices] = field(default_factory=list)
    missing: str = ""  # the full gate says so

    @property
    def deployment(self) -> Deployment:
        return self.ctx.deployment

    def gate(self, ctx: PhaseContext, subject: Subject, outcome: Outcome) -> None:
        """In place of phase 3's full gate, which takes a minute: what was handed to it, and a verdict of its shape."""
        self.gated.append(subject.choices)
        findings = (Finding("text/rel", 2.0 if self.missing else 0.5, 1.0, 0.5),)
        outcome.add(subject.name, Verdict("phase3.fixture.mixed", not self.missing, findings, ()), subject)
        outcome.data["greedy"] = {"prompt_ids": [1], "ids": [2]}

    def run(self, side: Side, *alternatives: Alternative) -> Outcome:
        """One phase on given alternatives, with its gate record appended as `conduct` does."""
        outcome = Optimiser(self.ctx, side, full_gate=self.gate, alternatives=alternatives).run()
        evidence.append(self.deployment.evidence, outcome.record(side.phase, self.ctx))
        if outcome.passed:
            self.ctx.take_choices()
        return outcome

    def experiments(self) -> list[Record]:
        return [r for r in records(self.deployment.evidence) if r.entry.kind is Kind.EXPERIMENT]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    model = write_fixture(tmp_path / "fixture")
    inputs = {"model/config.json": evidence.file_digest(model / "config.json")}
    description = Description("fx", str(model), "twin", CHOICES, inputs, True, "synthetic")
    deployment = Deployment.start(description, tmp_path / "deployments")
    return Bench(PhaseContext(deployment, TwinDevice(CACHE), CACHE, lambda line: None))


def alternative(**change: object) -> Alternative:
    """Choices with one change, as if the planner had proposed them."""
    ((name, value),) = change.items()
    return Alternative(f"{name} {value}", Lever.TILES, replace(CHOICES, **change), 1.0, "test")


FEW_ROWS = {"qkv": 2, "o_proj": 2, "gate_up": 2, "down": 2, "lm_head": 2}


@pytest.fixture(autouse=True)
def artifacts_made_anew() -> Iterator[None]:
    """Artifacts of designs are kept in the process; a fault that is planted in a kernel's macros must not stay in one."""
    single_design_artifact.cache_clear()
    yield
    single_design_artifact.cache_clear()


@pytest.fixture(autouse=True)
def any_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture's gains are small beside its switches: here every gain counts."""
    monkeypatch.setattr("pipeline.phases.optimise.FASTER", 1 - 1e-6)


# ---- experiments ----


@pytest.mark.slow
def test_what_is_faster_and_no_less_right_is_kept_gated_and_recorded(bench: Bench) -> None:
    outcome = bench.run(DECODE, alternative(gemv_rows=FEW_ROWS))
    assert outcome.passed
    assert outcome.data["accepted"] == [f"gemv_rows {FEW_ROWS}"]
    assert bench.gated == [bench.deployment.choices()] == [replace(CHOICES, gemv_rows=FEW_ROWS)]
    (record,) = bench.experiments()
    assert record.entry.body["kept"] is True
    figures = record.entry.figures
    assert figures["predicted_after"].value < figures["predicted_before"].value
    assert {f.provenance for name, f in figures.items() if name.startswith("predicted")} == {Provenance.MODEL}
    assert {f.provenance for name, f in figures.items() if name.startswith("short/")} == {Provenance.TWIN}
    assert all(f.synthetic_weights for f in figures.values())
    assert evidence.verify_chain(bench.deployment.evidence).intact


@pytest.mark.slow
def test_what_is_right_but_slower_is_reverted_without_a_gate(bench: Bench) -> None:
    outcome = bench.run(PREFILL, alternative(tiles={"gate_up": (8, 32, 8)}))
    assert outcome.passed
    (record,) = bench.experiments()
    assert record.entry.body["kept"] is False
    assert "not faster" in record.entry.body["reason"]
    assert record.entry.figures["predicted_after"].value > record.entry.figures["predicted_before"].value
    assert not [name for name in record.entry.figures if name.startswith("short/")]
    assert bench.gated == []
    assert bench.deployment.choices() == CHOICES


@pytest.mark.slow
def test_what_is_faster_but_wrong_is_reverted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = PrefillAttentionStage.defines.fget
    assert honest is not None

    def planted(stage: PrefillAttentionStage) -> dict[str, str | int]:
        """The macros of bfp16 attention with scores scaled twice as much."""
        macros = honest(stage)
        return macros | {"SCALE_LOG2E": "0.51f"} if stage.mode == "bfp16" else macros

    monkeypatch.setattr(PrefillAttentionStage, "defines", property(planted))
    single_design_artifact.cache_clear()
    outcome = bench.run(PREFILL, alternative(attention_mode="bfp16"))
    (record,) = bench.experiments()
    assert record.entry.figures["predicted_after"].value < record.entry.figures["predicted_before"].value
    assert record.entry.body["kept"] is False
    assert "misses its kernel gate" in record.entry.body["reason"]
    assert outcome.passed
    assert outcome.data["accepted"] == []
    assert bench.deployment.choices() == CHOICES


@pytest.mark.slow
def test_what_is_within_the_thresholds_but_less_right_than_the_plan_is_reverted(bench: Bench) -> None:
    bench.run(PREFILL, alternative(attention_mode="bfp16"))
    (record,) = bench.experiments()
    assert record.entry.body["kept"] is False
    assert "less right than the accepted plan in text/" in record.entry.body["reason"]
    assert bench.gated == []


@pytest.mark.slow
def test_what_is_not_legal_is_never_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr("pipeline.phases.optimise.exercise", lambda design, *_: ran.append(design.name))
    bench.run(PREFILL, alternative(tiles={"gate_up": (32, 128, 64)}), alternative(tiles={"gate_up": (16, 48, 8)}))
    # 128 x 128 inputs of a tile of 32 x 128 and 128 x 64 are legal; K = 128 is no multiple of 48
    assert "refused" in bench.experiments()[-1].entry.body["reason"]
    assert all("k48" not in name for name in ran)


@pytest.mark.slow
def test_a_plan_that_misses_the_full_gate_is_taken_back_and_said_so(bench: Bench) -> None:
    bench.missing = "yes"
    outcome = bench.run(DECODE, alternative(gemv_rows=FEW_ROWS))
    assert outcome.passed  # with the plan that was there before
    assert outcome.data["accepted"] == []
    assert [r.entry.body["kept"] for r in bench.experiments()] == [True, False]
    assert "misses the full gate" in bench.experiments()[-1].entry.body["reason"]
    assert bench.deployment.choices() == CHOICES


# ---- no less right ----


def verdict(**losses: float) -> Verdict:
    findings = tuple(Finding(name, value, 1.0, 0.1) for name, value in losses.items())
    return Verdict("phase3.fixture.mixed", True, findings, ())


def test_less_right_is_a_larger_loss_beyond_the_honest_floor() -> None:
    before = verdict(a=0.05, b=0.3)
    assert less_right(before, verdict(a=0.09, b=0.3)) == ()  # within the floor: rounding
    assert less_right(before, verdict(a=0.05, b=0.31)) == ("b",)
    assert less_right(before, verdict(a=0.05, b=float("nan"))) == ("b",)
    assert less_right(before, verdict(a=0.05)) == ("b",)  # not measured any more
    assert less_right(before, verdict(a=0.05, b=0.2, c=0.0)) == ("c",)  # nothing to hold it against


# ---- promises on time ----


@pytest.mark.parametrize(
    ("before", "after", "host", "counts", "passes"),
    (
        (1.0, 0.9, 0.01, (5, 5), True),
        (1.0, 1.0, 0.01, (5, 5), True),
        (1.0, 1.1, 0.01, (5, 5), False),  # slower
        (1.0, 0.9, 0.05, (5, 5), False),  # 5.3% of the total is the host's
        (1.0, 0.9, 0.01, (6, 5), False),  # the formula times other bytes than were written
    ),
)
def test_the_promises_on_time(before: float, after: float, host: float, counts: tuple[int, int], passes: bool) -> None:
    assert judge_speed(4, before, after, host, counts, load_policy()).passed is passes


@pytest.mark.slow
def test_host_bytes_are_those_that_the_session_writes(bench: Bench) -> None:
    s = bench.ctx.model
    session = ModelSession(s.config, s.weights, s.device, CHOICES, cache=bench.ctx.cache)
    before = session.host_bytes
    session.prefill(list(range(70)))
    assert session.host_bytes - before == prefill_host(session.plan, 128, 70).written
    session.decode(3)
    work = decode_host(session.plan)
    assert session.host_bytes_per_token == work.written
    assert work.seconds == pytest.approx((work.written + 4 * s.config.vocab_size) / HOST_COPY.value)


@pytest.mark.slow
def test_a_runner_that_writes_more_than_is_timed_fails_the_gate(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ModelSession.append_decode

    def planted(session: ModelSession, entry: object, position: int) -> None:
        honest(session, entry, position)  # type: ignore[arg-type]
        honest(session, entry, position)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelSession, "append_decode", planted)
    outcome = bench.run(DECODE)
    assert not outcome.passed
    assert not outcome.verdicts["speed"].passed


# ---- accepted choices ----


def accepted(bench: Bench, phase: int, choices: Choices) -> str:
    """A passed record of an optimisation phase; returns the hash of its choices."""
    raw = msgspec.to_builtins(choices)
    digest = evidence.digest(raw)
    body = {"passed": True, "gates": {}, "data": {"choices": raw, "next_skill": "optimize-fusion"}}
    evidence.append(bench.deployment.evidence, Entry(Kind.GATE, f"phase-{phase}", body, inputs={"choices": digest}))
    return digest


def test_later_phases_and_the_runner_read_the_choices_that_were_accepted_last(bench: Bench) -> None:
    path = bench.deployment.folder / "choices.json"
    assert bench.deployment.choices() == CHOICES
    assert not path.exists()
    accepted(bench, 4, replace(CHOICES, key_block=64))
    digest = accepted(bench, 5, replace(CHOICES, gemv_rows=FEW_ROWS))
    assert bench.deployment.choices() == replace(CHOICES, gemv_rows=FEW_ROWS)
    assert evidence.file_digest(path) == digest
    bench.ctx.take_choices()
    assert bench.ctx.model.choices == replace(CHOICES, gemv_rows=FEW_ROWS)


def test_a_kill_between_record_and_file_does_no_harm(bench: Bench) -> None:
    path = bench.deployment.folder / "choices.json"
    accepted(bench, 4, replace(CHOICES, key_block=64))
    bench.deployment.choices()
    accepted(bench, 5, replace(CHOICES, gemv_rows=FEW_ROWS))  # the file is still phase 4's
    assert bench.deployment.choices().gemv_rows == FEW_ROWS
    path.unlink()
    assert bench.deployment.choices().gemv_rows == FEW_ROWS
    assert path.exists()


def test_choices_that_no_record_accepted_are_refused(bench: Bench) -> None:
    accepted(bench, 4, replace(CHOICES, key_block=64))
    bench.deployment.choices()
    path = bench.deployment.folder / "choices.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"attention_mode": "bfp16"}))
    with pytest.raises(Refusal, match="as phase-4 accepted them"):
        bench.deployment.choices()


def test_the_fixture_beside_a_model_shares_modes_and_no_tiles() -> None:
    chosen = replace(CHOICES, tiles={"qkv": (8, 32, 8)}, gemv_rows=FEW_ROWS, attention_mode="bfp16", key_block=64)
    fixture = fixture_choices(chosen)
    assert (fixture.tiles, fixture.gemv_rows) == ({}, {})
    assert (fixture.attention_mode, fixture.key_block) == ("bfp16", 64)


def test_the_short_gate_runs_the_plans_own_designs(bench: Bench) -> None:
    plan = make_plan(bench.ctx.model.config, replace(CHOICES, tiles={"down": (16, 32, 16)}), legal=lambda _: True)
    few = short_plan(plan, 30, lambda _: True)
    assert {entry.name for entry in few.entries} == {"prefill_64", "prefill_128", "score_128", "decode_256"}
    whole = {design.name for design in plan.designs}
    assert {d.design.name for d in few.entry("prefill_128").dispatches} <= whole
    assert {d.design.name for d in few.entry("decode_256").dispatches} <= whole


# ---- what people read ----


@pytest.mark.slow
def test_the_trajectory_is_written_from_the_records_and_labelled(bench: Bench) -> None:
    bench.run(DECODE, alternative(gemv_rows=FEW_ROWS))
    documents.write(bench.deployment)
    text = (bench.deployment.folder / "perf_opt_traj.md").read_text()
    assert "provenance: model" in text
    assert "kept: faster, and no less right" in text
    figures = bench.experiments()[0].entry.figures
    for name in ("predicted_before", "predicted_after"):
        assert f"{figures[name].value:.3f}" in text
    assert "skill optimize-fusion" in text


@pytest.mark.parametrize(
    ("binds", "skill"),
    (("design switch", "fusion"), ("launch", "fusion"), ("compute", "tiles"), ("channel", "tiles"),
     ("DDR", "buffers"), ("column", "buffers"), ("fill", "buffers")),
)  # fmt: skip
def test_what_binds_names_the_skill(binds: str, skill: str) -> None:
    assert skill_for(binds) == f"optimize-{skill}"


def test_the_next_line_after_an_optimisation_phase_names_its_skill(bench: Bench) -> None:
    accepted(bench, 4, CHOICES)
    assert next_skill(bench.deployment, 5) == "optimize-fusion"
    assert next_skill(bench.deployment, 4) == ""
