# SPDX-License-Identifier: Apache-2.0
"""The file that run_here writes, field by field: types, ranges, and whether it agrees with the emission and with itself.

Whoever can write the file can also seal it, so nothing that it concludes is believed: what can be computed from other
fields is computed again, and a file that says something else than its own figures is refused. A result that is honestly
bad (a dispatch that did not complete, a figure beyond its threshold) is no such file: it is judged, and fails.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from judge.evidence import digest
from refusal import Refusal

LEAST_ITERATIONS = 20
_SAME = 1e-9  # of a spread that is computed again from the times: JSON keeps every bit of them

Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
FromZero = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Stamp = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An output against a reference, as `run_here.figures` defines it: all of them, and none below zero."""

    abs: FromZero
    rel: FromZero
    pearson_loss: Annotated[float, msgspec.Meta(ge=0, le=2)]
    bias: FromZero
    gain: FromZero

    def values(self) -> dict[str, float]:
        """Metric -> value, by the policy's names."""
        return msgspec.structs.asdict(self)


WHOLE_OUTPUT = Figures.__struct_fields__  # the metrics that can be computed without the outputs' shapes


class Read(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One output. output: SHA-256 of its bytes. within: whether it is there, finite, fresh and within the thresholds."""

    output: Hash
    equal_to_twin: Share
    failures: tuple[Literal["unwritten", "non_finite", "stale"], ...]
    within: bool
    against_twin: Figures | None = None
    against_oracle: Figures | None = None


class Ran(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One dispatch; without an entry where it did not come to an end."""

    status: str
    entry: str = ""


class Spread(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the times of one design, in seconds."""

    median: Seconds
    quartile_low: Seconds
    quartile_high: Seconds
    least: Seconds
    most: Seconds


class Design(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of one design."""

    artifact: Hash
    gate: str
    status: str
    dispatches: tuple[Ran, ...]
    reads: tuple[Read, ...]
    passed: bool
    seconds: tuple[Seconds, ...]
    time: Spread | None = None
    build: str = ""
    said: str = ""


class ResultsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file, without its seal."""

    schema: Literal[1]
    emission: Hash
    started: Stamp
    ended: Stamp
    iterations: Annotated[int, msgspec.Meta(ge=LEAST_ITERATIONS)]
    designs: dict[str, Design]
    machine: dict[str, str]
    tools: dict[str, str]
    tool_hashes: dict[str, Hash] = {}


def read_results(path: Path, data: bytes) -> ResultsFile:
    """The file's content, once its seal and every field fit.

    Raises:
        Refusal: it is not what run_here wrote.
    """
    try:
        raw = json.loads(data)
        sealed = raw.pop("digest")
        found = digest(raw)  # a number that is none has no canonical form: a ValueError
        results = msgspec.convert(raw, ResultsFile)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise Refusal(f"not a results file: {error!r}", expected="what run_here.sh wrote", where=str(path)) from error
    if found != sealed:
        raise Refusal(
            "the seal does not fit the content", expected="results as run_here.sh wrote them", where=str(path),
            next_step="run run_here.sh again; results are not edited",
        )  # fmt: skip
    return results


def require_consistent(path: Path, name: str, found: Design, description: Mapping[str, Any], iterations: int) -> None:
    """Hold one design against its emitted description and against itself.

    Raises:
        Refusal: a field that does not follow from the others, or that the emission does not allow.
    """
    problem = next(_contradictions(found, description, iterations), "")
    if problem:
        raise Refusal(
            f"{name}: {problem}", expected="results as run_here.sh wrote them", where=str(path),
            next_step="run run_here.sh again; results are not edited",
        )  # fmt: skip


def _contradictions(found: Design, description: Mapping[str, Any], iterations: int) -> Iterator[str]:
    if found.gate != description["gate"]:
        yield f"gate {found.gate!r}, emitted under {description['gate']!r}"
    steps = [step for step in description["tape"] if step["do"] == "read"]
    for number, (read, step) in enumerate(zip(found.reads, steps, strict=False)):
        yield from (f"read {number}: {problem}" for problem in _read_problems(read, step, description["thresholds"]))
    passed = found.status == "COMPLETED" and bool(found.reads) and all(read.within for read in found.reads)
    if found.passed != passed:
        yield f"passed = {found.passed}, its state and reads say {passed}"
    timed = iterations if found.status == "COMPLETED" else 0
    if len(found.seconds) != timed:
        yield f"{len(found.seconds)} seconds of dispatches, {timed} are due for a design that is {found.status}"
    if (found.time is None) != (timed == 0):
        yield f"time is {'missing' if timed else 'there without dispatches'}"
    if found.time is not None and timed:
        for what, value in spread(found.seconds).items():
            if not math.isclose(getattr(found.time, what), value, rel_tol=_SAME):
                yield f"time: {what} is {getattr(found.time, what):g} s, its seconds give {value:g} s"


def _read_problems(read: Read, step: Mapping[str, Any], thresholds: Mapping[str, float]) -> Iterator[str]:
    if read.failures:
        if read.within:
            yield f"within, although {', '.join(read.failures)}"
        return
    if read.against_twin is None:
        yield "no figures against_twin"
    if "want" not in step:
        if not read.within:
            yield "not within, although nothing is held against it"
        return
    if read.against_oracle is None:
        yield "no figures against_oracle"
        return
    held = {name: value for name, value in read.against_oracle.values().items() if name in thresholds}
    within = bool(held) and all(value <= thresholds[name] for name, value in held.items())
    if read.within != within:
        yield f"within = {read.within}, its figures say {within}"


def stale_reads(reads: Sequence[Read], steps: Sequence[Mapping[str, Any]]) -> list[int]:
    """Numbers of the reads that gave the bytes of the read before, where the oracle expects others."""
    return [
        number
        for number in range(1, min(len(reads), len(steps)))
        if reads[number].output == reads[number - 1].output
        and steps[number].get("want") != steps[number - 1].get("want")
    ]


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median with its spread, in seconds: quartiles by the exclusive method of statistics.quantiles."""
    low, middle, high = statistics.quantiles(seconds, n=4)
    return {"median": middle, "quartile_low": low, "quartile_high": high, "least": min(seconds), "most": max(seconds)}
