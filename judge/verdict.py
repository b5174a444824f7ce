# SPDX-License-Identifier: Apache-2.0
"""A verdict: what a gate measured, what it held that against, and what it could not measure.

A gate passes when it has at least one finding, every finding is within its threshold, every threshold of the policy
was measured, and no failure has a name. There is no flag that weakens this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from judge.metrics import Comparison, Element, Failure, Figure, NamedFailure
from judge.policy import Policy, Threshold


class Finding(msgspec.Struct, frozen=True):
    """One metric against its threshold. `source` names the dispatch, text or tap that gave the worst value."""

    metric: str
    value: float
    threshold: float
    floor: float
    source: str = ""
    position: tuple[int, ...] = ()

    @property
    def passed(self) -> bool:
        return self.value <= self.threshold  # false for NaN


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of one gate. `looked_at` counts the positions, tokens or items that were judged."""

    gate: str
    passed: bool
    findings: tuple[Finding, ...]
    failures: tuple[NamedFailure, ...]
    worst: tuple[Element, ...] = ()
    looked_at: int = 0
    signed_bias: float = 0.0
    policy_sha256: str = ""
    own: tuple[Threshold, ...] = ()  # limits measured on this model, see judge.own_limits

    @property
    def missed(self) -> tuple[Finding, ...]:
        """The findings beyond their thresholds, the furthest beyond first."""
        missed = [finding for finding in self.findings if not finding.passed]
        return tuple(sorted(missed, key=lambda finding: -finding.value / max(finding.threshold, 1e-30)))

    def lines(self) -> list[str]:
        """The verdict for people: one line a failure and a finding. Of one that failed, what held is only counted."""
        text = [f"{self.gate}: {'passed' if self.passed else 'FAILED'}, {self.looked_at} judged"]
        for failure in self.failures:
            places = f" at positions {list(failure.positions)}" if failure.positions else ""
            text.append(f"  {failure.name}: {failure.detail}{places}")
        for finding in self.findings if self.passed else self.missed:
            sign = "ok  " if finding.passed else "MISS"
            place = f" at {finding.source} {list(finding.position)}" if finding.source or finding.position else ""
            text.append(f"  {sign} {finding.metric} = {finding.value:.4g} (at most {finding.threshold:.4g}){place}")
        held = len(self.findings) - len(self.missed)
        if held and not self.passed:
            text.append(f"  {held} other metrics within their limits")
        text += self.own_lines()
        if not self.passed:
            text += [f"  element {list(e.index)}: device {e.got:.6g}, oracle {e.want:.6g}" for e in self.worst]
        return text

    def own_lines(self) -> list[str]:
        """The limits that were measured on this model, one line each."""
        return [
            f"  limit of {row.metric} measured on this model: {row.threshold:.4g} "
            f"(honest rounding {row.floor:.4g}, {row.weakest_fault} {row.weakest_value:.4g})"
            for row in self.own
        ]


def decide(
    gate: str,
    comparisons: Mapping[str, Mapping[str, Comparison]],
    policy: Policy,
    *,
    failures: Iterable[NamedFailure] = (),
    looked_at: int | None = None,
) -> Verdict:
    """Hold what was compared against the policy of a gate.

    Args:
        comparisons: prefix -> source -> comparison. A prefix is the part of a metric's name before "/" ("" where it
            has none); of several sources the worst value counts.
        failures: what the caller found on its own.
        looked_at: how much was judged; counted from the comparisons where it is None.
    """
    named = [*failures, *_failures(comparisons)]
    count = sum(c.positions for rows in comparisons.values() for c in rows.values()) if looked_at is None else looked_at
    if count == 0 and not any(f.name is Failure.EMPTY for f in named):
        named.append(NamedFailure(Failure.EMPTY, "the gate had nothing to look at"))
    figures: dict[str, tuple[str, Figure]] = {}
    for prefix, rows in comparisons.items():
        figures |= worst_figures(prefix, rows)
    findings = []
    for metric, entry in policy.of(gate).items():
        if metric in figures:
            source, figure = figures[metric]
            findings.append(Finding(metric, figure.value, entry.threshold, entry.floor, source, figure.position))
        elif not named:
            named.append(
                NamedFailure(Failure.NOT_MEASURED, f"{metric}: the policy asks for it and nothing measured it")
            )
    every = [c for rows in comparisons.values() for c in rows.values()]
    passed = bool(findings) and not named and all(finding.passed for finding in findings)
    return Verdict(
        gate,
        passed,
        tuple(findings),
        tuple(named),
        _worst_elements(every),
        count,
        max((c.signed_bias for c in every), key=abs, default=0.0),
        policy.sha256,
    )


def _failures(comparisons: Mapping[str, Mapping[str, Comparison]]) -> list[NamedFailure]:
    """The named failures of all comparisons, each saying where it is from."""
    return [
        NamedFailure(failure.name, f"{' '.join(filter(None, (prefix, source)))}: {failure.detail}", failure.positions)
        for prefix, rows in comparisons.items()
        for source, comparison in rows.items()
        for failure in comparison.failures
    ]


def worst_figures(prefix: str, rows: Mapping[str, Comparison]) -> dict[str, tuple[str, Figure]]:
    """Metric ("prefix/name") -> the worst figure over all sources, with its source."""
    worst: dict[str, tuple[str, Figure]] = {}
    for source, comparison in rows.items():
        for name, figure in comparison.figures.items():
            metric = f"{prefix}/{name}".lstrip("/")
            if metric not in worst or not figure.value <= worst[metric][1].value:  # NaN is the worst
                worst[metric] = (source, figure)
    return worst


def _worst_elements(comparisons: list[Comparison]) -> tuple[Element, ...]:
    """The elements of the comparison that is furthest off."""
    ranked = sorted(comparisons, key=lambda c: -(abs(c.worst[0].got - c.worst[0].want) if c.worst else -1.0))
    return ranked[0].worst if ranked else ()
