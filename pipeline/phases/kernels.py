# SPDX-License-Identifier: Apache-2.0
"""Phase 1: every design of the plan on the device, three dispatches with changing data each."""

from __future__ import annotations

import hashlib

from judge.gates import judge_kernel
from kernels.designs.design import OpDesign
from pipeline.context import PhaseContext
from pipeline.exercise import exercise, gate_of
from pipeline.model_session import legality_of
from pipeline.phases.outcome import Outcome
from planner.plan import make_plan


def run(ctx: PhaseContext) -> Outcome:
    """Judge the designs of the model's plan."""
    plan = make_plan(ctx.model.config, ctx.model.choices, legal=legality_of(ctx.cache))
    outcome = Outcome(seeds=tuple(seed_of(design) for design in plan.designs))
    for index, design in enumerate(plan.designs):
        ctx.progress(f"phase 1: kernel {index + 1} of {len(plan.designs)}: {design.name}")
        seed = seed_of(design)
        dispatches, _ = exercise(design, ctx.device, seed)
        outcome.add(design.name, judge_kernel(gate_of(design), dispatches, ctx.policy), ctx.model)
        for obj in design.objects:
            outcome.inputs[f"kernel {obj.name}"] = hashlib.sha256(obj.source.read_bytes()).hexdigest()
        if index == 0:
            ctx.progress(f"phase 1: first kernel {'passed' if outcome.passed else 'failed'} on the {ctx.device.name}")
    return outcome


def seed_of(design: OpDesign) -> int:
    """A seed that follows from the design, so that a repeated gate sees the same data."""
    return int.from_bytes(hashlib.sha256(design.name.encode()).digest()[:4], "little")
