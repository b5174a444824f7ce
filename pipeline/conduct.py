# SPDX-License-Identifier: Apache-2.0
"""Conducting a deployment: which phase is next, running it, recording its gate, and what to do after a failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import msgspec

from judge import evidence
from judge.claims import last_freeze
from judge.diagnosis import Diagnosis, Symptoms, diagnose
from judge.evidence import Entry, Kind, Record, WallTime
from judge.verdict import Verdict
from npu.device import DeviceFault
from pipeline import documents, journal
from pipeline.context import PhaseContext
from pipeline.deployment import OPTIMISATION, Deployment, State
from pipeline.intake import require_unchanged
from pipeline.phases import block, decode, integrate, kernels, model, oracle, prefill
from pipeline.phases.outcome import Outcome, summary
from pipeline.registry import harvest
from refusal import Refusal

PHASES: dict[int, tuple[str, ModuleType]] = {
    0: ("CPU oracle", oracle),
    1: ("kernels", kernels),
    2: ("single block", block),
    3: ("full model", model),
    4: ("prefill optimisation", prefill),
    5: ("decode optimisation", decode),
    6: ("integration", integrate),
}
SKILLS = {
    0: "phase-0-oracle", 1: "phase-1-kernels", 2: "phase-2-block", 3: "phase-3-model", 4: "phase-4-prefill",
    5: "phase-5-decode", 6: "phase-6-integrate",
}  # fmt: skip
NEXT_DONE = "scripts/evaluate.py {name}"


def pending(deployment: Deployment) -> list[int]:
    """The phases still to pass, in order. A phase counts as passed only with all phases before it."""
    passed = deployment.passed()
    for position, phase in enumerate(PHASES):
        if phase not in passed:
            return list(PHASES)[position:]
    return []


def conduct(ctx: PhaseContext, until: int | None = None) -> int:
    """Run the pending phases, up to `until`; returns an exit code: 0 passed, 1 a gate failed, 3 a human is needed."""
    deployment = ctx.deployment
    for phase in pending(deployment):
        if until is not None and phase > until:
            break
        code = run_phase(ctx, phase)
        if code:
            return code
    finish(ctx)
    return 0


def run_phase(ctx: PhaseContext, phase: int) -> int:
    """Run one phase and append its record, whatever comes out."""
    deployment, (title, module) = ctx.deployment, PHASES[phase]
    missing = [earlier for earlier in PHASES if earlier < phase and earlier not in deployment.passed()]
    if missing:
        raise Refusal(
            f"phase {phase} before phase {missing[0]}", expected="the phases in order", where=deployment.name,
            next_step=f"scripts/deploy.py --name {deployment.name}",
        )  # fmt: skip
    require_unchanged(ctx.description)
    _state(deployment, lambda s: replace_phase(s, phase, "running", f"phase {phase}: {title}"))
    started = time.monotonic()
    try:
        outcome = module.run(ctx)
    except DeviceFault as fault:
        return _fault(ctx, phase, str(fault), time.monotonic() - started)
    if outcome.verdicts and not outcome.passed:
        outcome.data["diagnosis"] = _diagnosis(outcome, deployment.name)
    require_unchanged(ctx.description)  # the record names these files: they must have been what was judged, to the end
    outcome.wall = WallTime(run=round(time.monotonic() - started, 3))
    record = evidence.append(deployment.evidence, outcome.record(phase, ctx))
    harvest(deployment.folder.parent, record, deployment.name)
    for said in _learnt(list(evidence.records(deployment.evidence)), phase) if outcome.passed else ():
        evidence.append(deployment.evidence, said.entry)
    if outcome.passed:
        ctx.take_choices()
    return _conclude(ctx, phase, outcome, record.hash)


def _learnt(chain: list[Record], phase: int) -> list[journal.Decision | journal.Lesson]:
    """What a passed phase adds to the journal: phases 4 and 5 decide on the plan, phase 6 gathers the lessons."""
    if phase in OPTIMISATION:
        return [journal.of_optimisation(phase, chain)]
    return list(journal.harvest(chain)) if phase == max(PHASES) else []


def _conclude(ctx: PhaseContext, phase: int, outcome: Outcome, record: str) -> int:
    name = ctx.deployment.name
    if outcome.passed:
        ctx.progress(f"phase {phase}: PASSED ({len(outcome.verdicts)} gates, record {record[:12]})")
        following = pending(ctx.deployment)  # later ones may have passed before this one was judged again
        step = f"scripts/deploy.py --name {name} --phase {following[0]}" if following else NEXT_DONE.format(name=name)
        if following and "next_skill" in outcome.data:
            step += f"  # skill {outcome.data['next_skill']}"
        _state(ctx.deployment, lambda s: replace_phase(s, phase, "passed", f"phase {phase} passed", step))
        documents.write(ctx.deployment)
        return 0
    failed = [(label, verdict) for label, verdict in outcome.verdicts.items() if not verdict.passed]
    for label, verdict in failed:
        ctx.progress(f"phase {phase}: FAILED: {label}")
        for line in verdict.lines():
            ctx.progress(f"  {line}")
    found = outcome.data["diagnosis"]
    ctx.progress(f"phase {phase}: {found['reason']}")
    detail = f"phase {phase} failed: {found['reason']}"
    _state(ctx.deployment, lambda s: replace_phase(s, phase, "failed", detail, found["next"]))
    documents.write(ctx.deployment)
    return 1


def _diagnosis(outcome: Outcome, name: str) -> dict[str, str]:
    """What the record of a failed phase says about where to look: reason, and the next step of the first gate that failed."""
    label, verdict = next((label, verdict) for label, verdict in outcome.verdicts.items() if not verdict.passed)
    finding = _finding(label, verdict, outcome)
    step = f"skill {finding.skill}" if finding.skill else f"scripts/ask.py --name {name} QUESTION"
    return {"reason": finding.reason, "next": step}


def _finding(label: str, verdict: Verdict, outcome: Outcome) -> Diagnosis:
    """Where to look after a failed gate: a debug skill for wrong values, an optimise skill for time."""
    if verdict.gate.endswith(".speed"):
        reason = "; ".join(line.strip() for line in verdict.lines()[1:])
        return Diagnosis(outcome.data.get("next_skill", "optimize-buffers"), reason)
    prefill = outcome.verdicts.get(f"{label.removesuffix(' decode')} prefill")
    return diagnose(Symptoms(verdict, prefill_passed=prefill is not None and prefill.passed))


def _fault(ctx: PhaseContext, phase: int, text: str, seconds: float) -> int:
    """A dispatch did not complete: that is a failed gate, with the device's own account of it."""
    entry = Outcome(wall=WallTime(run=round(seconds, 3))).record(phase, ctx)
    entry.body["fault"] = text[:8000]
    evidence.append(ctx.deployment.evidence, entry)
    ctx.progress(f"phase {phase}: FAILED: the device did not complete a dispatch")
    ctx.progress(text)
    _state(
        ctx.deployment,
        lambda s: replace_phase(s, phase, "failed", f"phase {phase}: device fault", "skill debug-resources"),
    )
    documents.write(ctx.deployment)
    return 1


def finish(ctx: PhaseContext) -> None:
    """After the last phase: freeze, take the marker away, write the documents."""
    deployment = ctx.deployment
    if pending(deployment):
        return
    chain = list(evidence.records(deployment.evidence))
    if last_freeze(chain) is None:
        evidence.append(
            deployment.evidence,
            Entry(Kind.FREEZE, "frozen", {"head": chain[-1].hash, "partial": deployment.description.partial},
                  inputs=frozen_inputs(ctx), synthetic_weights=ctx.description.synthetic),
        )  # fmt: skip
    # A kill may have come between the record and what follows from it.
    if not deployment.kept_state().frozen:
        _state(
            deployment, lambda s: replace(s, frozen=True, detail="frozen", next=NEXT_DONE.format(name=deployment.name))
        )
    deployment.end_marker()
    documents.write(deployment)


def frozen_inputs(ctx: PhaseContext) -> dict[str, str]:
    """What an evaluation is held against: the model's files, the policy, the pack, and the description of the deployment."""
    description = evidence.digest(msgspec.to_builtins(ctx.description))
    return ctx.description.inputs | {"policy": ctx.policy.sha256, "pack": ctx.pack, "description": description}


def replace_phase(state: State, phase: int, status: str, detail: str, step: str = "") -> State:
    """The state with one phase's status, the last detail and the next step."""
    phases = state.phases | {str(phase): status}
    return replace(state, phases=phases, detail=detail, next=step or state.next)


def _state(deployment: Deployment, change: Callable[[State], State]) -> None:
    deployment.save(change(deployment.state()))


__all__ = ["PHASES", "SKILLS", "conduct", "finish", "pending", "run_phase", "summary"]
