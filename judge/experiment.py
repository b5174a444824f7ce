# SPDX-License-Identifier: Apache-2.0
"""Verdicts of phases 4 and 5: the short gate of an experiment, whether a plan is no less right, and the promises on time.

The short gate is phase 3's comparison on one text of 128 positions and a few decode steps, under phase 3's thresholds. It only
decides which alternative goes on; the accepted plan passes the full phase 3 gate.
"""

from __future__ import annotations

from judge.gates import GreedyRun, Teacher, TextRun, gather_runs
from judge.metrics import Failure, NamedFailure
from judge.policy import Policy
from judge.verdict import Finding, Verdict, decide

SHORT_POSITIONS = 128
SHORT_TOKENS = 8
HOST_SHARE = 0.03  # promise 6 of the design: host time is at most 3% of the predicted total


def judge_short(
    subject: str, precision: str, text: TextRun, greedy: GreedyRun, teacher: Teacher, policy: Policy
) -> Verdict:
    """One text and one greedy run against the thresholds of phase 3."""
    found = gather_runs([text], [greedy], teacher, (SHORT_POSITIONS,), (SHORT_TOKENS,))
    return decide(f"phase3.{subject}.{precision}", found.comparisons, policy, failures=found.failures)


def less_right(before: Verdict, after: Verdict) -> tuple[str, ...]:
    """The metrics in which `after` is less right than `before`; empty if none.

    A loss within the policy's honest floor is rounding, which no figure tells apart: it counts as no worse.
    """
    losses = {finding.metric: finding.value for finding in before.findings}
    worse = []
    for finding in after.findings:
        known = losses.get(finding.metric)
        if known is None or not finding.value <= max(known, finding.floor):  # NaN is worse
            worse.append(finding.metric)
    missing = losses.keys() - {finding.metric for finding in after.findings}
    return (*worse, *sorted(missing))


def judge_speed(
    phase: int, before: float, after: float, host: float, host_bytes: tuple[int, int], policy: Policy
) -> Verdict:
    """The accepted plan is not slower than the one before, and the host's part is within the promise.

    Args:
        before, after: predicted seconds of the objective. host: the host's seconds for the same.
        host_bytes: bytes of one step that the host wrote (by the session's count, by the formula): they must agree.
    """
    failures = []
    counted, formula = host_bytes
    if counted != formula:
        detail = f"the session counted {counted} host bytes of one step, the formula that times them {formula}"
        failures.append(NamedFailure(Failure.NOT_MEASURED, detail))
    share = host / (host + after) if after > 0 else float("inf")
    findings = (
        Finding("predicted_ratio", after / before if before > 0 else float("inf"), 1.0, 0.0),
        Finding("host_share", share, HOST_SHARE, 0.0),
    )
    passed = not failures and all(finding.passed for finding in findings)
    return Verdict(f"phase{phase}.speed", passed, findings, tuple(failures), looked_at=2, policy_sha256=policy.sha256)
