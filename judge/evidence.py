# SPDX-License-Identifier: Apache-2.0
"""The evidence of a deployment: an append-only chain of JSON lines, each bound to the one before it by SHA-256.

A record's hash covers its canonical JSON (sorted keys, no spaces, UTF-8) without the hash itself, and that JSON holds
the hash of the record before. Changing, removing or reordering a record therefore breaks the chain at that place, and
`verify_chain` names it. Appending takes a lock, checks the tail, writes one line and syncs it to disk. A kill may tear
the last line only; the next append cuts it off and says so in a record of its own.

A chain shows that nothing was altered after the fact, not that it was true: a record is evidence only of what can be
re-run, so each carries the hashes of its inputs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from refusal import Refusal

GENESIS = "0" * 64
SCHEMA = 1
# A record is figures and hashes, not data; a longer line is a mistake of the caller.
MAX_RECORD_BYTES = 4 << 20
TWIN_TIERS = ("event", "replay", "event+replay")


class Kind(StrEnum):
    """What a record is about."""

    GATE = "gate"
    DECISION = "decision"
    LESSON = "lesson"
    EXPERIMENT = "experiment"
    RUN = "run"
    QUESTION = "question"
    ANSWER = "answer"
    FREEZE = "freeze"
    ABANDON = "abandon"
    EVALUATION = "evaluation"
    REPAIR = "repair"


class Provenance(StrEnum):
    """Where a number comes from. They are never mixed."""

    NPU = "npu"  # measured on hardware
    TWIN = "twin"  # values computed by the digital twin
    MODEL = "model"  # time predicted by the cost model
    HOST = "host"  # measured on the host: the oracle, wall time


class Measured(msgspec.Struct, frozen=True):
    """One number of a record with its unit and provenance."""

    value: float
    unit: str
    provenance: Provenance
    synthetic_weights: bool = False


class WallTime(msgspec.Struct, frozen=True):
    """Seconds of wall time, split by what they were spent on."""

    compile: float = 0.0
    run: float = 0.0
    judge: float = 0.0
    waiting: float = 0.0  # for the agent or a human


class Entry(msgspec.Struct, frozen=True):
    """What a caller appends.

    Args:
        kind: what the record is about.
        subject: gate id, phase, or the name of a decision.
        body: the verdict, the choice with its alternatives and reason, or the lesson; plain JSON values.
        inputs: name -> SHA-256 of everything the result depends on: config, weights, policy, prompts, artifact
            keys, files of the pack.
        figures: the numbers, each with where it comes from.
        device: "npu" or "twin", "" where no device took part. tier: "event", "replay", both as
            "event+replay", or "npu".
        seeds: every seed that was drawn from.
        synthetic_weights: whether the deployed model's weights were made up; figures of a fixture beside a trained
            model carry their own flag.
    """

    kind: Kind
    subject: str
    body: dict[str, Any] = {}
    inputs: dict[str, str] = {}
    figures: dict[str, Measured] = {}
    device: str = ""
    tier: str = ""
    seeds: tuple[int, ...] = ()
    wall: WallTime = WallTime()
    synthetic_weights: bool = False


class Record(msgspec.Struct, frozen=True):
    """An entry in its place in the chain."""

    sequence: int
    previous: str
    time: str
    entry: Entry
    hash: str
    schema: int = SCHEMA


class ChainState(msgspec.Struct, frozen=True):
    """The outcome of `verify_chain`. `broken` is the sequence number of the first bad record, or -1."""

    records: int
    head: str
    broken: int = -1
    line: int = 0
    problem: str = ""
    torn_bytes: int = 0

    @property
    def intact(self) -> bool:
        """Every record stands. A torn last line is no break: it never was a record."""
        return self.broken < 0


class _Finding(msgspec.Struct, frozen=True):
    """A metric of a verdict, as a phase's record holds it."""

    metric: str
    value: float
    threshold: float
    passed: bool


class _Gate(msgspec.Struct, frozen=True):
    """A verdict of a phase's record."""

    passed: bool
    gate: str = ""
    findings: tuple[_Finding, ...] = ()
    failures: tuple[dict[str, Any], ...] = ()


class _Phase(msgspec.Struct, frozen=True):
    """The body of a phase's record."""

    passed: bool
    gates: dict[str, _Gate]
    data: dict[str, Any] = {}
    fault: str = ""


class _Freeze(msgspec.Struct, frozen=True):
    """The body of a freeze: the hash of the record before it."""

    head: str


class _Question(msgspec.Struct, frozen=True):
    """The body of a question, and of its answer, which names the question's record."""

    question: str
    answer: str = ""
    asked: str = ""


class _Experiment(msgspec.Struct, frozen=True):
    """The body of an experiment of phase 4 or 5."""

    phase: int
    name: str
    kept: bool
    reason: str


class _Worded(msgspec.Struct, frozen=True):
    """The body of a decision or a lesson; a record of an older pack may lack a field."""

    choice: str = ""
    alternatives: tuple[str, ...] = ()
    reason: str = ""
    evidence: str = ""
    symptom: str = ""
    cause: str = ""
    fix: str = ""
    check: str = ""


class _Evaluation(msgspec.Struct, frozen=True):
    """The body of an evaluation: its result, the verdict's words, and what was violated."""

    result: str
    verdict: str
    violated: tuple[str, ...] = ()


_PHASE = re.compile(r"phase-\d{1,3}", re.ASCII)
_BODIES: dict[Kind, type] = {
    Kind.FREEZE: _Freeze,
    Kind.QUESTION: _Question,
    Kind.ANSWER: _Question,
    Kind.EVALUATION: _Evaluation,
    Kind.EXPERIMENT: _Experiment,
    Kind.DECISION: _Worded,
    Kind.LESSON: _Worded,
}


def shape_of(entry: Entry) -> None:
    """Raise a ValueError for a body that readers of its kind could not read: what is there must have the right type."""
    shape = _BODIES.get(entry.kind)
    if entry.kind is Kind.GATE and entry.subject.startswith("phase-"):
        if not _PHASE.fullmatch(entry.subject):
            raise ValueError(f"subject {entry.subject!r}, expected phase-N")
        shape = _Phase
    if shape is not None:
        msgspec.convert(entry.body, shape)


def canonical(value: Any) -> bytes:
    """Canonical JSON: sorted keys, no spaces, UTF-8; NaN and infinity are refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value."""
    return hashlib.sha256(canonical(value)).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def append(path: Path, entry: Entry) -> Record:
    """Append one entry; returns the record once it is on disk.

    Raises:
        Refusal: the entry is not well-formed, or the chain's last record is broken.
    """
    _check(entry)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path) as stream:
        sequence, head, torn = _sound_tail(path, stream)
        if torn:
            note = {"cut_bytes": torn, "why": "the last line was torn by a kill and never was a record"}
            repair = _write(stream, sequence, head, Entry(Kind.REPAIR, "torn last line", note))
            sequence, head = repair.sequence + 1, repair.hash
        return _write(stream, sequence, head, entry)


def records(path: Path) -> Iterator[Record]:
    """The records in order.

    Raises:
        Refusal: the chain is broken; a torn last line is left out.
    """
    state = verify_chain(path)
    if not state.intact:
        raise _broken(path, state)
    if path.exists():
        for line in path.read_bytes().split(b"\n")[: state.records]:
            yield msgspec.json.decode(line, type=Record)


def verify_chain(path: Path, pinned: str = GENESIS) -> ChainState:
    """Recompute every hash; name the first record that does not fit. A missing file is a chain of no records.

    Args:
        pinned: the hash of a record that must still be there. Records cut off the end leave a chain that fits in
            itself; who has seen a head (a freeze, a report) passes it here.
    """
    data = path.read_bytes() if path.exists() else b""
    lines = data.split(b"\n")
    torn = len(lines.pop())
    head, count, seen = GENESIS, 0, pinned == GENESIS
    for number, line in enumerate(lines, start=1):
        problem, found = _examine(line, count, head)
        if problem:
            return ChainState(count, head, broken=count, line=number, problem=problem, torn_bytes=torn)
        head, count = found, count + 1
        seen = seen or head == pinned
    if not seen:
        problem = f"no record has the pinned hash {pinned[:12]}: records were cut off the end"
        return ChainState(count, head, broken=count, line=count + 1, problem=problem, torn_bytes=torn)
    return ChainState(count, head, torn_bytes=torn)


def _examine(line: bytes, sequence: int, previous: str) -> tuple[str, str]:
    """What is wrong with a line as record `sequence` after hash `previous` ("" if nothing), and its hash."""
    try:
        raw = json.loads(line)
        shape_of(msgspec.convert(raw, Record).entry)
        found = digest({name: value for name, value in raw.items() if name != "hash"})
    except (ValueError, RecursionError) as error:  # a wrong type, NaN and half a surrogate are ValueErrors too
        return f"not a record: {error}", ""
    if raw["sequence"] != sequence:
        return f"sequence number {raw['sequence']}, expected {sequence}: a record was removed, added or moved", ""
    if raw["previous"] != previous:
        return f"previous hash {raw['previous'][:12]}, expected {previous[:12]}: the record before it was altered", ""
    if found != raw["hash"]:
        return f"hash {raw['hash'][:12]}, but the content gives {found[:12]}: the record was altered", ""
    return "", found


def _check(entry: Entry) -> None:
    where = f"evidence entry {entry.kind}/{entry.subject}"
    if entry.device not in ("", "npu", "twin"):
        raise Refusal(f"device {entry.device!r}", expected="npu, twin or none", where=where)
    for name, value in entry.inputs.items():
        if len(value) != 64 or set(value) - set("0123456789abcdef"):
            raise Refusal(f"input {name} = {value!r}", expected="a SHA-256 in hex", where=where)
    try:
        shape_of(entry)
    except ValueError as error:
        raise Refusal(f"{error}", expected=f"the body of a {entry.kind} record", where=where) from error
    if entry.kind is Kind.GATE and not (entry.inputs and (entry.figures or entry.body)):
        raise Refusal("a gate record without inputs or without a verdict", expected="both", where=where)
    for name, figure in entry.figures.items():
        if not math.isfinite(figure.value):
            raise Refusal(f"figure {name} = {figure.value}", expected="a finite number", where=where)
        if entry.synthetic_weights and not figure.synthetic_weights:
            raise Refusal(f"figure {name} claims trained weights", expected="made-up ones, as its record", where=where)
        if figure.provenance in ("npu", "twin") and figure.provenance != entry.device:
            raise Refusal(f"figure {name} from {figure.provenance}", expected=f"device {entry.device!r}", where=where)
    if entry.device == "twin" and entry.tier not in TWIN_TIERS:
        raise Refusal(f"tier {entry.tier!r} on the twin", expected=" or ".join(TWIN_TIERS), where=where)


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """The file, open for reading and appending, under an exclusive lock of the operating system."""
    with path.open("a+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream  # closing releases the lock, also when the process is killed


def _sound_tail(path: Path, stream: BinaryIO) -> tuple[int, str, int]:
    """Next sequence number, hash of the last record, and how many bytes of a torn last line were cut."""
    state = verify_chain(path)
    if not state.intact:
        raise _broken(path, state)
    if state.torn_bytes:
        stream.truncate(os.fstat(stream.fileno()).st_size - state.torn_bytes)
        os.fsync(stream.fileno())
    return state.records, state.head, state.torn_bytes


def _write(stream: BinaryIO, sequence: int, previous: str, entry: Entry) -> Record:
    """Write one record as one line, whole and synced."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    content = {
        "schema": SCHEMA,
        "sequence": sequence,
        "previous": previous,
        "time": now,
        "entry": msgspec.to_builtins(entry),
    }
    found = digest(content)
    line = canonical(content | {"hash": found}) + b"\n"
    if len(line) > MAX_RECORD_BYTES:
        raise Refusal(f"a record of {len(line)} bytes", expected=f"at most {MAX_RECORD_BYTES}", where=entry.subject)
    stream.write(line)
    stream.flush()
    os.fsync(stream.fileno())
    return Record(sequence, previous, now, entry, found)


def _broken(path: Path, state: ChainState) -> Refusal:
    return Refusal(
        f"record {state.broken} (line {state.line}): {state.problem}",
        expected="an unbroken chain",
        where=str(path),
        next_step="restore the file from version control, or abandon the deployment: its evidence proves nothing now",
    )
