# SPDX-License-Identifier: Apache-2.0
"""Phases 4 and 5: experiments on the plan, one alternative at a time; kept if predicted faster and no less right.

An experiment: the alternative's plan is made (an illegal design is never tried), its entries are predicted, and only if they
are faster its new designs pass their kernel gates and the short gate of 128 positions runs. What is kept is the base of the next
one. Each is a record of its own. The accepted plan then passes the full gate of phase 3; if it does not, all is
taken back, which is a record too. Times are predicted (provenance model), values are the device's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from judge import evidence
from judge.evidence import Entry, Kind, Measured, Provenance
from judge.experiment import SHORT_POSITIONS, SHORT_TOKENS, judge_short, judge_speed, less_right
from judge.gates import judge_kernel
from judge.own_limits import judge_with_own_limits
from judge.verdict import Verdict
from npu.cost import EntryPrediction
from npu.cost_error import cost_error
from npu.device import DeviceFault
from pipeline.context import PhaseContext, Subject, fixture_choices
from pipeline.exercise import exercise, gate_of
from pipeline.host_time import HostWork, decode_host, prefill_host
from pipeline.model_session import ModelSession, legality_of
from pipeline.phases.kernels import seed_of
from pipeline.phases.model import greedy_run, judge_subject, text_run
from pipeline.phases.outcome import Outcome
from pipeline.phases.own_runs import model_run
from pipeline.predict import Predictor
from pipeline.texts import prompt_ids
from planner.alternatives import (
    Alternative,
    Legal,
    Lever,
    bucket_for,
    decode_alternatives,
    mean_seconds,
    prefill_alternatives,
)
from planner.plan import Choices, Plan, make_plan
from refusal import Refusal

MAX_EXPERIMENTS = 2
BUDGET_SECONDS = 180.0  # of processor time, so that a busy machine tries as much: no further experiment begins after it
FASTER = 0.99  # a predicted ratio above this is no gain: the full gate costs more than it is worth
TEXT, PROMPT = 1, 1  # which shipped text and prompt the short gate uses
FullGate = Callable[[PhaseContext, Subject, Outcome], None]


@dataclass(frozen=True)
class Side:
    """One of the two paths. lengths: prompt or context lengths that the objective is the mean over, within the choices."""

    phase: int
    name: str
    lengths: tuple[int, ...]
    limit: Callable[[Choices], int]
    alternatives: Callable[[Plan, tuple[int, ...], Mapping[int, float], Legal], tuple[Alternative, ...]]
    host: Callable[[Plan, int], HostWork]

    def reference(self, choices: Choices) -> tuple[int, ...]:
        """The reference lengths that fit."""
        return tuple(length for length in self.lengths if length <= self.limit(choices)) or (self.limit(choices),)


PREFILL = Side(
    4, "prefill", (64, 128, 256, 512), lambda c: max(c.prefill_buckets), prefill_alternatives,
    lambda plan, length: prefill_host(plan, bucket_for(length, plan.choices.prefill_buckets), length),
)  # fmt: skip
DECODE = Side(
    5, "decode", (128, 512, 1024, 2048), lambda c: max(c.decode_buckets), decode_alternatives,
    lambda plan, length: decode_host(plan),
)  # fmt: skip


@dataclass(frozen=True)
class Short:
    """The short gate's outcome: its verdict, host bytes (counted by the session, by formula), and what ran."""

    verdict: Verdict
    host_bytes: tuple[int, int]
    artifact: str


@dataclass(frozen=True)
class Standing:
    """A plan with its predicted entries (by bucket) and its short gate."""

    plan: Plan
    entries: Mapping[int, EntryPrediction]
    seconds: float
    short: Short | None = None


@dataclass(frozen=True)
class Trial:
    """How an experiment ended. kept: faster and no less right. reason: one line. after: None where no plan could be made."""

    kept: bool
    reason: str
    after: Standing | None = None


@dataclass
class Optimiser:
    """One phase's run.

    Args:
        alternatives: None for the planner's; full_gate: the gate that the accepted plan passes.
    """

    ctx: PhaseContext
    side: Side
    full_gate: FullGate = judge_subject
    alternatives: tuple[Alternative, ...] | None = None

    def __post_init__(self) -> None:
        self.subject = self.ctx.model
        self.legal = legality_of(self.ctx.cache)
        self.predictor = Predictor(self.ctx.device, self.ctx.cache, self._say)
        self.judged: dict[str, Verdict] = {}  # kernel gates, by design
        self.started = time.process_time()

    # ---- the phase ----

    def run(self) -> Outcome:
        """Try alternatives, gate what was accepted, and say what binds now."""
        outcome = Outcome()
        before = self._baseline()
        assert before.short is not None
        outcome.add("plan before, short gate", before.short.verdict, self.subject)
        if not before.short.verdict.passed:
            self._figures(outcome, before, before, [])
            return outcome
        after, accepted = self._experiments(before)
        after, accepted = self._gate(before, after, accepted, outcome)
        self._promises(outcome, before, after)
        self._figures(outcome, before, after, accepted)
        return outcome

    def _baseline(self) -> Standing:
        plan = make_plan(self.subject.config, self.subject.choices, legal=self.legal)
        standing = self._predict(plan)
        self._say(f"baseline {1e3 * standing.seconds:.3f} ms predicted (model), mean over {self._reference(plan)}")
        return replace(standing, short=self._short(plan))

    def _experiments(self, before: Standing) -> tuple[Standing, list[str]]:
        standing, accepted, tried = before, [], set()
        while len(tried) < MAX_EXPERIMENTS and (not tried or time.process_time() - self.started < BUDGET_SECONDS):
            option = next((o for o in self._options(standing) if o.name not in tried), None)
            if option is None:
                break
            tried.add(option.name)
            self._say(f"experiment {len(tried)}: {option.name} ({option.why})")
            started = time.monotonic()
            trial = self._try(standing, option)
            self._record(option, standing, trial, time.monotonic() - started)
            if trial.kept and trial.after is not None:
                standing = trial.after
                accepted.append(option.name)
        return standing, accepted

    def _options(self, standing: Standing) -> tuple[Alternative, ...]:
        if self.alternatives is not None:
            return self.alternatives
        seconds = {bucket: entry.seconds for bucket, entry in standing.entries.items()}
        return self.side.alternatives(standing.plan, self._reference(standing.plan), seconds, self.legal)

    # ---- one experiment ----

    def _try(self, standing: Standing, option: Alternative) -> Trial:
        """Plan, predict, and only if faster: kernel gates of new designs, then the short gate."""
        try:
            plan = make_plan(self.subject.config, option.choices, legal=self.legal)
            new = [design for design in plan.designs if design.name not in {d.name for d in standing.plan.designs}]
            illegal = [design.name for design in new if not self.legal(design)]
            if illegal:
                return Trial(False, f"not legal: {', '.join(illegal)}")
            after = self._predict(plan)
            if after.seconds > FASTER * standing.seconds:
                return Trial(False, "not faster; no gate was run", after)
            return self._judge(standing, after, new)
        except Refusal as refusal:
            return Trial(False, f"refused: {refusal}")
        except DeviceFault as fault:
            return Trial(False, f"device fault: {str(fault)[:400]}")

    def _judge(self, standing: Standing, after: Standing, new: list) -> Trial:
        for design in new:
            if design.name.startswith("gemm") and design.out == "f32":
                continue  # the LM head over all rows is for gates only; no alternative changes it
            if design.name not in self.judged:
                dispatches, _ = exercise(design, self.ctx.device, seed_of(design))
                self.judged[design.name] = judge_kernel(gate_of(design), dispatches, self.ctx.policy)
            if not self.judged[design.name].passed:
                missed = ", ".join(f.metric for f in self.judged[design.name].missed[:3]) or "a named failure"
                return Trial(False, f"less right: {design.name} misses its kernel gate ({missed})", after)
        after = replace(after, short=self._short(after.plan))
        assert standing.short is not None and after.short is not None
        if not after.short.verdict.passed:
            return Trial(False, "less right: misses the short gate", after)
        worse = less_right(standing.short.verdict, after.short.verdict)
        if worse:
            return Trial(False, f"less right than the accepted plan in {', '.join(worse[:4])}", after)
        return Trial(True, "faster, and no less right", after)

    def _predict(self, plan: Plan) -> Standing:
        entries = self.predictor.entries(plan, self.side.name)
        seconds = {bucket: entry.seconds for bucket, entry in entries.items()}
        return Standing(plan, entries, mean_seconds(self._reference(plan), seconds))

    def _reference(self, plan: Plan) -> tuple[int, ...]:
        """Of the accepted choices, not of the alternative's: the objective must not move with the plan."""
        return self.side.reference(self.subject.choices)

    def _short(self, plan: Plan) -> Short:
        """128 positions of one text and a few decode steps, on the entries that they need."""
        s, prompt = self.subject, prompt_ids(self.subject, PROMPT)
        plan = short_plan(plan, len(prompt) - 1, self.legal)
        session = ModelSession(s.config, s.weights, self.ctx.device, plan.choices, cache=self.ctx.cache, plan=plan)
        text = text_run(self.ctx, s, session, TEXT, SHORT_POSITIONS)
        written = session.host_bytes
        greedy = greedy_run(session, f"prompt {PROMPT + 1}", prompt, SHORT_TOKENS)
        counted = session.host_bytes - written
        formula = _greedy_host_bytes(plan, len(prompt) - 1)
        verdict = judge_with_own_limits(
            partial(judge_short, s.thresholds, "mixed", text, greedy, lambda ids: s.logits(list(ids))),
            self.ctx.policy,
            model_run(s, self.ctx.policy.limits, texts={TEXT: SHORT_POSITIONS}, greedy={PROMPT: SHORT_TOKENS}),
            self._say,
        )
        return Short(verdict, (counted, formula), session.artifact.key)

    # ---- what was accepted ----

    def _gate(
        self, before: Standing, after: Standing, accepted: list[str], outcome: Outcome
    ) -> tuple[Standing, list[str]]:
        """The full gate of phase 3 on the accepted plan; all is taken back where it fails."""
        if not accepted:
            record = self.ctx.deployment.whole_model()
            outcome.data["full_gate"] = record.hash if record else "none: no record of the whole model"
            return before, accepted
        self._say(f"full gate of phase 3 on the accepted plan ({len(accepted)} changes)")
        full, choices = Outcome(), after.plan.choices
        subjects = [self.subject.with_choices(choices)]
        if fixture_choices(choices) != self.ctx.fixture.choices:
            subjects.insert(0, self.ctx.fixture.with_choices(fixture_choices(choices)))
        try:
            for subject in subjects:
                self.full_gate(self.ctx, subject, full)
            missed = [name for name, verdict in full.verdicts.items() if not verdict.passed]
            reason = f"the accepted plan misses the full gate: {', '.join(missed)}" if missed else ""
        except DeviceFault as fault:
            reason = f"device fault in the full gate: {str(fault)[:400]}"
        if reason:
            option = Alternative("all accepted changes together", Lever.TILES, choices, 0.0, "")
            self._record(option, before, Trial(False, reason, after), 0.0)
            self._say(f"all taken back: {reason}")
            outcome.data["full_gate"] = "of the plan before; the accepted one missed it"
            return before, []
        outcome.verdicts |= full.verdicts
        outcome.figures |= full.figures
        outcome.inputs |= full.inputs
        outcome.data |= full.data | {"full_gate": "this record"}
        return after, accepted

    def _promises(self, outcome: Outcome, before: Standing, after: Standing) -> None:
        assert after.short is not None
        lengths = self._reference(after.plan)
        host = sum(self.side.host(after.plan, length).seconds for length in lengths) / len(lengths)
        verdict = judge_speed(
            self.side.phase, before.seconds, after.seconds, host, after.short.host_bytes, self.ctx.policy
        )
        outcome.verdicts["speed"] = verdict
        for finding in verdict.findings:
            outcome.figures[f"speed/{finding.metric}"] = self._model(finding.value, "")
        outcome.data["host_ms"] = 1e3 * host

    def _figures(self, outcome: Outcome, before: Standing, after: Standing, accepted: list[str]) -> None:
        """Choices, predicted times and what binds, for the record and for later phases."""
        choices = msgspec.to_builtins(after.plan.choices)
        outcome.inputs["choices"] = evidence.digest(choices)
        outcome.figures |= {
            "predicted_before": self._model(1e3 * before.seconds, "ms"),
            "predicted_after": self._model(1e3 * after.seconds, "ms"),
        }
        for bucket, entry in after.entries.items():
            outcome.figures[f"predicted/{self.side.name}_{bucket}"] = self._model(1e3 * entry.seconds, "ms")
        binds = after.entries[max(after.entries)].binds
        outcome.data |= {
            "choices": choices,
            "accepted": accepted,
            "objective": f"mean predicted time of {self.side.name} over {list(self._reference(after.plan))} tokens",
            "binds": binds,
            "next_skill": skill_for(binds),
            "model_error": cost_error()[-1].line(),
        }
        self._say(f"{1e3 * before.seconds:.3f} -> {1e3 * after.seconds:.3f} ms predicted (model); {binds} binds: "
                  f"skill {skill_for(binds)} says what else can be tried")  # fmt: skip

    # ---- records ----

    def _record(self, option: Alternative, before: Standing, trial: Trial, wall: float) -> None:
        figures = {"predicted_before": self._model(1e3 * before.seconds, "ms")}
        inputs = self.ctx.description.inputs | {"policy": self.ctx.policy.sha256}
        body = {
            "phase": self.side.phase, "name": option.name, "lever": str(option.lever), "skill": option.lever.skill,
            "why": option.why, "kept": trial.kept, "reason": trial.reason,
            "choices": msgspec.to_builtins(option.choices),
        }  # fmt: skip
        if trial.after is not None:
            figures["predicted_after"] = self._model(1e3 * trial.after.seconds, "ms")
            body["entries"] = {
                f"{self.side.name}_{bucket}": 1e3 * entry.seconds for bucket, entry in trial.after.entries.items()
            }
        short = trial.after.short if trial.after else None
        if short is not None:
            inputs["artifact"] = short.artifact
            provenance = {"twin": Provenance.TWIN, "xrt": Provenance.NPU}[self.ctx.device.name]
            for finding in short.verdict.findings:
                figures[f"short/{finding.metric}"] = Measured(finding.value, "", provenance, self.subject.synthetic)
        evidence.append(
            self.ctx.deployment.evidence,
            Entry(
                Kind.EXPERIMENT, f"phase-{self.side.phase} experiment", body, inputs=inputs, figures=figures,
                device={"xrt": "npu"}.get(self.ctx.device.name, self.ctx.device.name),
                tier="event+replay" if self.ctx.device.name == "twin" else "npu",
                wall=evidence.WallTime(run=round(wall, 3)), synthetic_weights=self.ctx.description.synthetic,
            ),
        )  # fmt: skip
        predicted = f", {1e3 * trial.after.seconds:.3f} ms predicted" if trial.after else ""
        self._say(f"{'kept' if trial.kept else 'reverted'}{predicted}: {trial.reason}")

    def _model(self, value: float, unit: str) -> Measured:
        return Measured(value, unit, Provenance.MODEL, self.subject.synthetic)

    def _say(self, line: str) -> None:
        self.ctx.progress(f"phase {self.side.phase}: {line}")


def skill_for(binds: str) -> str:
    """The optimise skill whose matter is what binds."""
    if binds in ("design switch", "launch", "instruction stream", "controller"):
        return Lever.FUSION.skill
    return Lever.TILES.skill if binds in ("compute", "channel") else Lever.BUFFERS.skill


def short_plan(plan: Plan, prompt: int, legal: Legal) -> Plan:
    """The plan's own designs in the few entries that the short gate runs, with a score entry of 128 rows.

    Args:
        prompt: tokens that are prefilled before the decode steps.
    """
    choices = plan.choices
    scored = make_plan(plan.config, replace(choices, score_bucket=SHORT_POSITIONS), legal=legal)
    prefill = tuple(sorted({bucket_for(count, choices.prefill_buckets) for count in (prompt, SHORT_POSITIONS)}))
    decode = (bucket_for(prompt + SHORT_TOKENS, choices.decode_buckets),)
    kept = {f"score_{SHORT_POSITIONS}"}
    kept |= {f"prefill_{bucket}" for bucket in prefill} | {f"decode_{bucket}" for bucket in decode}
    few = replace(scored.choices, prefill_buckets=prefill, decode_buckets=decode)
    return replace(scored, choices=few, entries=tuple(entry for entry in scored.entries if entry.name in kept))


def _greedy_host_bytes(plan: Plan, prompt: int) -> int:
    """Host bytes of a prompt's prefill and the decode steps after it, by the formula that times them."""
    bucket = bucket_for(prompt, plan.choices.prefill_buckets)
    prefilled = min(prompt, bucket)
    steps = SHORT_TOKENS + prompt - prefilled
    return prefill_host(plan, bucket, prefilled).written + steps * decode_host(plan).written
