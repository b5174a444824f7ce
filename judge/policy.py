# SPDX-License-Identifier: Apache-2.0
"""policy.toml: the thresholds of every gate, each with the two measured numbers that justify it.

    floor           the largest loss of an honest implementation: an independent oracle that rounds where the design
                    stores, over several seeds
    weakest_value   the smallest loss among the seeded faults that this metric answers for (`catches`)

The rule: a threshold is at least the floor, at most twice the floor (three times for the figure of a worst place), and
at most half of the weakest fault. Every seeded fault of a gate is caught by one of its metrics, or, where this gate
cannot show it, by the gate named under `elsewhere`. A file that breaks the rule, or lacks a number, is refused.
`judge.measure_policy` writes the file; nobody types a number into it.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from refusal import Refusal

POLICY_PATH = Path(__file__).with_name("policy.toml")
FLOOR_FACTOR = 2.0
WORST_PLACE_FACTOR = 3.0
FAULT_SHARE = 0.5
_WORST_PLACES = ("_worst_position", "_worst_head", "kl_max", "gap_max")
# Thresholds are written rounded; the comparison forgives that and no more.
_ROUNDING = 1e-6


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much a gate must have looked at."""

    kernel_dispatches: int
    block_positions: int
    text_positions: tuple[int, ...]
    greedy_tokens: tuple[int, ...]
    runner_tokens: int
    identity_steps: tuple[int, ...]


class Threshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One metric of one gate."""

    gate: str
    metric: str
    threshold: float
    floor: float
    floor_seeds: tuple[int, ...]
    weakest_fault: str
    weakest_value: float
    catches: tuple[str, ...]
    measured: str


class GatePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One gate: the faults that were seeded for it, and where those are caught that it cannot show itself."""

    gate: str
    faults: tuple[str, ...]
    measured_on: str
    elsewhere: dict[str, str] = {}


class Policy(msgspec.Struct, frozen=True):
    """The whole file. `sha256` is over its bytes and goes into every record."""

    limits: Limits
    gates: dict[str, GatePolicy]
    thresholds: dict[str, dict[str, Threshold]]
    sha256: str

    def of(self, gate: str) -> dict[str, Threshold]:
        """The thresholds of a gate by metric.

        Raises:
            Refusal: the policy has no such gate.
        """
        found = self.thresholds.get(gate)
        if not found:
            raise Refusal(
                f"gate {gate!r}",
                expected=f"one of {', '.join(sorted(self.thresholds))}",
                where="policy.toml",
                next_step=f"python -m judge.measure_policy --gate {gate}",
            )
        return found


def floor_factor(metric: str) -> float:
    """How far above its floor a threshold of this metric may lie."""
    return WORST_PLACE_FACTOR if metric.endswith(_WORST_PLACES) else FLOOR_FACTOR


def load_policy(path: Path = POLICY_PATH) -> Policy:
    """Read and check a policy file.

    Raises:
        Refusal: not TOML, a missing or unknown key, a number that breaks the rule, a fault that nothing catches.
    """
    data = path.read_bytes()
    try:
        raw = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Refusal(f"not TOML: {error}", where=str(path)) from error
    unknown = sorted(raw.keys() - {"limits", "gate", "threshold"})
    if unknown:
        raise Refusal(f"unknown tables {', '.join(unknown)}", expected="limits, gate, threshold", where=str(path))
    limits = _convert(raw.get("limits"), Limits, path)
    gates = _unique(path, "gate", [(g.gate, g) for g in _list(raw, "gate", GatePolicy, path)])
    thresholds: dict[str, dict[str, Threshold]] = {}
    for entry in _list(raw, "threshold", Threshold, path):
        _check_rule(entry, path)
        of_gate = thresholds.setdefault(entry.gate, {})
        if entry.metric in of_gate:
            raise Refusal(f"two thresholds for {entry.gate} {entry.metric}", expected="one", where=str(path))
        of_gate[entry.metric] = entry
    _check_coverage(gates, thresholds, path)
    return Policy(limits, gates, thresholds, hashlib.sha256(data).hexdigest())


def _list(raw: dict[str, Any], table: str, kind: type, path: Path) -> list[Any]:
    rows = raw.get(table)
    if not isinstance(rows, list) or not rows:
        raise Refusal(f"no [[{table}]]", expected="at least one", where=str(path))
    return [_convert(row, kind, path) for row in rows]


def _convert(value: Any, kind: type, path: Path) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        name = value.get("gate", "") + " " + value.get("metric", "") if isinstance(value, dict) else ""
        next_step = "python -m judge.measure_policy --write"
        raise Refusal(f"{name.strip() or kind.__name__}: {error}", where=str(path), next_step=next_step) from error


def _unique(path: Path, what: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Refusal(f"a {what} stands twice", expected="each once", where=str(path))
    return found


def _check_rule(entry: Threshold, path: Path) -> None:
    """The two measured numbers must justify the threshold."""
    where = f"{path}: {entry.gate} {entry.metric}"
    numbers = (entry.threshold, entry.floor, entry.weakest_value)
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise Refusal(f"numbers {numbers}", expected="finite and not negative", where=where)
    if len(set(entry.floor_seeds)) < 2:
        raise Refusal(f"floor over seeds {list(entry.floor_seeds)}", expected="at least two seeds", where=where)
    if not entry.catches or entry.weakest_fault not in entry.catches:
        raise Refusal(
            f"weakest fault {entry.weakest_fault!r}, catches {list(entry.catches)}",
            expected="a metric that catches at least one fault, the weakest among them",
            where=where,
        )
    if not entry.measured:
        raise Refusal("no command in `measured`", expected="how both numbers were measured", where=where)
    factor = floor_factor(entry.metric)
    if entry.threshold < entry.floor * (1 - _ROUNDING):
        raise Refusal(f"threshold {entry.threshold}", expected=f"at least the honest floor {entry.floor}", where=where)
    if entry.threshold > factor * entry.floor * (1 + _ROUNDING):
        limit = f"at most {factor:g} x floor = {factor * entry.floor:.6g}"
        raise Refusal(f"threshold {entry.threshold}", expected=limit, where=where)
    if entry.weakest_value <= 0 or entry.threshold > FAULT_SHARE * entry.weakest_value * (1 + _ROUNDING):
        limit = f"at most half of the weakest fault {entry.weakest_fault} = {FAULT_SHARE * entry.weakest_value:.6g}"
        raise Refusal(f"threshold {entry.threshold}", expected=limit, where=where)


def _check_coverage(gates: dict[str, GatePolicy], thresholds: dict[str, dict[str, Threshold]], path: Path) -> None:
    """Every gate has thresholds, every threshold a gate, every seeded fault a metric that catches it."""
    if gates.keys() != thresholds.keys():
        odd = ", ".join(sorted(gates.keys() ^ thresholds.keys()))
        raise Refusal(f"gates without thresholds, or thresholds without a gate: {odd}", where=str(path))
    caught = {gate: {f for entry in rows.values() for f in entry.catches} for gate, rows in thresholds.items()}
    for name, gate in gates.items():
        for fault in gate.faults:
            if fault in caught[name]:
                continue
            other = gate.elsewhere.get(fault, "")
            if fault not in caught.get(other, set()):
                raise Refusal(
                    f"no metric of {name} catches the seeded fault {fault}",
                    expected=f"one that does, or under `elsewhere` a gate that does (found {other!r})",
                    where=str(path),
                )
        strange = caught[name] - set(gate.faults)
        if strange or not gate.faults:
            raise Refusal(f"{name} catches {sorted(strange)}", expected="faults listed for that gate", where=str(path))
