# SPDX-License-Identifier: Apache-2.0
"""A deployment: one folder under deployments/ in the user's working directory, and what has been done in it.

    deployment.json   what is deployed: model directory, name, device, choices, hashes; written once by `deploy`
    state.json        phase -> status, and the worker's last word; what the chain says too, the chain decides
    evidence.jsonl    the chain of records; a phase is passed only if its gate record says so
    UNDER_WAY         the marker: from `deploy` until phase 6 passed or `abandon`; names process, time, pack hash
    choices.json      the plan's choices that phases 4 and 5 accepted; its SHA-256 stands in their gate record
    plan.md issues.md perf_opt_traj.md    written from the evidence

Everything but the chain can be made again from it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from judge import claims, evidence
from pipeline.files import convert, read_as, write_json, write_whole
from planner.plan import Choices
from refusal import Refusal

ROOT = Path("deployments")
MARKER = "UNDER_WAY"
_REWRITE = "remove the file and run scripts/deploy.py MODEL as before: it is held against what was frozen"
_REMADE = "remove the file: what counts in it stands in the evidence"
OPTIMISATION = (4, 5)  # the phases whose records may hold other choices than the description


@dataclass(frozen=True)
class Description:
    """What `deploy` was asked for. Paths are absolute; `inputs` are SHA-256 of config and weight files.

    hub_id, revision: the Hub's name of the model and the pinned commit, "" for a directory that no snapshot is.
    """

    name: str
    model_dir: str
    device: str
    choices: Choices
    inputs: dict[str, str]
    synthetic: bool
    provenance: str
    accepted_keys: tuple[str, ...] = ()
    hub_id: str = ""
    revision: str = ""

    @property
    def partial(self) -> bool:
        """Only some layers: never proven."""
        return self.choices.layers is not None


@dataclass
class State:
    """phases: number (as text) -> "passed" | "failed" | "running"; detail: one line of the last step."""

    phases: dict[str, str] = field(default_factory=dict)
    detail: str = ""
    next: str = ""
    question: str | None = None
    frozen: bool = False
    abandoned: bool = False


class Deployment:
    """A deployment folder.

    Args:
        folder: deployments/<name>.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = read_as(folder / "deployment.json", Description, _REWRITE)
        if found is None:
            raise _absent(folder.name, folder.parent)
        self.description = found

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def evidence(self) -> Path:
        return self.folder / "evidence.jsonl"

    @property
    def marker(self) -> Path:
        return self.folder / MARKER

    @staticmethod
    def start(description: Description, root: Path = ROOT, pack_hash: str = "") -> Deployment:
        """Make the folder, or take up the one that is there if it describes the same deployment.

        Raises:
            Refusal: the folder holds another model, device or choice.
        """
        folder = root / description.name
        path = folder / "deployment.json"
        there = read_as(path, Description, _REWRITE)
        if there is None:
            write_json(path, msgspec.to_builtins(description))
        elif there != description:
            differing = [f.name for f in fields(Description) if getattr(there, f.name) != getattr(description, f.name)]
            raise Refusal(
                f"deployment {description.name!r} exists with another {', '.join(differing)}",
                expected="the same model, device and choices", where=str(folder),
                next_step=f"take another with --name NEW, or end that one: scripts/abandon.py {description.name} --reason TEXT",
            )  # fmt: skip
        deployment = Deployment(folder)
        state = deployment.state()
        if not state.frozen and not state.abandoned:
            write_json(
                deployment.marker, {"pid": os.getpid(), "time": now(), "pack": pack_hash, "name": description.name}
            )
        return deployment

    def state(self) -> State:
        """The state as last written, but question, freeze and abandonment as the chain has them.

        A broken chain says nothing: then they stay as written.
        """
        kept = self.kept_state()
        try:
            chain = list(evidence.records(self.evidence))
        except Refusal:
            return kept
        return replace(
            kept,
            question=next((r.entry.body["question"] for r in claims.open_questions(chain)), None),
            frozen=claims.last_freeze(chain) is not None,
            abandoned=claims.abandoned(chain) is not None,
        )

    def kept_state(self) -> State:
        """state.json alone; an empty state where there is none.

        Raises:
            Refusal: it is no state.
        """
        return read_as(self.folder / "state.json", State, _REMADE) or State()

    def save(self, state: State) -> None:
        """Write the state, whole."""
        write_json(self.folder / "state.json", asdict(state))

    def passed(self) -> dict[int, evidence.Record]:
        """Phase -> its last gate record, for phases whose last record says that they passed.

        Read from the evidence, never from state.json.
        """
        last: dict[int, evidence.Record] = {}
        for record in evidence.records(self.evidence):
            if record.entry.kind == evidence.Kind.GATE and record.entry.subject.startswith("phase-"):
                last[int(record.entry.subject.removeprefix("phase-"))] = record
        return {phase: record for phase, record in last.items() if record.entry.body.get("passed") is True}

    def choices(self) -> Choices:
        """The choices that hold: those of the last optimisation phase that passed, else what `deploy` described.

        choices.json is written here from the record, so that it can be read; the record is what counts.

        Raises:
            Refusal: choices.json is not what any record accepted.
        """
        accepted = sorted(
            (record for phase, record in self.passed().items() if phase in OPTIMISATION), key=lambda r: r.sequence
        )
        if not accepted:
            return self.description.choices
        last = accepted[-1].entry
        raw, wanted = last.body.get("data", {}).get("choices"), last.inputs.get("choices", "")
        path = self.folder / "choices.json"
        found = evidence.file_digest(path) if path.exists() else ""
        if evidence.digest(raw) != wanted or (found and found not in self._known_choices()):
            raise Refusal(
                f"choices {(found or evidence.digest(raw))[:12]}", expected=f"{wanted[:12]}, as {last.subject} accepted them",
                where=str(path), next_step=f"remove the file: it is written anew from {self.evidence.name}",
            )  # fmt: skip
        if found != wanted:
            write_whole(path, evidence.canonical(raw))
        return convert(raw, Choices, self.evidence)

    def _known_choices(self) -> set[str]:
        """The hashes of all choices that any record names: a kill may leave the file one record behind."""
        return {record.entry.inputs.get("choices", "") for record in evidence.records(self.evidence)}

    def whole_model(self) -> evidence.Record | None:
        """The last passed record whose gate was the whole model under the choices of its time; None before phase 3."""
        judged = [record for record in self.passed().values() if "greedy" in record.entry.body.get("data", {})]
        return max(judged, key=lambda record: record.sequence, default=None)

    def end_marker(self) -> None:
        """The deployment is no longer under way."""
        self.marker.unlink(missing_ok=True)

    def log(self, line: str) -> None:
        """Append a line to the worker's log; lost lines do no harm, so it is not synced."""
        with contextlib.suppress(OSError), (self.folder / "worker.log").open("a", errors="replace") as stream:
            stream.write(f"{now()} {line}\n")

    def write(self, relative: str, text: str) -> Path:
        """Write a text file of the deployment, whole."""
        path = self.folder / relative
        write_whole(path, text)
        return path


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def slug(text: str) -> str:
    """A folder name from a model's name: lower case, digits, dots and hyphens."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "model"


def find(name: str | None, root: Path = ROOT) -> Deployment:
    """The deployment called `name`; without a name the only one that is under way (or the only one there is).

    Raises:
        Refusal: there is none, or several.
    """
    if name is not None:
        for folder in _meant(name, root):
            if (folder / "deployment.json").exists():
                return Deployment(folder)
        raise _absent(name, root)
    folders = sorted(path.parent for path in root.glob("*/deployment.json"))
    under_way = [folder for folder in folders if (folder / MARKER).exists()]
    for group in (under_way, folders):
        if len(group) == 1:
            return Deployment(group[0])
    raise Refusal(
        f"{len(folders)} deployments here, {len(under_way)} under way",
        expected="a name" if folders else "one that was started in this directory",
        where=str(root), next_step=f"name one of: {', '.join(f.name for f in folders)}" if folders else "scripts/deploy.py MODEL",
    )  # fmt: skip


def _meant(name: str, root: Path) -> list[Path]:
    """The folders that a name may mean: as it stands, as `deploy` would spell it, as a shell completes it (deployments/NAME/)."""
    path = Path(name)
    if "/" in name:
        return [root / path.name] if path.name.strip(".") and path.parent.resolve() == root.resolve() else []
    return [root / name, root / slug(name)] if name.strip(" .") else []


def _absent(name: str, root: Path) -> Refusal:
    there = sorted(path.parent.name for path in root.glob("*/deployment.json"))
    return Refusal(
        f"no deployment {name!r}", expected=f"one of {', '.join(there)}" if there else "one that was started in this directory",
        where=str(root), next_step=f"scripts/status.py {shlex.quote(there[0])}" if len(there) == 1 else "scripts/deploy.py MODEL",
    )  # fmt: skip
