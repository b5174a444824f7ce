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
from collections.abc import Iterable
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

    metric: str
    threshold: float
    floor: float
    weakest_fault: str
    weakest_value: float
    catches: tuple[str, ...]


class GatePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One gate.

    faults: what was seeded for it. elsewhere: fault -> the gate that catches it, where this one cannot show it.
    floor_seeds: seeds (of data or of text windows) that the floors are the largest over.
    measured: the command that measured both numbers. measured_on: the data or the model.
    """

    gate: str
    faults: tuple[str, ...]
    floor_seeds: tuple[int, ...]
    measured: str
    measured_on: str
    thresholds: tuple[Threshold, ...]
    elsewhere: dict[str, str] = {}


class Policy(msgspec.Struct, frozen=True):
    """The whole file. `sha256` is over its bytes and goes into every record."""

    limits: Limits
    gates: dict[str, GatePolicy]
    sha256: str

    def of(self, gate: str) -> dict[str, Threshold]:
        """The thresholds of a gate by metric.

        Raises:
            Refusal: the policy has no such gate.
        """
        found = self.gates.get(gate)
        if found is None:
            raise Refusal(
                f"gate {gate!r}",
                expected=f"one of {', '.join(sorted(self.gates))}",
                where="policy.toml",
                next_step=f"python -m judge.measure_policy --gate {gate} --write",
            )
        return {row.metric: row for row in found.thresholds}

    def with_rows(self, gate: str, rows: Iterable[Threshold]) -> Policy:
        """The policy with other rows for some metrics of a gate; each must keep the rule.

        Raises:
            Refusal: a row whose numbers do not justify its threshold, or for a metric or fault that the gate does not have.
        """
        known, before = self.of(gate), self.gates[gate]
        for row in rows:
            if row.metric not in known or not set(row.catches) <= set(known[row.metric].catches):
                raise Refusal(f"{row.metric} for {list(row.catches)}", expected="a metric of the gate and faults it catches",
                              where=gate)  # fmt: skip
            _check_threshold(row, f"limits of this model: {gate} {row.metric}")
            known[row.metric] = row
        changed = msgspec.structs.replace(before, thresholds=tuple(known.values()))
        return msgspec.structs.replace(self, gates=self.gates | {gate: changed})


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
    unknown = sorted(raw.keys() - {"limits", "gate"})
    rows = raw.get("gate")
    if unknown or not isinstance(rows, list) or not rows:
        raise Refusal(f"tables {sorted(raw)}", expected="limits and at least one gate", where=str(path))
    limits = _convert(raw.get("limits"), Limits, path)
    gates: dict[str, GatePolicy] = {}
    for row in rows:
        gate = _convert(row, GatePolicy, path)
        if gate.gate in gates:
            raise Refusal(f"gate {gate.gate} stands twice", expected="each once", where=str(path))
        gates[gate.gate] = gate
    check_rule(gates, str(path))
    return Policy(limits, gates, hashlib.sha256(data).hexdigest())


def check_rule(gates: dict[str, GatePolicy], where: str) -> None:
    """Refuse numbers that do not justify their threshold, and seeded faults that nothing catches."""
    for gate in gates.values():
        _check_gate(gate, where)
        for row in gate.thresholds:
            _check_threshold(row, f"{where}: {gate.gate} {row.metric}")
    for gate in gates.values():
        for fault in gate.faults:
            if fault not in caught_by(gate) and fault not in caught_by(gates.get(gate.elsewhere.get(fault, ""))):
                raise Refusal(
                    f"no metric of {gate.gate} catches the seeded fault {fault}",
                    expected=f"one that does, or a gate under `elsewhere` (found {gate.elsewhere.get(fault, '')!r})",
                    where=where,
                )


def caught_by(gate: GatePolicy | None) -> set[str]:
    """The faults that a gate's metrics answer for."""
    return {fault for row in gate.thresholds for fault in row.catches} if gate else set()


def _convert(value: Any, kind: type, path: Path) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        name = str(value.get("gate", "")) if isinstance(value, dict) else ""
        next_step = "python -m judge.measure_policy --write"
        raise Refusal(f"{name or kind.__name__}: {error}", where=str(path), next_step=next_step) from error


def _check_gate(gate: GatePolicy, where: str) -> None:
    where = f"{where}: {gate.gate}"
    if not gate.thresholds or not gate.faults:
        counts = f"{len(gate.thresholds)} thresholds, {len(gate.faults)} seeded faults"
        raise Refusal(counts, expected="at least one of each", where=where)
    if len({row.metric for row in gate.thresholds}) != len(gate.thresholds):
        raise Refusal("a metric with two thresholds", expected="one each", where=where)
    if len(set(gate.floor_seeds)) < 2:
        raise Refusal(f"floors over seeds {list(gate.floor_seeds)}", expected="at least two seeds", where=where)
    if not gate.measured or not gate.measured_on:
        raise Refusal("no `measured` or `measured_on`", expected="how and on what both were measured", where=where)
    strange = caught_by(gate) - set(gate.faults)
    if strange:
        raise Refusal(f"catches {sorted(strange)}", expected="faults that are listed for the gate", where=where)


def _check_threshold(row: Threshold, where: str) -> None:
    """The two measured numbers must justify the threshold."""
    numbers = (row.threshold, row.floor, row.weakest_value)
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise Refusal(f"numbers {numbers}", expected="finite and not negative", where=where)
    if row.weakest_fault not in row.catches:
        found = f"weakest fault {row.weakest_fault!r}, catches {list(row.catches)}"
        raise Refusal(found, expected="the weakest among those that the metric catches", where=where)
    if row.threshold < row.floor * (1 - _ROUNDING):
        raise Refusal(f"threshold {row.threshold}", expected=f"at least the honest floor {row.floor}", where=where)
    highest = floor_factor(row.metric) * row.floor
    if row.threshold > highest * (1 + _ROUNDING):
        limit = f"at most {floor_factor(row.metric):g} x floor = {highest:.6g}"
        raise Refusal(f"threshold {row.threshold}", expected=limit, where=where)
    if row.weakest_value <= 0 or row.threshold > FAULT_SHARE * row.weakest_value * (1 + _ROUNDING):
        limit = f"at most half of the weakest fault {row.weakest_fault} = {FAULT_SHARE * row.weakest_value:.6g}"
        raise Refusal(f"threshold {row.threshold}", expected=limit, where=where)
