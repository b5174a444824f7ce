# SPDX-License-Identifier: Apache-2.0
"""Predicted times of a plan: what `npu.cost` says of every entry, from the designs' programs and the twin's counts of each.

A design is run once alone on the twin and its counts are kept under its content, so a design that any plan had before
costs nothing. Every figure's provenance is "model".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kernels.designs.design import OpDesign, single_design_artifact
from npu.cost import EntryPrediction, Flow, predict_runs
from npu.device import Device
from npu.mlir.load import load_program
from npu.program import DeviceProgram
from pipeline.work import flow_of_design
from planner.plan import Entry, Plan


def counting_device(device: Device, cache: Path) -> Device:
    """The twin: what a dispatch does is counted there, whatever device the deployment runs on."""
    if device.name == "twin":
        return device
    from npu.twin.device import TwinDevice

    return TwinDevice(cache)


@dataclass
class Predictor:
    """Predicts entries of plans; remembers every design.

    Args:
        device: of the deployment. cache: directory of programs, kernels, schedules and counts.
    """

    device: Device
    cache: Path
    progress: Callable[[str], None] = lambda line: None
    _known: dict[str, tuple[DeviceProgram, Flow]] = field(default_factory=dict)

    def design(self, design: OpDesign) -> tuple[DeviceProgram, Flow]:
        """A design's program, and what one dispatch of it does."""
        if design.name not in self._known:
            self.progress(f"counting one dispatch of {design.name}")
            artifact = single_design_artifact(design)
            program = load_program(artifact.text, cache=self.cache).device(design.name)
            flow = flow_of_design(design, counting_device(self.device, self.cache), self.cache)
            self._known[design.name] = (program, flow)
        return self._known[design.name]

    def entry(self, entry: Entry) -> EntryPrediction:
        """The predicted time of one entry: every dispatch configures its design, as planner.module writes it."""
        designs = {dispatch.design.name: self.design(dispatch.design) for dispatch in entry.dispatches}
        return predict_runs(
            entry.name,
            [(dispatch.design.name, True) for dispatch in entry.dispatches],
            {name: program for name, (program, _) in designs.items()},
            {name: flow for name, (_, flow) in designs.items()},
        )

    def entries(self, plan: Plan, kind: str) -> dict[int, EntryPrediction]:
        """Bucket -> prediction, for the entries of a kind ("prefill" or "decode")."""
        chosen = [entry for entry in plan.entries if entry.name.rsplit("_", 1)[0] == kind]
        return {int(entry.name.rsplit("_", 1)[1]): self.entry(entry) for entry in chosen}
