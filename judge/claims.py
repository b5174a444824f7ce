# SPDX-License-Identifier: Apache-2.0
"""What a chain of records claims, held against what was recomputed. Pure functions from records to problems."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from judge.evaluation import EvaluationLimits, differences
from judge.evidence import ChainState, Kind, Record
from judge.experiment import HOST_SHARE
from judge.policy import Policy, Threshold
from judge.verdict import Verdict
from refusal import Refusal

# Kinds that may stand after a freeze: they change nothing that was judged. A gate judged again counts as a gate.
AFTER_FREEZE = frozenset(
    {Kind.RUN, Kind.LESSON, Kind.DECISION, Kind.QUESTION, Kind.ANSWER, Kind.GATE, Kind.REPAIR, Kind.EVALUATION}
)
# Beside its own figures a record names these inputs; the other names are the model's files, artifacts and kernels.
PACK, POLICY, DESCRIPTION = "pack", "policy", "description"
_TOLERANCE = 1e-9
# Gates that have no tolerance to measure, so the policy has no thresholds for them: promises and equality.
_SPEED = {"predicted_ratio": 1.0, "host_share": HOST_SHARE}
FIXED_GATES = {"phase4.speed": _SPEED, "phase5.speed": _SPEED, "phase6": {"tokens_differing": 0.0}}

# phase -> name of a gate -> gate id of the policy
ExpectedGates = Mapping[int, Mapping[str, str]]


def last_freeze(chain: Sequence[Record]) -> Record | None:
    """The freeze record, None where there is none."""
    return next((record for record in reversed(chain) if record.entry.kind is Kind.FREEZE), None)


def open_questions(chain: Sequence[Record]) -> list[Record]:
    """The questions to a human that no answer names, in the order in which they were asked.

    An answer names the record that it answers; one of an older pack has the question's words alone.
    """
    waiting: list[Record] = []
    for record in chain:
        if record.entry.kind is Kind.QUESTION:
            waiting.append(record)
        elif record.entry.kind is Kind.ANSWER:
            waiting = [question for question in waiting if not _answers(record.entry.body, question)]
    return waiting


def _answers(answer: Mapping[str, str], question: Record) -> bool:
    if "asked" in answer:
        return answer["asked"] == question.hash
    return answer["question"] == question.entry.body["question"]


def abandoned(chain: Sequence[Record]) -> Record | None:
    """The record that ended the deployment without a proof, None where there is none."""
    return next((record for record in chain if record.entry.kind is Kind.ABANDON), None)


def last_evaluation(chain: Sequence[Record]) -> Record | None:
    """The record of the last evaluation, None where there is none."""
    return next((record for record in reversed(chain) if record.entry.kind is Kind.EVALUATION), None)


def gate_records(chain: Sequence[Record]) -> dict[int, Record]:
    """Phase -> its last gate record, passed or not."""
    found = {}
    for record in chain:
        if record.entry.kind is Kind.GATE and record.entry.subject.startswith("phase-"):
            found[int(record.entry.subject.removeprefix("phase-"))] = record
    return found


def chain_problems(state: ChainState, chain: Sequence[Record]) -> list[str]:
    """The chain is whole, holds one freeze that pins the record before it, and nothing after it that does not belong."""
    if not state.intact:
        return [f"record {state.broken} (line {state.line}): {state.problem}"]
    freezes = [record for record in chain if record.entry.kind is Kind.FREEZE]
    if len(freezes) != 1:
        return [f"{len(freezes)} freeze records, expected one"]
    freeze = freezes[0]
    problems = []
    if freeze.entry.body.get("head") != freeze.previous:
        problems.append(
            f"the freeze pins head {str(freeze.entry.body.get('head'))[:12]}, the record before it is {freeze.previous[:12]}"
        )
    strange = [r for r in chain if r.sequence > freeze.sequence and r.entry.kind not in AFTER_FREEZE]
    problems += [f"record {r.sequence} after the freeze is a {r.entry.kind}" for r in strange]
    return problems + [f"record {r.sequence} has no time: {r.time!r}" for r in chain if _moment(r) is None]


def clock_notes(chain: Sequence[Record]) -> list[str]:
    """Where the machine's clock was set back. No problem: the chain has the order, and honest clocks are set."""
    moments = [_moment(record) for record in chain]
    return [
        f"the clock was set back before record {chain[i].sequence}"
        for i in range(1, len(chain))
        if (now := moments[i]) is not None and (before := moments[i - 1]) is not None and now < before
    ]


def _moment(record: Record) -> datetime | None:
    """The moment of a record, None for what is no time or says no offset."""
    try:
        found = datetime.fromisoformat(record.time)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def order_problems(chain: Sequence[Record], phases: Iterable[int]) -> list[str]:
    """Each phase was judged when all before it had passed, as `deploy` and `gate` demand, and frozen after the last.

    This is what a record that was moved or left out violates, also when all hashes were made to fit again.
    """
    problems, passed = [], set()
    for record in chain:
        if record.entry.kind is Kind.FREEZE:
            problems += [f"frozen before phase {phase} had passed" for phase in sorted(set(phases) - passed)[:1]]
        if record.entry.kind is not Kind.GATE or not record.entry.subject.startswith("phase-"):
            continue
        number = int(record.entry.subject.removeprefix("phase-"))
        open_ones = [phase for phase in sorted(phases) if phase < number and phase not in passed]
        problems += [f"{_title(record)} before phase {phase} had passed" for phase in open_ones[:1]]
        if record.entry.body["passed"]:
            passed.add(number)
        else:
            passed.discard(number)
    return problems


def shape_problems(records: Sequence[Record]) -> list[str]:
    """Every verdict of a phase's record has what `policy_problems` reads: gate, findings and failures."""
    return [
        f"{_title(record)}: verdict {name!r} has no {part}"
        for record in records
        for name, gate in record.entry.body.get("gates", {}).items()
        for part in ("gate", "findings", "failures")
        if part not in gate
    ]


def pack_problems(records: Sequence[Record], pack: str) -> list[str]:
    """Every gate that counts, and the freeze, were made by this very pack."""
    found = {_title(record): record.entry.inputs.get(PACK, "no hash of a pack") for record in records}
    return [
        f"{title} was made by pack {value[:16]}, this pack is {pack[:16]}"
        for title, value in found.items()
        if value != pack
    ]


def description_problems(freeze: Record, description: str) -> list[str]:
    """deployment.json is what was frozen. description: its digest."""
    frozen = freeze.entry.inputs.get(DESCRIPTION, "nothing")
    return [] if frozen == description else [f"deployment.json has digest {description[:16]}, frozen was {frozen[:16]}"]


def input_problems(records: Sequence[Record], recomputed: Mapping[str, str]) -> list[str]:
    """recomputed: "model/<file>" -> SHA-256 of the files as they are now."""
    problems = []
    for record in records:
        named = {name: value for name, value in record.entry.inputs.items() if name.startswith("model/")}
        problems += differences(f"{_title(record)}:", recomputed, named)
    return problems


def label_problems(records: Sequence[Record], described: bool, provenance: bool) -> list[str]:
    """described, provenance: whether the description, and the model's own provenance.json, call the weights synthetic.

    A description may call weights synthetic of which the directory says nothing (`deploy --synthetic`), never the reverse.
    """
    problems = []
    if provenance and not described:
        problems.append(f"provenance.json says synthetic = {provenance}, the description says {described}")
    synthetic = described or provenance
    for record in records:
        if record.entry.synthetic_weights != synthetic:
            problems.append(f"{_title(record)} says synthetic = {record.entry.synthetic_weights}, expected {synthetic}")
        unlabelled = [
            name for name, figure in record.entry.figures.items() if synthetic and not figure.synthetic_weights
        ]
        problems += [f"{_title(record)}: figure {name} claims trained weights" for name in unlabelled[:3]]
    return problems


def policy_problems(records: Sequence[Record], policy: Policy) -> list[str]:
    """Each recorded verdict follows from its figures: the policy's thresholds, all of them, and the recorded values."""
    problems = []
    for record in records:
        title, entry = _title(record), record.entry
        if entry.inputs.get(POLICY) != policy.sha256:
            problems.append(
                f"{title} was judged by policy {entry.inputs.get(POLICY, 'none')[:16]}, the pack's is {policy.sha256[:16]}"
            )
        for name, gate in entry.body.get("gates", {}).items():
            problems += [f"{title}, {name}: {problem}" for problem in _gate_problems(gate, policy)]
            problems += [f"{title}, {name}: {problem}" for problem in _figure_problems(name, gate, record)]
    return problems


def _gate_problems(gate: dict, policy: Policy) -> list[str]:
    if gate["gate"] in FIXED_GATES:
        rows = FIXED_GATES[gate["gate"]]
    elif gate["gate"] in policy.gates:
        try:
            own = [msgspec.convert(row, Threshold) for row in gate.get("own_limits", ())]
            rows = {
                metric: row.threshold for metric, row in policy.with_rows(gate["gate"], own).of(gate["gate"]).items()
            }
        except (Refusal, msgspec.ValidationError) as error:
            return [f"limits of its own that the policy's rule does not allow: {error}"]
    else:
        return [f"the policy has no gate {gate['gate']}"]
    problems = []
    findings = {finding["metric"]: finding for finding in gate["findings"]}
    if gate["passed"] and findings.keys() != rows.keys():
        problems.append(f"judged by {sorted(findings)}, the policy asks for {sorted(rows)}")
    for metric in findings.keys() & rows.keys():
        finding = findings[metric]
        if not math.isclose(finding["threshold"], rows[metric], rel_tol=_TOLERANCE, abs_tol=0.0):
            problems.append(f"{metric}: threshold {finding['threshold']:g}, the policy's is {rows[metric]:g}")
        if finding["passed"] != (finding["value"] <= rows[metric]):
            problems.append(
                f"{metric}: {finding['value']:g} called {'passed' if finding['passed'] else 'missed'} at {rows[metric]:g}"
            )
    if gate["passed"] != (bool(findings) and all(f["passed"] for f in findings.values()) and not gate["failures"]):
        problems.append(f"called {'passed' if gate['passed'] else 'failed'} against its own findings")
    return problems


def _figure_problems(name: str, gate: dict, record: Record) -> list[str]:
    """The figure beside a verdict is the finding's value."""
    problems = []
    for finding in gate["findings"]:
        figure = record.entry.figures.get(f"{name}/{finding['metric']}")
        if figure is None or not math.isclose(figure.value, finding["value"], rel_tol=_TOLERANCE, abs_tol=0.0):
            problems.append(f"{finding['metric']}: finding {finding['value']:g}, figure {figure and figure.value}")
    return problems


def gate_problems(chain: Sequence[Record], expected: ExpectedGates) -> list[str]:
    """Each phase's last record passed, with every expected gate under its own policy gate.

    expected: phase -> gate name -> gate id; a phase with no names must only have passed with at least one gate.
    """
    problems, last = [], gate_records(chain)
    for phase, names in expected.items():
        record = last.get(phase)
        if record is None:
            problems.append(f"phase {phase}: no record, expected a gate that passed")
            continue
        gates = record.entry.body.get("gates", {})
        if record.entry.body.get("passed") is not True or not gates or not all(g["passed"] for g in gates.values()):
            problems.append(f"phase {phase}: its last record (number {record.sequence}) is not a passed gate")
        missing = [name for name in names if name not in gates]
        problems += [f"phase {phase}: gate {name!r} was not judged" for name in missing[:5]]
        wrong = [n for n in names.keys() & gates.keys() if gates[n]["gate"] != names[n]]
        problems += [
            f"phase {phase}: {n} was judged by {gates[n]['gate']}, expected {names[n]}" for n in sorted(wrong)[:5]
        ]
    return problems


def repeat_problems(name: str, recorded: dict, verdict: Verdict, limits: EvaluationLimits) -> list[str]:
    """Figures measured again on the same data are the recorded ones."""
    values, problems = {f["metric"]: f["value"] for f in recorded["findings"]}, []
    for finding in verdict.findings:
        before = values.get(finding.metric, math.nan)
        allowed = limits.figure_share * abs(before) + limits.figure_floor
        if not abs(finding.value - before) <= allowed:
            problems.append(
                f"{name}: {finding.metric} is {finding.value:.6g} when measured again, recorded was {before:.6g}"
            )
    return problems


def _title(record: Record) -> str:
    return f"record {record.sequence} ({record.entry.subject})"
