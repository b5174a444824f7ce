# SPDX-License-Identifier: Apache-2.0
"""The registry: kernels that a former deployment verified, so that phase 1 need not run them again.

    deployments/registry.jsonl          rows found by the deployments of this working directory
    kernels/registry.jsonl              rows that the pack ships, read-only, with their records in registry_evidence.jsonl

A row is a copy of what one phase 1 record says of one design, and names that record by its hash. It is used only if
everything that the verdict depended on is the same now: the artifact's key (text, kernel sources, defines), the policy, the
device and the engine (every file that runs, feeds or judges a kernel, the compiler and numpy); and only if the record
still stands in that deployment's unbroken chain and says exactly this. Anything else is passed by and the kernel runs.
Rows save time and prove nothing: `evaluate` and `gate` run every kernel again.

    python -m pipeline.registry --merge     copy this directory's valid rows into the pack (make registry)
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from filelock import FileLock

from judge import evidence
from judge.evidence import Kind, Record
from judge.policy import Policy, load_policy
from judge.verdict import Finding, Verdict
from npu.artifact import Artifact
from npu.kernel_source import source_sha256
from npu.twin.hostcc import find_compiler
from pipeline.deployment import ROOT
from pipeline.files import write_whole
from pipeline.manifest import PACK, read, sha256_of
from refusal import Refusal

NAME = "registry.jsonl"
SHIPPED = PACK / "kernels" / NAME
SHIPPED_EVIDENCE = PACK / "kernels" / "registry_evidence.jsonl"
# What a kernel's verdict depends on, beside its artifact: the machine, the designs' packing, the cases, oracle and judge.
ENGINE = ("npu", "kernels", "judge", "pipeline/exercise.py", "reference/oracle/ops.py")
ENGINE_ENDINGS = (".py", ".hpp", ".h", ".cc", ".cpp", ".toml", ".json")
SUBJECT = "phase-1"


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One design, verified once. Every value but the deployment's name is a copy from the record.

    kernels: object name -> SHA-256 of its source. record: hash of the evidence record. verdict: as in the record.
    """

    design: str
    artifact: str
    gate: str
    verdict: dict[str, Any]
    kernels: dict[str, str]
    policy: str
    device: str
    engine: str
    pack: str
    deployment: str
    record: str


@cache
def engine_version(pack: Path = PACK) -> str:
    """SHA-256 over everything but the artifact that a verdict on the twin depends on."""
    digest = hashlib.sha256(f"{find_compiler().version}\n{np.__version__}\n".encode())
    for part in ENGINE:
        path = pack / part
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.suffix in ENGINE_ENDINGS]
        for file in sorted(files):
            if file.name != NAME and "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(pack)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def inputs_of(design: str, artifact: Artifact) -> dict[str, str]:
    """What a phase 1 record says it looked at, for one design: the artifact and its kernel sources."""
    return {f"artifact {design}": artifact.key} | _kernels(artifact)


def rows_of(record: Record, deployment: str) -> list[Row]:
    """The rows that a phase 1 record gives: designs that passed and were run for it, not re-used."""
    entry = record.entry
    if entry.kind is not Kind.GATE or entry.subject != SUBJECT or entry.device != "twin":
        return []
    reused = entry.body.get("data", {}).get("reused", {})
    kernels = entry.body.get("data", {}).get("kernels", {})
    found = []
    for design, verdict in entry.body.get("gates", {}).items():
        artifact = entry.inputs.get(f"artifact {design}")
        if artifact and verdict["passed"] is True and design not in reused and "engine" in entry.inputs:
            sources = {name: entry.inputs[f"kernel {name}"] for name in kernels.get(design, ())}
            row = Row(
                design=design,
                artifact=artifact,
                gate=verdict["gate"],
                verdict=verdict,
                kernels=sources,
                policy=entry.inputs["policy"],
                device=entry.device,
                engine=entry.inputs["engine"],
                pack=entry.inputs.get("pack", ""),
                deployment=deployment,
                record=record.hash,
            )
            found.append(row)
    return found


class Registry:
    """Rows of a working directory and of the pack, each verified before it is used.

    Args:
        root: the deployments folder. shipped, shipped_evidence: the pack's rows and their records.
    """

    def __init__(
        self, root: Path = ROOT, shipped: Path = SHIPPED, shipped_evidence: Path = SHIPPED_EVIDENCE, pack: Path = PACK
    ) -> None:
        self._root, self._shipped, self._shipped_evidence, self._pack = root, shipped, shipped_evidence, pack
        self._rows = [(row, True) for row in _read(root / NAME)] + [(row, False) for row in _read(shipped)]
        self._standing: dict[str, dict[str, Record] | str] = {}
        self.ignored: list[str] = []  # rows that fitted and were not used, each with the reason

    def find(self, design: str, artifact: Artifact, policy: str, device: str, engine: str) -> Row | None:
        """A verified row for this very artifact under this policy, device and engine; None where it has to run."""
        kernels = {name.removeprefix("kernel "): digest for name, digest in _kernels(artifact).items()}
        wanted = (design, artifact.key, policy, device, engine, kernels)
        for row, own in self._rows:
            if (row.design, row.artifact, row.policy, row.device, row.engine, row.kernels) == wanted:
                problem = self._problem(row, own)
                if not problem:
                    return row
                self.ignored.append(f"{design}: row of deployment {row.deployment}: {problem}")
        return None

    def valid(self, policy: str, engine: str) -> Iterator[tuple[Row, Record]]:
        """Every row that could be used under this policy and engine, with its record."""
        for row, own in self._rows:
            if (row.policy, row.engine) == (policy, engine) and not self._problem(row, own):
                records = self._records(row.deployment, own)
                assert isinstance(records, dict)
                yield row, records[row.record]

    def _problem(self, row: Row, own: bool) -> str:
        """Why a row may not be used; "" if it may."""
        records = self._records(row.deployment, own)
        if isinstance(records, str):
            return records
        record = records.get(row.record)
        if record is None:
            return f"no record {row.record[:12]} there"
        if row not in rows_of(record, row.deployment):
            return f"record {row.record[:12]} says something else: the row was altered"
        return ""

    def _records(self, deployment: str, own: bool) -> dict[str, Record] | str:
        key = deployment if own else ""
        if key not in self._standing:
            self._standing[key] = self._chain(deployment) if own else self._shipped_records()
        return self._standing[key]

    def _chain(self, deployment: str) -> dict[str, Record] | str:
        path = self._root / deployment / "evidence.jsonl"
        if Path(deployment).name != deployment or not path.exists():
            return "its evidence is not here"
        try:
            return {record.hash: record for record in evidence.records(path)}
        except Refusal as refusal:
            return f"its evidence is broken ({refusal.found})"

    def _shipped_records(self) -> dict[str, Record] | str:
        """The pack's records: vouched for by the manifest, each with the hash of its own content."""
        try:
            manifest = read(self._pack)
            for path in (self._shipped, self._shipped_evidence):
                if manifest.get(path.relative_to(self._pack).as_posix()) != sha256_of(path):
                    return f"{path.name} is not what the pack's manifest says"
        except (Refusal, OSError) as problem:
            return f"the pack's registry cannot be verified ({problem})"
        found = {}
        for line in self._shipped_evidence.read_bytes().splitlines():
            raw = msgspec.json.decode(line)
            claimed = raw.pop("hash")
            if evidence.digest(raw) != claimed:
                return f"record {claimed[:12]} was altered"
            found[claimed] = msgspec.convert(raw | {"hash": claimed}, Record)
        return found


def harvest(root: Path, record: Record, deployment: str) -> int:
    """Add the rows of a phase 1 record to a working directory's registry; returns how many were new."""
    offered = rows_of(record, deployment)
    if not offered:
        return 0
    path = root / NAME
    with FileLock(path.with_suffix(".lock")):
        kept = _read(path)
        known = {_identity(row) for row in kept}
        new = [row for row in offered if _identity(row) not in known]
        if new:
            write_whole(path, b"".join(msgspec.json.encode(row) + b"\n" for row in [*kept, *new]))
    return len(new)


def verdict_of(row: Row, policy: Policy) -> Verdict:
    """The verdict that a row repeats, with the floors of the policy."""
    limits = policy.of(row.gate)
    findings = tuple(
        Finding(f["metric"], f["value"], f["threshold"], limits[f["metric"]].floor) for f in row.verdict["findings"]
    )
    return Verdict(row.gate, row.verdict["passed"], findings, (), policy_sha256=policy.sha256)


def merge(root: Path = ROOT, pack: Path = PACK) -> tuple[int, int]:
    """Write the pack's registry from every row that is valid now; returns (rows, records)."""
    shipped, shipped_evidence = pack / "kernels" / NAME, pack / "kernels" / SHIPPED_EVIDENCE.name
    registry = Registry(root, shipped, shipped_evidence, pack)
    rows: dict[tuple[str, ...], Row] = {}
    records: dict[str, Record] = {}
    for row, record in registry.valid(load_policy().sha256, engine_version(pack)):
        if _identity(row) not in rows:
            rows[_identity(row)] = row
            records[record.hash] = record
    write_whole(shipped, b"".join(msgspec.json.encode(row) + b"\n" for row in rows.values()))
    lines = [evidence.canonical(msgspec.to_builtins(record)) + b"\n" for record in records.values()]
    write_whole(shipped_evidence, b"".join(lines))
    return len(rows), len(records)


def _kernels(artifact: Artifact) -> dict[str, str]:
    return {f"kernel {obj.name}": source_sha256(obj.source) for obj in artifact.objects}


def _identity(row: Row) -> tuple[str, ...]:
    return (row.design, row.artifact, row.policy, row.device, row.engine)


def _read(path: Path) -> list[Row]:
    """The rows of a file; a line that is none (torn, of another version) is passed by."""
    found: list[Row] = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            found.append(msgspec.json.decode(line, type=Row))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return found


def main(arguments: Iterable[str]) -> int:
    """Command line: --merge."""
    p = argparse.ArgumentParser(prog="python -m pipeline.registry", description=__doc__.split("\n")[0])
    p.add_argument("--merge", action="store_true", required=True)
    p.parse_args(list(arguments))
    rows, records = merge()
    print(f"kernels/{NAME}: {rows} rows from {records} records")
    print("next: make manifest  # rows count only once the manifest vouches for them")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
