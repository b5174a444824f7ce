# SPDX-License-Identifier: Apache-2.0
"""Limits of the model that is judged, for metrics that miss the policy's, which were measured on other models.

What honest rounding costs depends on the model: the size of its logits, which way its sums lean. So where a gate has
nothing but misses, both numbers of the policy's rule are measured again, here, on this very model and the same tokens:

    floor           the loss of the independent rounding oracle (judge.rounding_oracle), which is not the device
    weakest_value   the loss of that oracle with a fault planted which this metric answers for in the policy

A metric's limit is then the rule's factor times this floor, provided that at least one of its faults still reaches twice the
limit on this model. A deployment that loses more than honest rounding loses stays a failure; so does a metric that can tell
no fault here. Named failures (not finite, stale, ...) are never looked at twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import msgspec

from judge.measurement import Figures
from judge.policy import FAULT_SHARE, Policy, Threshold, floor_factor
from judge.verdict import Verdict

# "" (honest) or the name of a seeded fault -> figures of the gate for the rounding oracle in the device's place
Run = Callable[[str], Figures]
HONEST = ""


def judge_with_own_limits(
    judge: Callable[[Policy], Verdict], policy: Policy, run: Run, say: Callable[[str], None]
) -> Verdict:
    """The verdict by the policy; where it only misses, by limits of this model where the rule gives higher ones.

    Args:
        judge: the gate, for a policy. run: measures the same gate on the same data, honest or with a fault planted.
    """
    verdict = judge(policy)
    if verdict.passed or verdict.failures or not verdict.missed:
        return verdict
    say(f"{verdict.gate}: {len(verdict.missed)} limits missed; measuring what honest rounding loses on this model")
    own = own_thresholds(verdict, policy, run)
    if not own:
        return verdict
    again = msgspec.structs.replace(judge(policy.with_rows(verdict.gate, own)), own=own)
    for line in again.own_lines():
        say(line.strip())
    return again


def own_thresholds(verdict: Verdict, policy: Policy, run: Run) -> tuple[Threshold, ...]:
    """A row for each missed metric for which this model gives a higher limit than the policy's."""
    measured, rows = cache(run), policy.of(verdict.gate)
    found = []
    for finding in verdict.missed:
        row = rows[finding.metric]
        floor = measured(HONEST).get(row.metric, 0.0)
        limit = floor_factor(row.metric) * floor
        if limit <= row.threshold:
            continue
        for fault in (row.weakest_fault, *(name for name in row.catches if name != row.weakest_fault)):
            value = measured(fault).get(row.metric, 0.0)
            if limit <= FAULT_SHARE * value:
                found.append(Threshold(row.metric, limit, floor, fault, value, (fault,)))
                break
    return tuple(found)
