# SPDX-License-Identifier: Apache-2.0
"""Numbers in prose: each must stand in the evidence, as precisely as it is written.

A number is what reads as one: digits that are not part of a name (phase-3, bf16, prefill_64 are names). It is justified by
any number of the evidence that rounds to it at the precision it is written with; a percentage also by a share. Bare
whole numbers below ten are words, unless a unit follows. A hexadecimal word of eight digits and more is a hash, and must
begin one of the evidence's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

_HASH = re.compile(r"(?<![\w.])(?=[0-9a-f]*\d)[0-9a-f]{8,64}(?![\w.]\w)")
_NUMBER = re.compile(
    r"(?<![A-Za-z_\d.])(?<![A-Za-z]-)(?P<sign>(?<!\w)-)?(?P<digits>\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?)"
)
_IN_TEXT = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_UNIT = re.compile(
    r"\s?(%|percent|x\b|×|[num]?s\b|seconds?|minutes?|hours?|tok|[KMGT]i?B\b|T?OPS|[GT]?FLOP|W\b|times\b)"
)
_LIST_MARK = re.compile(r"^\s*\d+[.)]\s", re.MULTILINE)


class Evidence:
    """The numbers and hashes that stand in plain JSON values, those within strings included."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.numbers: set[float] = set()
        self.hashes: set[str] = set()
        for value in values:
            self._add(value)

    def _add(self, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                self._add(key)
                self._add(inner)
        elif isinstance(value, list | tuple):
            self.numbers.add(float(len(value)))
            for inner in value:
                self._add(inner)
        elif isinstance(value, str):
            if re.fullmatch(r"[0-9a-f]{64}", value):
                self.hashes.add(value)
            else:
                self.numbers |= {float(found) for found in _IN_TEXT.findall(value)}
                self.numbers |= {abs(float(found)) for found in _IN_TEXT.findall(value)}
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            self.numbers.add(float(value))

    def justifies(self, written: str, percent: bool) -> bool:
        """Whether a number, as written, is one of the evidence's at that precision."""
        value = float(written)
        slack = _half_a_digit(written)
        shares = (1.0, 100.0) if percent else (1.0,)
        return any(abs(number * share - value) <= slack * (1 + 1e-9) for number in self.numbers for share in shares)


def unjustified(text: str, evidence: Evidence) -> list[str]:
    """Numbers and hashes of a text that no evidence has, each with the line it stands in."""
    problems = []
    text = _LIST_MARK.sub(lambda mark: " " * len(mark.group()), text)
    for number, line in enumerate(text.split("\n"), start=1):
        for found in _HASH.finditer(line):
            if not any(known.startswith(found.group()) for known in evidence.hashes) and not found.group().isdigit():
                problems.append(f"line {number}: hash {found.group()[:16]} is none of the evidence's")
        rest = _HASH.sub(lambda found: found.group() if found.group().isdigit() else " " * len(found.group()), line)
        problems += [f"line {number}: {value} ({line.strip()[:80]})" for value in _strange(rest, evidence)]
    return problems


def _strange(line: str, evidence: Evidence) -> list[str]:
    found = []
    for match in _NUMBER.finditer(line):
        digits = match["digits"].rstrip(",").replace(",", "")
        unit = _UNIT.match(line, match.end())
        word = digits.isdigit() and int(digits) < 10 and not unit
        written = (match["sign"] or "") + digits
        percent = bool(unit) and unit[1] in ("%", "percent")
        if not word and not evidence.justifies(written, percent) and not evidence.justifies(digits, percent):
            found.append(written)
    return found


def _half_a_digit(written: str) -> float:
    """Half of the last written digit's place."""
    mantissa, _, exponent = written.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** (int(exponent or 0) - decimals) if decimals or exponent else 0.0
