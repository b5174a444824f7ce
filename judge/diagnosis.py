# SPDX-License-Identifier: Apache-2.0
"""From a failed gate to the debug skill whose known pattern fits, or to a human.

The table is diagnosis.toml; this module says which patterns hold. With the losses of every tap in operator order it
also names the first operator whose error jumps, which is where to look.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from judge.metrics import Failure, compare, widen
from judge.verdict import Verdict
from refusal import Refusal

TABLE_PATH = Path(__file__).with_name("diagnosis.toml")
# An operator's error jumps when it is this many times that of all before it, or of one bf16 rounding.
JUMP = 4.0
ROUNDING = 2.0**-9
# Growth: all later positions are this much worse than the first eighth, and rank correlates with position. Angles
# that are wrong soon saturate, so the last positions need not be the worst.
GROWTH = 2.5
RANK_CORRELATION = 0.2
LOW_CORRELATION = 0.05


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table."""

    skill: str
    reason: str
    failure: tuple[Failure, ...] = ()
    pattern: tuple[str, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True):
    """Which skill to use ("" to ask a human), why, and where the error enters if taps were given."""

    skill: str
    reason: str
    first_wrong_tap: str = ""

    @property
    def next_step(self) -> str:
        """What a `next:` line says."""
        return self.skill or "ask a human"


class Symptoms(msgspec.Struct, frozen=True):
    """What is known of a failed gate.

    position_losses: loss of each position, in order. taps: (tap name, loss) in operator order.
    device_fault: the device's message, "" if every dispatch completed. prefill_passed: the verdict is of decode, and the same
    block passed by prefill.
    """

    verdict: Verdict
    position_losses: tuple[float, ...] = ()
    taps: tuple[tuple[str, float], ...] = ()
    device_fault: str = ""
    prefill_passed: bool = False


def diagnose(symptoms: Symptoms) -> Diagnosis:
    """The first rule that fits.

    Raises:
        Refusal: the gate passed: there is nothing to diagnose.
    """
    verdict = symptoms.verdict
    if verdict.passed and not symptoms.device_fault:
        raise Refusal(f"{verdict.gate} passed", expected="a failed gate", where="diagnosis")
    names = {failure.name for failure in verdict.failures}
    tap = first_jump(symptoms.taps)
    for rule in rules():
        if rule.failure and not names & set(rule.failure):
            continue
        if all(PATTERNS[pattern](symptoms) for pattern in rule.pattern):
            return Diagnosis(rule.skill, rule.reason, tap)
    return Diagnosis("", "no known pattern fits", tap)


@cache
def rules(path: Path = TABLE_PATH) -> tuple[Rule, ...]:
    """The table, checked: every pattern it names exists, every rule has a condition."""
    found = tuple(msgspec.convert(row, Rule) for row in tomllib.loads(path.read_text())["rule"])
    for rule in found:
        unknown = set(rule.pattern) - PATTERNS.keys()
        if unknown or not (rule.failure or rule.pattern):
            raise Refusal(
                f"rule {rule.reason!r} with patterns {sorted(unknown)}", expected="known ones", where=str(path)
            )
    return found


def position_losses(got: np.ndarray, want: np.ndarray) -> tuple[float, ...]:
    """sum|y - r| / sum|r| of each position (axis 0); an output that is not finite counts as infinite."""
    y = np.asarray(widen(got), np.float64).reshape(len(got), -1)
    r = np.asarray(widen(want), np.float64).reshape(len(want), -1)
    size = np.maximum(np.abs(r).sum(axis=1), 1e-30)
    return tuple(float(loss) for loss in np.nan_to_num(np.abs(y - r).sum(axis=1) / size, nan=np.inf))


def tap_losses(
    got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], order: Sequence[str]
) -> tuple[tuple[str, float], ...]:
    """(tap, relative loss) in operator order, for taps that both sides have; a named failure counts as infinite."""
    losses = []
    for tap in order:
        if tap in got and tap in want:
            figures = compare(got[tap], want[tap]).figures
            losses.append((tap, figures["rel"].value if figures else float("inf")))
    return tuple(losses)


def first_jump(taps: Sequence[tuple[str, float]]) -> str:
    """The first tap whose error is far above that of all taps before it; "" if none is."""
    before = ROUNDING
    for name, loss in taps:
        if not loss <= JUMP * before:
            return name
        before = max(before, loss)
    return ""


def _grows(symptoms: Symptoms) -> bool:
    losses = np.array(symptoms.position_losses)
    if len(losses) < 8 or not np.isfinite(losses).all():
        return False
    start = len(losses) // 8
    first, later = np.median(losses[:start]), np.median(losses[start:])
    ranks = np.argsort(np.argsort(losses, kind="stable"), kind="stable")
    return bool(later > GROWTH * first and np.corrcoef(ranks, np.arange(len(losses)))[0, 1] > RANK_CORRELATION)


def _decode_only(symptoms: Symptoms) -> bool:
    if symptoms.prefill_passed and not _bias_only(symptoms):
        return True
    by_path = {"text": [], "decode": []}
    for finding in symptoms.verdict.findings:
        path = finding.metric.split("/")[0]
        if path in by_path:
            by_path[path].append(finding.passed)
    return bool(by_path["text"]) and all(by_path["text"]) and not all(by_path["decode"])


def _missed_metrics(symptoms: Symptoms) -> set[str]:
    return {finding.metric.rsplit("/", 1)[-1] for finding in symptoms.verdict.missed}


def _bias_only(symptoms: Symptoms) -> bool:
    missed = _missed_metrics(symptoms)
    return bool(missed) and all(metric.startswith(("bias", "gain")) for metric in missed)


def _low_correlation(symptoms: Symptoms) -> bool:
    values = [f.value for f in symptoms.verdict.missed if f.metric.rsplit("/", 1)[-1].startswith("pearson_loss")]
    return bool(values) and max(values) > LOW_CORRELATION


PATTERNS: dict[str, Callable[[Symptoms], bool]] = {
    "device_fault": lambda s: bool(s.device_fault),
    "grows_with_position": _grows,
    "decode_only": _decode_only,
    "bias_only": _bias_only,
    "perplexity_only": lambda s: _missed_metrics(s) == {"perplexity"},
    "low_correlation": _low_correlation,
    "missed": lambda s: bool(s.verdict.missed),
}
