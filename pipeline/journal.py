# SPDX-License-Identifier: Apache-2.0
"""Decisions and lessons: what was chosen and what was learnt, as records of the evidence chain.

A decision names the choice, what else there was, the reason, and the record that it rests on. A lesson names the symptom,
the record that shows it, the cause, the fix, and the check that would have caught it. Both are words, and no number becomes true
by being written into one: a number in them must stand in the evidence already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import msgspec

from judge import evidence
from judge.evidence import Entry, Kind, Record
from judge.numbers import Evidence, unjustified
from pipeline import documents
from pipeline.deployment import Deployment
from refusal import Refusal

# Records whose body somebody worded: they justify no number.
WORDED = (Kind.DECISION, Kind.LESSON, Kind.QUESTION, Kind.ANSWER, Kind.ABANDON)
SHORTEST_ID = 8


@dataclass(frozen=True)
class Decision:
    """subject: what was decided. alternatives: what else there was. evidence: hash of the record that it rests on."""

    subject: str
    choice: str
    alternatives: tuple[str, ...]
    reason: str
    evidence: str

    @property
    def entry(self) -> Entry:
        return _entry(Kind.DECISION, self)


@dataclass(frozen=True)
class Lesson:
    """subject: what failed. evidence: hash of the record that shows it. cause, fix and check are empty until somebody knows."""

    subject: str
    symptom: str
    evidence: str
    cause: str = ""
    fix: str = ""
    check: str = ""

    @property
    def entry(self) -> Entry:
        return _entry(Kind.LESSON, self)


def _entry(kind: Kind, said: Decision | Lesson) -> Entry:
    body = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(said).items()}
    return Entry(kind, body.pop("subject"), body)


def write_down(deployment: Deployment, said: Decision | Lesson) -> Record:
    """Append a decision or lesson that somebody worded, and bring the documents up to date.

    Raises:
        Refusal: an empty field, a record that is not there, or a number that no evidence has.
    """
    chain = list(evidence.records(deployment.evidence))
    empty = [
        name for name, value in asdict(said).items() if not value or (isinstance(value, str) and not value.strip())
    ]
    if empty:
        raise Refusal(f"nothing under {', '.join(empty)}", expected="words", where=f"{type(said).__name__.lower()}")
    said = type(said)(**{**asdict(said), "evidence": cited(chain, said.evidence).hash})
    strange = worded_numbers(said.entry, known_numbers(deployment, chain))
    if strange:
        raise Refusal(
            f"a number that no evidence has: {'; '.join(strange)}",
            expected="numbers that a record of this deployment holds, at the precision written",
            where=f"{type(said).__name__.lower()} {said.subject}",
            next_step="say it in words, or let a verb measure it first",
        )
    record = evidence.append(deployment.evidence, said.entry)
    documents.write(deployment)
    return record


def cited(chain: Sequence[Record], prefix: str) -> Record:
    """The record whose hash begins so.

    Raises:
        Refusal: too short, none, or several.
    """
    found = [record for record in chain if record.hash.startswith(prefix)] if len(prefix) >= SHORTEST_ID else []
    if len(found) != 1:
        recent = ", ".join(f"{record.hash[:12]} ({record.entry.subject})" for record in chain[-3:])
        raise Refusal(
            f"evidence {prefix!r}: {len(found)} records", expected=f"the first {SHORTEST_ID} digits or more of one record's hash",
            where="--evidence", next_step=f"take one from plan.md; the last are {recent}",
        )  # fmt: skip
    return found[0]


def known_numbers(deployment: Deployment, chain: Iterable[Record]) -> Evidence:
    """Every number and hash that a text about this deployment may name."""
    chain = list(chain)
    measured = [msgspec.to_builtins(record) for record in chain if record.entry.kind not in WORDED]
    hashes = [record.hash for record in chain]
    return Evidence([measured, hashes, msgspec.to_builtins(deployment.description), len(chain), deployment.name])


def worded_numbers(entry: Entry, known: Evidence) -> list[str]:
    """Numbers in the words of a decision or lesson that no evidence has."""
    words = [entry.subject, *(text for value in entry.body.values() for text in _texts(value))]
    return [problem.split(": ", 1)[1] for text in words for problem in unjustified(text.replace("\n", " "), known)]


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def of_optimisation(phase: int, chain: Sequence[Record]) -> Decision:
    """What phase 4 or 5 decided at its last gate: which experiments it kept, against those that it reverted.

    Experiments before an earlier gate of the phase belong to that one.
    """
    gates = [r for r in chain if r.entry.kind == Kind.GATE and r.entry.subject == f"phase-{phase}"]
    since, gate = (gates[-2].sequence if len(gates) > 1 else -1), gates[-1]
    experiments = [
        r for r in chain if r.entry.kind == Kind.EXPERIMENT and r.entry.body["phase"] == phase and r.sequence > since
    ]
    kept = [record.entry.body["name"] for record in experiments if record.entry.body["kept"]]
    others = [f"{r.entry.body['name']} ({r.entry.body['reason']})" for r in experiments if not r.entry.body["kept"]]
    return Decision(
        f"phase-{phase}",
        ", ".join(kept) or "the plan stays as it was",
        tuple(others) or ("no other experiment was proposed",),
        "predicted faster and no less right" if kept else "no experiment was predicted faster and no less right",
        gate.hash,
    )


def harvest(chain: Iterable[Record]) -> list[Lesson]:
    """Every failed gate that a later record of the same phase turned into a passed one, unless a lesson cites it already."""
    chain = list(chain)
    told = {record.entry.body.get("evidence") for record in chain if record.entry.kind == Kind.LESSON}
    failed: dict[str, Record] = {}
    lessons = []
    for record in chain:
        entry = record.entry
        if entry.kind != Kind.GATE:
            continue
        if not entry.body["passed"]:
            failed[entry.subject] = record
        elif entry.subject in failed and (first := failed.pop(entry.subject)).hash not in told:
            lessons.append(Lesson(entry.subject, _symptom(first.entry), first.hash))
    return lessons


def _symptom(entry: Entry) -> str:
    """The gates that failed, or the fault of the device."""
    failing = [name for name, gate in entry.body.get("gates", {}).items() if not gate["passed"]]
    return f"failed: {', '.join(failing)}" if failing else str(entry.body.get("fault", "failed"))[:160]
