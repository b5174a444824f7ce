# SPDX-License-Identifier: Apache-2.0
"""Phase 1: every design of the plan on the device, three dispatches with changing data each."""

from __future__ import annotations

import hashlib

from judge.gates import judge_kernel
from kernels.designs.design import OpDesign, single_design_artifact
from pipeline.context import PhaseContext
from pipeline.exercise import exercise, gate_of
from pipeline.model_session import legality_of
from pipeline.phases.outcome import Outcome
from pipeline.registry import Registry, engine_version, inputs_of, verdict_of
from planner.plan import make_plan


def run(ctx: PhaseContext) -> Outcome:
    """Judge the designs of the model's plan; a design that a former deployment verified as it is now is not run again."""
    plan = make_plan(ctx.model.config, ctx.model.choices, legal=legality_of(ctx.cache))
    outcome = Outcome(seeds=tuple(seed_of(design) for design in plan.designs))
    registry = Registry(ctx.deployment.folder.parent) if ctx.reuse and ctx.device.name == "twin" else None
    engine = engine_version()
    outcome.inputs["engine"] = engine
    outcome.data |= {"kernels": {}, "reused": {}}
    for index, design in enumerate(plan.designs):
        label = f"phase 1: kernel {index + 1} of {len(plan.designs)}: {design.name}"
        artifact = single_design_artifact(design)
        outcome.inputs |= inputs_of(design.name, artifact)
        outcome.data["kernels"][design.name] = [obj.name for obj in artifact.objects]
        row = registry and registry.find(design.name, artifact, ctx.policy.sha256, ctx.device.name, engine)
        if row:
            ctx.progress(f"{label}: re-used from record {row.record[:12]} of deployment {row.deployment}")
            outcome.add(design.name, verdict_of(row, ctx.policy), ctx.model)
            outcome.data["reused"][design.name] = f"re-used from record {row.record} of deployment {row.deployment}"
            continue
        ctx.progress(label)
        dispatches, _ = exercise(design, ctx.device, seed_of(design))
        outcome.add(design.name, judge_kernel(gate_of(design), dispatches, ctx.policy), ctx.model)
        if index == 0:
            ctx.progress(f"phase 1: first kernel {'passed' if outcome.passed else 'failed'} on the {ctx.device.name}")
    for line in registry.ignored if registry else ():
        ctx.progress(f"phase 1: registry row not used: {line}")
    return outcome


def seed_of(design: OpDesign) -> int:
    """A seed that follows from the design, so that a repeated gate sees the same data."""
    return int.from_bytes(hashlib.sha256(design.name.encode()).digest()[:4], "little")
