# SPDX-License-Identifier: Apache-2.0
"""Phase 7's verdict: which properties a deployment must have, which were looked at, and PROVEN, NOT PROVEN or BLOCKED.

Nothing here reads a verdict that somebody wrote: each property is decided anew from files, records and re-runs. A
deployment is PROVEN only if every property was looked at and holds. One that is violated is named; what was not looked at
after that is listed as such. BLOCKED needs an obstacle that a person can reproduce and take away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec


class Result(StrEnum):
    """The three legal ends."""

    PROVEN = "PROVEN"
    NOT_PROVEN = "NOT PROVEN"
    BLOCKED = "BLOCKED"

    @property
    def exit_code(self) -> int:
        return {Result.PROVEN: 0, Result.NOT_PROVEN: 1, Result.BLOCKED: 3}[self]


# Property -> what it claims, in the order in which they are looked at: the cheap ones first.
PROPERTIES: dict[str, str] = {
    "pack-as-shipped": "the pack that evaluates is its manifest, file by file, and was the pack of every record",
    "evidence-unbroken": "every record of the chain fits its hash and the one before it, up to the freeze and after",
    "deployment-as-frozen": "model, device and choices are those that were frozen",
    "inputs-unchanged": "config, weights and tokenizer have the hashes that every record names",
    "weights-labelled": "made-up weights are called synthetic in description, records and figures",
    "thresholds-of-the-policy": "every recorded verdict follows from its figures and the policy's own thresholds",
    "every-gate-passed": "each phase has a last record that passed, judged after those before it, with every gate that the plan asks for",
    "documents-from-evidence": "every number of the documents stands in the evidence",
    "artifacts-rebuilt": "text and kernels built again from the model and the choices have the recorded keys",
    "oracle-holds": "the FP32 oracle agrees with an independent implementation on tokens drawn after the freeze",
    "all-layers-ran": "the device ran every design of every layer, on the planned slices, for each token",
    "work-on-the-device": "multiply-adds counted on the device cover the model's, and the logits are what it wrote",
    "model-holds": "texts and prompts drawn after the freeze pass the model's gate",
    "tokens-repeat": "the runner gives the recorded tokens again",
    "blocks-hold": "the blocks pass their gate on tokens drawn after the freeze",
    "kernels-hold": "every kernel passes its gate on data drawn after the freeze",
    "figures-repeat": "kernel figures measured again with the recorded seeds are the recorded ones",
    "whole-model": "no layer of the model was left out",
}


class EvaluationLimits(msgspec.Struct, frozen=True):
    """How much an evaluation looks at, at least. Thresholds stay the policy's; only amounts are its own.

    They are smaller than the policy's limits because the gates have passed in full already: an evaluation has to catch what
    holds on known tokens alone, and any such cheat shows on the first fresh ones.
    """

    # One window, in one prefill bucket: a wrong position, mask or layer shows in every row.
    text_positions: int = 64
    # EG-02: a token from prefill proves nothing about decode; sixteen steps pass the first groups of the KV cache.
    greedy_tokens: int = 16
    # Two prompts: an answer that is canned for one shows on the other.
    prompts: int = 2
    # Tokens of a prompt, at least and at most.
    prompt_tokens: tuple[int, int] = (16, 31)
    # Figures measured again on the same data differ by the order of FP32 sums on the host alone.
    figure_share: float = 0.02
    figure_floor: float = 1e-7


class Check(msgspec.Struct, frozen=True):
    """One property, looked at. problems: what violates it, each with what was found and expected."""

    name: str
    problems: tuple[str, ...] = ()
    looked_at: str = ""

    @property
    def holds(self) -> bool:
        return not self.problems


class Evaluation(msgspec.Struct, frozen=True):
    """The outcome. obstacle: why it is blocked. synthetic, partial: what the deployment is, whatever it claims."""

    deployment: str
    checks: tuple[Check, ...]
    nonce: str
    synthetic: bool
    device: str
    obstacle: str = ""
    facts: dict[str, str] = {}

    @property
    def result(self) -> Result:
        """Violated beats blocked: an obstacle does not hide what was found before it."""
        if self.violated:
            return Result.NOT_PROVEN
        if self.obstacle:
            return Result.BLOCKED
        return Result.NOT_PROVEN if self.unchecked else Result.PROVEN

    @property
    def verdict(self) -> str:
        """The verdict line's words: made-up weights are never proven as if they were trained, the twin never as an NPU."""
        if self.result is not Result.PROVEN:
            return str(self.result)
        weights = " on synthetic weights" if self.synthetic else ""
        return f"{Result.PROVEN}{weights} ({'values by the twin' if self.device == 'twin' else self.device})"

    @property
    def violated(self) -> tuple[str, ...]:
        """Names of the properties that do not hold, in order."""
        return tuple(check.name for check in self.checks if not check.holds)

    @property
    def unchecked(self) -> tuple[str, ...]:
        """Names of the properties that nobody looked at."""
        seen = {check.name for check in self.checks}
        return tuple(name for name in PROPERTIES if name not in seen)


def check(name: str, problems: Iterable[str], looked_at: str = "") -> Check:
    """A check of a known property; KeyError for an unknown one. A check that looked at nothing does not hold."""
    PROPERTIES[name]
    found = tuple(problems)
    return Check(name, found if found or looked_at else ("nothing was looked at",), looked_at)


def differences(what: str, found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """Problems of two tables of hashes that should be equal: changed, missing and additional entries by name."""
    lines = []
    for name in sorted(found.keys() | expected.keys()):
        have, want = found.get(name), expected.get(name)
        if have != want:
            lines.append(f"{what} {name}: found {_short(have)}, expected {_short(want)}")
    return lines


def as_json(evaluation: Evaluation) -> dict:
    """The evaluation as plain JSON values."""
    return msgspec.to_builtins(evaluation) | {
        "result": str(evaluation.result),
        "verdict": evaluation.verdict,
        "violated": list(evaluation.violated),
        "not_checked": list(evaluation.unchecked),
    }


def report(evaluation: Evaluation) -> str:
    """The evaluation for people, in Markdown."""
    rows = {check.name: check for check in evaluation.checks}
    lines = [
        f"# Evaluation of {evaluation.deployment}", "", f"**{evaluation.verdict}**", "",
        *([f"Obstacle: {evaluation.obstacle}", ""] if evaluation.obstacle else []),
        *(f"- {name}: {value}" for name, value in evaluation.facts.items()), "",
        "| property | outcome | looked at |", "|---|---|---|",
    ]  # fmt: skip
    for name in PROPERTIES:
        found = rows.get(name)
        outcome = "not checked" if found is None else "holds" if found.holds else "VIOLATED"
        lines.append(f"| {name} | {outcome} | {found.looked_at if found else ''} |")
    for found in evaluation.checks:
        if not found.holds:
            lines += ["", f"## {found.name}", "", f"The claim: {PROPERTIES[found.name]}.", ""]
            lines += [f"- {problem}" for problem in found.problems]
    return "\n".join(lines) + "\n"


def _short(value: str | None) -> str:
    return "nothing" if value is None else value[:16]
