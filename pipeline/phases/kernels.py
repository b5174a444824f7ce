# SPDX-License-Identifier: Apache-2.0
"""Phase 1: every design of the plan on the device, three dispatches with changing data each."""

from __future__ import annotations

import hashlib
from pathlib import Path

from judge.gates import judge_kernel
from kernels.designs.design import OpDesign, single_design_artifact
from npu.device import DeviceFault
from pipeline.context import PhaseContext
from pipeline.deployment import Deployment
from pipeline.exercise import exercise, gate_of
from pipeline.model_session import legality_of
from pipeline.phases.outcome import Outcome
from pipeline.registry import Registry, engine_version, inputs_of, verdict_of
from planner.plan import make_plan
from reference.oracle.config import load_config
from refusal import Refusal


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
        alone = f"phase 1: this design alone: scripts/run.py --design {design.name} --name {ctx.deployment.name}"
        try:
            dispatches, _ = exercise(design, ctx.device, seed_of(design))
        except DeviceFault:
            ctx.progress(alone)
            raise
        outcome.add(design.name, judge_kernel(gate_of(design), dispatches, ctx.policy), ctx.model)
        if not outcome.verdicts[design.name].passed:
            ctx.progress(alone)
        if index == 0:
            ctx.progress(f"phase 1: first kernel {'passed' if outcome.passed else 'failed'} on the {ctx.device.name}")
    for line in registry.ignored if registry else ():
        ctx.progress(f"phase 1: registry row not used: {line}")
    return outcome


def design_named(deployment: Deployment, name: str, cache: Path) -> OpDesign:
    """A design of the plan as it is now, or as `deploy` described it, by its name.

    Raises:
        Refusal: neither plan has it.
    """
    description = deployment.description
    config = load_config(Path(description.model_dir), description.accepted_keys)
    designs: dict[str, OpDesign] = {}
    for choices in (deployment.choices(), description.choices):
        designs |= {design.name: design for design in make_plan(config, choices, legal=legality_of(cache)).designs}
        if name in designs:
            return designs[name]
    raise Refusal(
        f"design {name!r}", expected=f"one of {', '.join(sorted(designs))}", where=f"the plan of {deployment.name}",
        next_step="take a name from the log of phase 1 (worker.log)",
    )  # fmt: skip


def seed_of(design: OpDesign) -> int:
    """A seed that follows from the design, so that a repeated gate sees the same data."""
    return int.from_bytes(hashlib.sha256(design.name.encode()).digest()[:4], "little")
