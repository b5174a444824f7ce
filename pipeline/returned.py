# SPDX-License-Identifier: Apache-2.0
"""Results that come back from a machine with an NPU: checked, judged again, and recorded as evidence marked `npu`.

What is refused: results of an emission that was not made here, of a folder that has changed, with an artifact of another
key, with a design missing or too many, whose seal does not fit, that lack a figure or contradict themselves
(`pipeline.results_file`), or that are in the evidence already. The seal (a hash in the file) finds edits, not forgers:
whoever can run the program can also write its output. Evidence is what can be run again.

Where the outputs lie beside the results, the judge computes every figure from them, all or none; otherwise the figures are
run_here's own, over the whole output alone, and the record says `rejudged: false` and what nobody measured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from judge import evidence
from judge.evidence import Entry, Kind, Measured, Provenance
from judge.gates import Dispatch, judge_kernel
from judge.policy import Policy
from judge.verdict import Verdict
from npu.toolchain import signatures
from pipeline.deployment import ROOT, Deployment
from pipeline.emission import RECEIPTS, artifact_of, check_folder
from pipeline.phases.outcome import summary
from pipeline.results_file import (
    WHOLE_OUTPUT,
    Design,
    ResultsFile,
    read_results,
    require_consistent,
    spread,
    stale_reads,
)
from refusal import Refusal

STATUSES = ("COMPLETED", "NOT_COMPILED", "NOT_RUN", "FAULT", "ERROR", "ABORT", "TIMEOUT", "NORESPONSE", "SKERROR",
            "SKCRASHED", "SLOW", "EXCEPTION", "NEW", "QUEUED", "RUNNING", "SUBMITTED")  # fmt: skip


@dataclass(frozen=True)
class Returned:
    """One design's outcome: what the record will say."""

    name: str
    gate: str
    status: str
    passed: bool
    rejudged: bool
    verdict: Verdict | None
    figures: dict[str, Measured]
    said: str = ""
    not_measured: tuple[str, ...] = ()


@dataclass
class Results:
    """A results file that belongs to an emission of this working directory."""

    path: Path
    folder: Path
    raw: ResultsFile
    manifest: dict[str, Any]
    sha256: str
    artifacts: dict[str, str] = field(default_factory=dict)
    descriptions: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def evidence(self) -> Path:
        """The deployment's chain, or the one of emissions that belong to none."""
        name = self.manifest["subject"].get("deployment")
        return Deployment(ROOT / name).evidence if name else RECEIPTS / "evidence.jsonl"


def open_results(path: Path, folder: Path) -> Results:
    """Read and check a results file against its emitted folder.

    Raises:
        Refusal: it is not what run_here wrote for this emission.
    """
    if not path.is_file():
        raise Refusal(f"no file {path}", expected="the results.json that run_here.sh wrote", where="import-results")
    data = path.read_bytes()
    raw = read_results(path, data)
    identity, manifest = check_folder(folder)
    if raw.emission != identity:
        raise Refusal(
            f"results of emission {raw.emission[:12]}", expected=f"{identity[:12]}, the folder's", where=str(path),
            next_step="add --emitted FOLDER: it names the folder that the results belong to",
        )  # fmt: skip
    if not (RECEIPTS / f"{identity}.json").exists():
        raise Refusal(
            f"emission {identity[:12]} was not made here", expected=f"a receipt in {RECEIPTS}", where=str(folder),
            next_step="run this in the directory that scripts/emit.py was run in",
        )  # fmt: skip
    results = Results(path, folder, raw, manifest, hashlib.sha256(data).hexdigest())
    _check_designs(results)
    return results


def _check_designs(results: Results) -> None:
    emitted, returned = set(results.manifest["designs"]), set(results.raw.designs)
    if emitted != returned:
        raise Refusal(
            f"missing {sorted(emitted - returned)}, unknown {sorted(returned - emitted)}",
            expected="every design of the emission, once", where=str(results.path),
            next_step="run run_here.sh without --only",
        )  # fmt: skip
    for name, found in results.raw.designs.items():
        artifact, description = artifact_of(results.folder, name)
        key = artifact.key
        if found.artifact != key:
            raise Refusal(f"{name} ran artifact {found.artifact[:12]}", expected=key[:12], where=str(results.path))
        if found.status not in STATUSES:
            raise Refusal(f"{name}: status {found.status!r}", expected=", ".join(STATUSES), where=str(results.path))
        require_consistent(results.path, name, found, description, results.raw.iterations)
        results.artifacts[name], results.descriptions[name] = key, description
    for record in evidence.records(results.evidence):
        if record.entry.inputs.get("results") == results.sha256:
            raise Refusal(f"record {record.sequence} holds these results", expected="results that are new",
                          where=str(results.evidence), next_step="scripts/status.py")  # fmt: skip


def judge_results(results: Results, policy: Policy) -> list[Returned]:
    """Each design's outcome under today's policy."""
    return [_judge(results, name, found, policy) for name, found in sorted(results.raw.designs.items())]


def _judge(results: Results, name: str, found: Design, policy: Policy) -> Returned:
    description = results.descriptions[name]
    gate, status = description["gate"], found.status
    expected_runs = [step["entry"] for step in description["tape"] if step["do"] == "run"]
    reads = [step for step in description["tape"] if step["do"] == "read"]
    completed = status == "COMPLETED" and [ran.entry for ran in found.dispatches] == expected_runs
    completed = completed and all(ran.status == "COMPLETED" for ran in found.dispatches)
    if not completed or len(found.reads) != len(reads):
        detail = (
            found.said
            or f"{len(found.dispatches)} of {len(expected_runs)} dispatches, {len(found.reads)} of {len(reads)} reads"
        )
        return Returned(name, gate, status, False, False, None, {}, detail)
    outputs = _outputs(results, found, reads)
    figures = {f"time/{what}": _measured(results, 1e6 * value, "us") for what, value in spread(found.seconds).items()}
    failed = _failures(found, reads)
    if not gate:
        return _judge_module(name, found, failed, figures, outputs is not None, results)
    if outputs is None:
        return _from_figures(name, gate, found, failed, policy, figures, results)
    dispatches = [_dispatch(results.folder, step, got) for step, got in zip(reads, outputs, strict=True)]
    verdict = judge_kernel(gate.removeprefix("phase1."), dispatches, policy)
    for finding in verdict.findings:
        figures[finding.metric] = _measured(results, finding.value, "")
    return Returned(name, gate, status, verdict.passed, True, verdict, figures)


def _failures(found: Design, steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """What run_here named, and outputs that are those of the dispatch before, whoever left the word out."""
    named = [failure for read in found.reads for failure in read.failures]
    return named + ["stale"] * bool(stale_reads(found.reads, steps) and "stale" not in named)


def _outputs(results: Results, found: Design, reads: list[dict[str, Any]]) -> list[np.ndarray] | None:
    """The outputs as they came from the device, None where none of them were brought along.

    Raises:
        Refusal: some are there and some are not, or one is not what was recorded.
    """
    paths = [results.path.parent / "outputs" / f"{read.output}.npy" for read in found.reads]
    there = sum(path.is_file() for path in paths)
    if not there:
        return None
    if there < len(paths):
        raise Refusal(f"{len(paths) - there} of {len(paths)} outputs are missing", expected="all of a design, or none",
                      where=str(results.path.parent / "outputs"), next_step="bring the whole folder outputs/ along")  # fmt: skip
    outputs = [_array(path) for path in paths]
    for read, step, got in zip(found.reads, reads, outputs, strict=True):
        digest = hashlib.sha256(got.tobytes()).hexdigest()
        if digest != read.output or got.dtype.name != step["dtype"] or got.size != step["count"]:
            raise Refusal(f"outputs/{read.output[:12]}.npy holds {digest[:12]}", expected="the output that was recorded",
                          where=str(results.path.parent))  # fmt: skip
    return outputs


def _array(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError, SyntaxError) as error:
        raise Refusal(f"no array: {error}", expected="the output that run_here.sh stored", where=str(path),
                      next_step="bring the folder outputs/ along again") from error  # fmt: skip


def _dispatch(folder: Path, step: dict[str, Any], got: np.ndarray) -> Dispatch:
    """An output in the order and shape of the oracle's answer; bf16 stays bits."""
    want = np.load(folder / step["want"])
    order = np.load(folder / step["order"]) if "order" in step else slice(None)
    return Dispatch(got[order].reshape(want.shape), want)


def _from_figures(
    name: str,
    gate: str,
    found: Design,
    failed: list[str],
    policy: Policy,
    figures: dict[str, Measured],
    results: Results,
) -> Returned:
    """run_here's own figures, each at its worst over the dispatches, held against the policy of today."""
    thresholds = policy.of(gate)
    measured = [read.against_oracle.values() for read in found.reads if read.against_oracle is not None]
    worst = {m: max(values[m] for values in measured) for m in thresholds if m in WHOLE_OUTPUT and measured}
    missed = [metric for metric, value in worst.items() if not value <= thresholds[metric].threshold]
    figures |= {metric: _measured(results, value, "") for metric, value in worst.items()}
    passed = bool(worst) and len(measured) == len(found.reads) and not failed and not missed
    unmeasured = tuple(sorted(thresholds.keys() - worst.keys()))
    return Returned(name, gate, found.status, passed, False, None, figures, ", ".join(failed + missed), unmeasured)


def _judge_module(
    name: str, found: Design, failed: list[str], figures: dict[str, Measured], outputs: bool, results: Results
) -> Returned:
    """A module has no gate of its own: it ran to the end, and how near to the twin it came is told."""
    apart = [read.against_twin.rel for read in found.reads if read.against_twin is not None]
    if apart:
        figures |= {"against_twin/rel": _measured(results, max(apart), "")}
    return Returned(name, "", found.status, bool(apart) and not failed, outputs, None, figures, ", ".join(failed))


def _measured(results: Results, value: float, unit: str) -> Measured:
    return Measured(value, unit, Provenance.NPU, bool(results.manifest["subject"]["synthetic"]))


def record(results: Results, returned: list[Returned], policy: Policy) -> list[evidence.Record]:
    """Append one record a design."""
    subject = results.manifest["subject"]
    kept = []
    for one in returned:
        body = {
            "passed": one.passed, "status": one.status, "gate": one.gate, "rejudged": one.rejudged, "said": one.said[:2000],
            "verdict": summary(one.verdict) if one.verdict else {}, "subject": subject, "machine": results.raw.machine,
            "tools": results.raw.tools, "ran": [results.raw.started, results.raw.ended],
            "emitted_under_policy": results.manifest["policy"],
            "arguments": _arguments(results, one.name), "not_measured": list(one.not_measured),
        }  # fmt: skip
        inputs = {
            "emission": results.raw.emission, "results": results.sha256, "policy": policy.sha256,
            "artifact": results.artifacts[one.name],
        }  # fmt: skip
        entry = Entry(
            Kind.RUN, f"npu:{one.name}", body, inputs=inputs, figures=one.figures, device="npu", tier="npu",
            synthetic_weights=bool(subject["synthetic"]),
        )  # fmt: skip
        kept.append(evidence.append(results.evidence, entry))
    return kept


def _arguments(results: Results, name: str) -> dict[str, list[int]]:
    """Bytes of each argument: the size of what was timed."""
    artifact, _ = artifact_of(results.folder, name)
    return {entry: list(s.arguments) for entry, s in signatures(artifact.text)[artifact.entry_device].items()}
