# SPDX-License-Identifier: Apache-2.0
"""What a phase hands back: verdicts, figures, and the record that goes into the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from judge.evidence import Entry, Kind, Measured, Provenance, WallTime
from judge.verdict import Verdict
from pipeline.context import PhaseContext, Subject

_PROVENANCE = {"twin": Provenance.TWIN, "xrt": Provenance.NPU}


@dataclass
class Outcome:
    """A phase's verdicts by name, and what else it recorded.

    inputs: name -> SHA-256 beside those of the deployment (artifact keys). data: small values for later phases, such as
    the greedy tokens that phase 6 must repeat.
    """

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    figures: dict[str, Measured] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    wall: WallTime = field(default_factory=WallTime)

    @property
    def passed(self) -> bool:
        """At least one gate was judged, and all passed."""
        return bool(self.verdicts) and all(verdict.passed for verdict in self.verdicts.values())

    def add(self, name: str, verdict: Verdict, subject: Subject, *, on_device: bool = True) -> None:
        """Keep a verdict and its figures, each marked by where its values were computed and on what weights."""
        self.verdicts[name] = verdict
        provenance = _PROVENANCE[subject.device.name] if on_device else Provenance.HOST
        for finding in verdict.findings:
            self.figures[f"{name}/{finding.metric}"] = Measured(finding.value, "", provenance, subject.synthetic)

    def record(self, phase: int, ctx: PhaseContext) -> Entry:
        """The gate record of the phase."""
        description = ctx.description
        body = {
            "passed": self.passed,
            "partial": description.partial,
            "layers": list(description.choices.layers) if description.choices.layers is not None else "all",
            "gates": {name: summary(verdict) for name, verdict in self.verdicts.items()},
            "data": self.data,
        }
        return Entry(
            Kind.GATE, f"phase-{phase}", body,
            inputs=description.inputs | {"policy": ctx.policy.sha256, "pack": ctx.pack} | self.inputs,
            figures=self.figures, device={"xrt": "npu"}.get(ctx.device.name, ctx.device.name),
            tier="event+replay" if ctx.device.name == "twin" else "npu",
            seeds=self.seeds, wall=self.wall, synthetic_weights=description.synthetic,
        )  # fmt: skip


def summary(verdict: Verdict) -> Mapping[str, Any]:
    """A verdict as plain JSON values."""
    return {
        "gate": verdict.gate,
        "passed": verdict.passed,
        "findings": [
            {"metric": f.metric, "value": f.value, "threshold": f.threshold, "passed": f.passed}
            for f in verdict.findings
        ],
        "failures": [{"name": str(f.name), "detail": f.detail} for f in verdict.failures],
        "own_limits": [msgspec.to_builtins(row) for row in verdict.own],
    }
