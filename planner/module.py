# SPDX-License-Identifier: Apache-2.0
"""The module of a plan: every design once as a device, and device `main` with one sequence an entry."""

from __future__ import annotations

from npu.artifact import Artifact
from npu.mlir.build import ModuleBuilder
from planner.memory import ARENAS
from planner.plan import Plan

ENTRY_DEVICE = "main"


def write_module(plan: Plan, target: str = "npu2") -> Artifact:
    """Write the plan as one MLIR-AIE module; entry sequences take the five arenas, in the order of ARENAS."""
    module = ModuleBuilder()
    for design in plan.designs:
        design.write(module.device(design.name, target=target))
    main = module.device(ENTRY_DEVICE, target=target)
    types = plan.arenas.types()
    index = {name: position for position, name in enumerate(ARENAS)}
    for entry in plan.entries:
        with main.sequence(entry.name, types) as s:
            for dispatch in entry.dispatches:
                views = [s.view(index[part.arena], part.offset, part.type) for part in dispatch.operands]
                s.run(dispatch.design.name, "run", views)
    objects = {obj.name: obj for design in plan.designs for obj in design.objects}
    return Artifact(module.text(), tuple(objects.values()), entry_device=ENTRY_DEVICE, target=target)
