# SPDX-License-Identifier: Apache-2.0
"""Results that come back from a machine with an NPU: checked, judged again, and recorded as evidence marked `npu`.

What is refused: results of an emission that was not made here, of a folder that has changed, with an artifact of another
key, with a design missing or too many, whose seal does not fit, or that are in the evidence already. The seal (a hash in the
file) finds edits, not forgers: whoever can run the program can also write its output. Evidence is what can be run again.

Where the outputs lie beside the results, the judge computes every figure from them; otherwise the figures are
run_here's own, over the whole output alone, and the record says `rejudged: false`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
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
from refusal import Refusal

STATUSES = ("COMPLETED", "NOT_COMPILED", "NOT_RUN", "FAULT", "ERROR", "ABORT", "TIMEOUT", "NORESPONSE", "SKERROR",
            "SKCRASHED", "SLOW", "EXCEPTION", "NEW", "QUEUED", "RUNNING", "SUBMITTED")  # fmt: skip
LEAST_ITERATIONS = 20


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


@dataclass
class Results:
    """A results file that belongs to an emission of this working directory."""

    path: Path
    folder: Path
    raw: dict[str, Any]
    manifest: dict[str, Any]
    sha256: str
    artifacts: dict[str, str] = field(default_factory=dict)

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
    raw = _sealed(path, data)
    identity, manifest = check_folder(folder)
    if raw["emission"] != identity:
        raise Refusal(
            f"results of emission {str(raw['emission'])[:12]}", expected=f"{identity[:12]}, the folder's", where=str(path),
            next_step="--emitted FOLDER names the folder that the results belong to",
        )  # fmt: skip
    if not (RECEIPTS / f"{identity}.json").exists():
        raise Refusal(
            f"emission {identity[:12]} was not made here", expected=f"a receipt in {RECEIPTS}", where=str(folder),
            next_step="run this in the directory that scripts/emit.py was run in",
        )  # fmt: skip
    results = Results(path, folder, raw, manifest, hashlib.sha256(data).hexdigest())
    _check_designs(results)
    return results


def _sealed(path: Path, data: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(data)
        digest = raw.pop("digest")
        if missing := {"emission", "designs", "iterations", "machine", "tools"} - raw.keys():
            raise KeyError(*sorted(missing))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise Refusal(f"not a results file: {error!r}", expected="what run_here.sh wrote", where=str(path)) from error
    if evidence.digest(raw) != digest:
        raise Refusal(
            "the seal does not fit the content", expected="results as run_here.sh wrote them", where=str(path),
            next_step="run run_here.sh again; results are not edited",
        )  # fmt: skip
    return raw


def _check_designs(results: Results) -> None:
    emitted, returned = set(results.manifest["designs"]), set(results.raw["designs"])
    if emitted != returned:
        raise Refusal(
            f"missing {sorted(emitted - returned)}, unknown {sorted(returned - emitted)}",
            expected="every design of the emission, once", where=str(results.path),
            next_step="run_here.sh without --only",
        )  # fmt: skip
    for name, found in results.raw["designs"].items():
        key = artifact_of(results.folder, name)[0].key
        if found["artifact"] != key:
            raise Refusal(f"{name} ran artifact {found['artifact'][:12]}", expected=key[:12], where=str(results.path))
        if found["status"] not in STATUSES:
            raise Refusal(f"{name}: status {found['status']!r}", expected=", ".join(STATUSES), where=str(results.path))
        results.artifacts[name] = key
    for record in evidence.records(results.evidence):
        if record.entry.inputs.get("results") == results.sha256:
            raise Refusal(f"record {record.sequence} holds these results", expected="results that are new",
                          where=str(results.evidence), next_step="scripts/status.py")  # fmt: skip


def judge_results(results: Results, policy: Policy) -> list[Returned]:
    """Each design's outcome under today's policy."""
    return [_judge(results, name, found, policy) for name, found in sorted(results.raw["designs"].items())]


def _judge(results: Results, name: str, found: Mapping[str, Any], policy: Policy) -> Returned:
    _, description = artifact_of(results.folder, name)
    gate, status = description["gate"], found["status"]
    expected_runs = [step["entry"] for step in description["tape"] if step["do"] == "run"]
    reads = [step for step in description["tape"] if step["do"] == "read"]
    completed = status == "COMPLETED" and [d.get("entry") for d in found["dispatches"]] == expected_runs
    completed = completed and all(d["status"] == "COMPLETED" for d in found["dispatches"])
    if not completed or len(found["reads"]) != len(reads):
        detail = found.get("said", "") or f"{len(found['dispatches'])} of {len(expected_runs)} dispatches"
        return Returned(name, gate, status, False, False, None, {}, detail)
    outputs = _outputs(results, found, reads)
    figures = _times(found, description, results)
    if not gate:
        return _judge_module(name, status, found, figures, outputs is not None)
    if outputs is None:
        return _from_figures(name, gate, found, policy, figures, results)
    dispatches = [_dispatch(results.folder, step, got) for step, got in zip(reads, outputs, strict=True)]
    verdict = judge_kernel(gate.removeprefix("phase1."), dispatches, policy)
    for finding in verdict.findings:
        figures[finding.metric] = _measured(results, finding.value, "")
    return Returned(name, gate, status, verdict.passed, True, verdict, figures)


def _outputs(results: Results, found: Mapping[str, Any], reads: list[dict[str, Any]]) -> list[np.ndarray] | None:
    """The outputs as they came from the device, None where not all of them were brought along."""
    paths = [results.path.parent / "outputs" / f"{read['output']}.npy" for read in found["reads"]]
    if not all(path.is_file() for path in paths):
        return None
    outputs = [np.load(path) for path in paths]
    for read, step, got in zip(found["reads"], reads, outputs, strict=True):
        digest = hashlib.sha256(got.tobytes()).hexdigest()
        if digest != read["output"] or got.dtype.name != step["dtype"] or got.size != step["count"]:
            raise Refusal(f"outputs/{read['output'][:12]}.npy holds {digest[:12]}", expected="the output that was recorded",
                          where=str(results.path.parent))  # fmt: skip
    return outputs


def _dispatch(folder: Path, step: dict[str, Any], got: np.ndarray) -> Dispatch:
    """An output in the order and shape of the oracle's answer; bf16 stays bits."""
    want = np.load(folder / step["want"])
    order = np.load(folder / step["order"]) if "order" in step else slice(None)
    return Dispatch(got[order].reshape(want.shape), want)


def _from_figures(
    name: str, gate: str, found: Mapping[str, Any], policy: Policy, figures: dict[str, Measured], results: Results
) -> Returned:
    """run_here's own figures, each at its worst over the dispatches, held against the policy."""
    thresholds, failed = policy.of(gate), [f for read in found["reads"] for f in read["failures"]]
    worst: dict[str, float] = {}
    for read in found["reads"]:
        for metric, value in read.get("against_oracle", {}).items():
            if metric in thresholds:
                worst[metric] = max(worst.get(metric, 0.0), value)
    missed = [m for m, value in worst.items() if not value <= thresholds[m].threshold]
    for metric, value in worst.items():
        if math.isfinite(value):
            figures[metric] = _measured(results, value, "")
    said = ", ".join(failed + missed)
    return Returned(name, gate, found["status"], bool(worst) and not failed and not missed, False, None, figures, said)


def _judge_module(
    name: str, status: str, found: Mapping[str, Any], figures: dict[str, Measured], outputs: bool
) -> Returned:
    """A module has no gate of its own: it ran to the end, and how near to the twin it came is told."""
    failed = [f for read in found["reads"] for f in read["failures"]]
    figures |= {
        "against_twin/rel": Measured(
            max((read["against_twin"]["rel"] for read in found["reads"] if "against_twin" in read), default=0.0), "",
            Provenance.NPU, next(iter(figures.values())).synthetic_weights if figures else False,
        )
    }  # fmt: skip
    return Returned(name, "", status, not failed, outputs, None, figures, ", ".join(failed))


def _times(found: Mapping[str, Any], description: Mapping[str, Any], results: Results) -> dict[str, Measured]:
    """Dispatch times in microseconds, with their spread; none where fewer dispatches were timed than promised."""
    if len(found["seconds"]) < max(LEAST_ITERATIONS, results.raw["iterations"]):
        return {}
    return {f"time/{name}": _measured(results, 1e6 * value, "us") for name, value in found["time"].items()}


def _measured(results: Results, value: float, unit: str) -> Measured:
    return Measured(value, unit, Provenance.NPU, bool(results.manifest["subject"]["synthetic"]))


def record(results: Results, returned: list[Returned], policy: Policy) -> list[evidence.Record]:
    """Append one record a design."""
    subject = results.manifest["subject"]
    kept = []
    for one in returned:
        body = {
            "passed": one.passed, "status": one.status, "gate": one.gate, "rejudged": one.rejudged, "said": one.said[:2000],
            "verdict": summary(one.verdict) if one.verdict else {}, "subject": subject, "machine": results.raw["machine"],
            "tools": results.raw["tools"], "ran": [results.raw["started"], results.raw["ended"]],
            "emitted_under_policy": results.manifest["policy"],
            "arguments": _arguments(results, one.name),
        }  # fmt: skip
        inputs = {
            "emission": results.raw["emission"], "results": results.sha256, "policy": policy.sha256,
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
