# SPDX-License-Identifier: Apache-2.0
"""From measured numbers to thresholds: the rule of `judge.policy`, applied once, for every gate alike.

A metric's threshold is the factor times its floor; it answers for the faults that are at least twice that. A fault
which no metric reaches in that way pulls the threshold of the metric that shows it best down to half of itself, as
long as that leaves a margin above the floor. What is left must be caught by another gate, by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor as whole
from math import log10

from judge.gates import Gathered
from judge.metrics import UNBOUNDED
from judge.policy import FAULT_SHARE, GatePolicy, Threshold, caught_by, floor_factor
from judge.verdict import worst_figures
from refusal import Refusal

# A threshold below this many floors would fail honest work by chance.
MARGIN = 1.5
# Near zero in honest work and of few elements in one row: chance alone would exceed a bound on these.
BY_CHANCE = ("bias_worst_position", "bias_worst_head", "gain_worst_position", "gain_worst_head")
Figures = dict[str, float]


@dataclass
class Measurement:
    """Floors and faults of one gate.

    floors: metric -> largest honest value over all seeds. faults: fault -> metric -> smallest value.
    elsewhere: gates that may catch what this one cannot show, the best first.
    only: names of the figures that become thresholds; empty for all. model: directory name of a trained model.
    """

    gate: str
    seeds: tuple[int, ...]
    measured_on: str
    floors: Figures = field(default_factory=dict)
    faults: dict[str, Figures] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    model: str = ""

    @property
    def command(self) -> str:
        command = f"python -m judge.measure_policy --gate {self.gate}"
        return f"{command} --model models/{self.model}" if self.model else command

    def add_floor(self, figures: Figures) -> None:
        """One honest run."""
        for name, value in figures.items():
            if name.endswith(BY_CHANCE) or (self.only and name.rsplit("/", 1)[-1] not in self.only):
                continue
            self.floors[name] = max(value, self.floors.get(name, 0.0))

    def add_fault(self, fault: str, figures: Figures) -> None:
        """One run with a fault planted."""
        kept = self.faults.setdefault(fault, {})
        for name, value in figures.items():
            kept[name] = min(value, kept.get(name, UNBOUNDED))


def figures_of(found: Gathered, *, honest: bool = False) -> Figures:
    """What a gate measured: metric -> worst value.

    honest: for a floor. A share of misses (k of n) then counts as (k + 1) of n: none in n is no proof that the rate is
    zero, only that it is below what n can resolve.
    """
    figures: Figures = {}
    for prefix, rows in found.comparisons.items():
        figures |= {metric: figure.value for metric, (_, figure) in worst_figures(prefix, rows).items()}
        for comparison in rows.values() if honest else ():
            for name, figure in comparison.figures.items():
                if name.endswith("_miss"):
                    metric = f"{prefix}/{name}".lstrip("/")
                    figures[metric] = max(figures[metric], figure.value + 1 / comparison.positions)
    return figures


def select(measured: Measurement, others: dict[str, GatePolicy]) -> GatePolicy:
    """The gate's thresholds by the rule.

    Args:
        others: the gates that are selected already; those named in `elsewhere` must be among them.

    Raises:
        Refusal: a fault that no metric shows and no other gate catches.
    """
    # Twice a floor of zero is zero: the honest runs had no such loss at all, which bounds nothing.
    chosen = {name: floor_factor(name) * floor for name, floor in measured.floors.items() if floor > 0}
    caught = {
        fault for fault in measured.faults if any(_reaches(measured, fault, name, chosen[name]) for name in chosen)
    }
    elsewhere = {}
    for fault in sorted(measured.faults.keys() - caught):
        metric = max(chosen, key=lambda name: _ratio(measured, fault, name))
        half = FAULT_SHARE * measured.faults[fault].get(metric, 0.0)
        if half >= MARGIN * measured.floors[metric] and half > 0:
            chosen[metric] = min(chosen[metric], half)
        else:
            elsewhere[fault] = _other_gate(measured, fault, others, metric)
    rows = [row for name in chosen if (row := _threshold(measured, name, chosen[name]))]
    return GatePolicy(
        measured.gate,
        tuple(measured.faults),
        measured.seeds,
        measured.command,
        measured.measured_on,
        tuple(rows),
        elsewhere,
    )


def _other_gate(measured: Measurement, fault: str, others: dict[str, GatePolicy], metric: str) -> str:
    for gate in measured.elsewhere:
        if fault in caught_by(others.get(gate)):
            return gate
    value, floor = measured.faults[fault].get(metric, 0.0), measured.floors[metric]
    raise Refusal(
        f"fault {fault} is only {value:.3g} in {metric}, whose floor is {floor:.3g}",
        expected=f"at least {2 * MARGIN:g} floors in some metric, or another gate that catches it",
        where=measured.gate,
        next_step="make the fault visible: other data, or the fixture model",
    )


def _reaches(measured: Measurement, fault: str, metric: str, threshold: float) -> bool:
    value = measured.faults[fault].get(metric, 0.0)
    return value > 0 and FAULT_SHARE * value >= threshold


def _ratio(measured: Measurement, fault: str, metric: str) -> float:
    return measured.faults[fault].get(metric, 0.0) / max(measured.floors[metric], 1e-30)


def _threshold(measured: Measurement, metric: str, threshold: float) -> Threshold | None:
    """The entry of a metric, or None where it answers for no fault."""
    floor, limit = _round(measured.floors[metric], 6, up=True), _round(threshold, 4, up=False)
    values = {f: v[metric] for f, v in measured.faults.items() if metric in v and _reaches(measured, f, metric, limit)}
    if not values:
        return None
    weakest = min(values, key=lambda fault: values[fault])
    return Threshold(metric, limit, floor, weakest, _round(values[weakest], 6, up=False), tuple(sorted(values)))


def _round(value: float, significant: int, *, up: bool) -> float:
    """To significant digits, toward the side that keeps the rule."""
    if value <= 0:
        return 0.0
    digits = significant - 1 - whole(log10(value))
    scaled = value * 10.0**digits
    return round((whole(scaled) + (1 if up and whole(scaled) != scaled else 0)) / 10.0**digits, max(digits, 0))
