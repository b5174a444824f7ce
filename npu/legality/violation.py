# SPDX-License-Identifier: Apache-2.0
"""Violation: one limit that a program does not keep, told so that a person can mend it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """What a finding means for the program."""

    ERROR = "error"  # the compiler refuses it, or silicon does something undefined
    HOUSE = "house rule"  # the compiler takes it with a warning; designs of this pack must not rely on it
    WARNING = "warning"  # cannot be shown right or wrong from the program alone; never a reason to refuse


class Basis(StrEnum):
    """How the limit is known."""

    STATED = "stated"  # by the target model, the register map, a verifier or a vendor document
    INFERRED = "inferred"  # from behaviour that somebody reported, or from how the parts work together
    ESTIMATED = "estimated"  # the number asked is an estimate; the limit itself is stated


@dataclass(frozen=True)
class Violation:
    """One finding.

    Args:
        limit: name of the limit, as a noun ("data memory", "task queue").
        asked: what the program asks for.
        available: what there is.
        unit: unit of both ("bytes", "locks"); "" where they speak for themselves.
        where: device, tile, channel, operation or location in the text.
        source: where the limit is written down.
        change: what to change, in one sentence without a full stop.
        detail: how the number asked comes about, where that is not obvious.
    """

    limit: str
    asked: int | str
    available: int | str
    where: str
    source: str
    change: str
    unit: str = ""
    detail: str = ""
    severity: Severity = Severity.ERROR
    basis: Basis = Basis.STATED

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.where}: {self.limit}: asks {self.asked}{unit}, there is {self.available}{unit}"


def explain(violation: Violation) -> str:
    """Several lines for a person: what was asked, the limit and its source, and what to change."""
    unit = f" {violation.unit}" if violation.unit else ""
    heading = {
        Severity.ERROR: "Not legal",
        Severity.HOUSE: "Not allowed in this pack's designs",
        Severity.WARNING: "Worth a look",
    }[violation.severity]
    certainty = {
        Basis.STATED: "The limit is stated",
        Basis.INFERRED: "The limit is inferred, not stated by a vendor",
        Basis.ESTIMATED: "The limit is stated, the number asked is an estimate",
    }[violation.basis]
    lines = [
        f"{heading}: {violation.limit}, in {violation.where}.",
        f"  asked:  {violation.asked}{unit}" + (f" ({violation.detail})" if violation.detail else ""),
        f"  limit:  {violation.available}{unit}",
        f"  source: {violation.source}. {certainty}.",
        f"  change: {violation.change}.",
    ]
    return "\n".join(lines)
