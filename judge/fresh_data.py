# SPDX-License-Identifier: Apache-2.0
"""Gates on data drawn after the freeze: chance is told from a fault by drawing again.

A threshold lies within twice the largest loss of a few honest seeds, so an honest deployment misses one now and then
on data that nobody chose (measured on the fixture: 5 of 96 block gates, 2 of 130 kernel gates, each by less than half of
the threshold). A fault misses the same metric each time, and by the policy's rule its loss is at least twice the threshold. So a
gate that misses is drawn twice more, and is violated if

- any draw has a failure with a name (not finite, stale, too few ...): those are never chance;
- any draw reaches twice a threshold, where the weakest seeded fault may lie;
- the same metric misses in two of the draws.

Every draw that was needed is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from judge.policy import FAULT_SHARE
from judge.verdict import Verdict

DRAWS = 3


def judge_fresh(draw: Callable[[int], Verdict]) -> tuple[Verdict, ...]:
    """The draws that were needed. draw: number of the draw -> verdict on data of its own."""
    draws = [draw(0)]
    while not draws[0].passed and len(draws) < DRAWS and not problems("", draws):
        draws.append(draw(len(draws)))
    return tuple(draws)


def problems(label: str, draws: Sequence[Verdict]) -> list[str]:
    """What violates a gate, given its draws; empty if nothing does."""
    found = [f"{label}: {failure.name}: {failure.detail}" for verdict in draws for failure in verdict.failures]
    if any(not verdict.findings and not verdict.failures for verdict in draws):
        found.append(f"{label}: the gate judged nothing")
    for verdict in draws:
        for finding in verdict.missed:
            if not finding.value < finding.threshold / FAULT_SHARE:  # NaN is beyond it
                found.append(
                    f"{label}: {finding.metric} = {finding.value:.4g}, twice the threshold {finding.threshold:.4g} or more"
                )
    counts = Counter(finding.metric for verdict in draws for finding in verdict.missed)
    for metric, times in counts.items():
        if times > 1:
            values = [f"{f.value:.4g}" for verdict in draws for f in verdict.missed if f.metric == metric]
            limit = next(f.threshold for verdict in draws for f in verdict.missed if f.metric == metric)
            found.append(
                f"{label}: {metric} missed {times} of {len(draws)} draws: {', '.join(values)} (at most {limit:.4g})"
            )
    return found
