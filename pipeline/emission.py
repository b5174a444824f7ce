# SPDX-License-Identifier: Apache-2.0
"""A folder for a machine with an NPU: text, sources, commands, data, what the twin computed, and the program that runs it.

    manifest.json          SHA-256 of every other file; its own hash is the emission's id
    run_here.sh .py        compile, run, compare, time; needs mlir-aie, Peano, XRT and NumPy, nothing of this pack
    runtime/               verbatim copies: refusal.py, npu/{artifact,device,toolchain,xrt}.py
    data/HASH.npy          arrays, each once: inputs, the twin's outputs, the oracle's
    designs/NAME/          design.mlir, kernels/, design.json (defines, commands, tape, gate, thresholds)

A receipt of each finished emission stays in deployments/emitted: results are taken back only for what was emitted here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from judge.gates import Dispatch, judge_kernel
from judge.policy import Policy
from kernels.designs.design import OpDesign
from npu.artifact import Artifact
from npu.device import Device
from npu.toolchain import flow_of, signatures, source_files, source_place, steps
from pipeline.deployment import ROOT, now
from pipeline.exercise import case_of, exercise, gate_of
from pipeline.files import convert, read_json, write_json
from pipeline.tape import RecordingDevice, Tape, bits
from refusal import Refusal

SCHEMA = 1
PACK = Path(__file__).resolve().parent.parent
RECEIPTS = ROOT / "emitted"
RUNTIME = ("refusal.py", "npu/__init__.py", "npu/artifact.py", "npu/device.py", "npu/kernel_source.py", "npu/toolchain.py",
           "npu/xrt.py")  # fmt: skip
MODULE = "module"


class Emission:
    """The folder while it is written. A design that is there whole is not made again."""

    def __init__(self, folder: Path, device: Device, policy: Policy) -> None:
        self.folder, self.device, self.policy = folder, device, policy
        if (folder / "manifest.json").exists():
            raise Refusal(f"{folder} holds a finished emission", expected="a new folder, or one begun by the same command",
                          where="--out", next_step="choose another --out")  # fmt: skip
        if folder.is_dir() and any(folder.iterdir()) and not (folder / "data").is_dir():
            raise Refusal(
                f"{folder} is not empty", expected="a new folder", where="--out", next_step="choose another --out"
            )
        (folder / "data").mkdir(parents=True, exist_ok=True)

    def keep(self, values: np.ndarray) -> str:
        """Store an array under its content; returns its place in the folder."""
        digest = hashlib.sha256(f"{values.dtype}{values.shape}".encode() + values.tobytes()).hexdigest()[:24]
        place = f"data/{digest}.npy"
        if not (self.folder / place).exists():
            temporary = self.folder / f"data/.{digest}.tmp"
            with temporary.open("wb") as stream:
                np.save(stream, values)
            temporary.replace(self.folder / place)
        return place

    def add_design(self, design: OpDesign, seed: int) -> bool:
        """One design with three dispatches of changing data; False where it was there already.

        Raises:
            Refusal: it fails its own gate on the twin.
        """
        if (self.folder / "designs" / design.name / "design.json").exists():
            return False
        recorder = RecordingDevice(self.device, self.keep)
        dispatches, _ = exercise(design, recorder, seed)
        gate = f"phase1.{gate_of(design)}"
        verdict = judge_kernel(gate_of(design), dispatches, self.policy)
        if not verdict.passed:
            raise Refusal(f"{design.name} fails {gate} on the twin", expected="a design that passes", where="emit",
                          next_step="run that kernel alone at this shape: scripts/run.py says where")  # fmt: skip
        assert recorder.tape is not None
        self._expect(recorder.tape, dispatches, design, seed)
        thresholds = {name: row.threshold for name, row in self.policy.of(gate).items()}
        self._write(design.name, recorder.tape, {"gate": gate, "thresholds": thresholds, "seed": seed})
        return True

    def _expect(self, tape: Tape, dispatches: Sequence[Dispatch], design: OpDesign, seed: int) -> None:
        """Put the oracle's answers beside the twin's, and how elements of the output are ordered in them."""
        for step, dispatch in zip(tape.reads(), dispatches, strict=True):
            step["want"] = self.keep(dispatch.want.astype(np.float32))
            if not np.array_equal(bits(dispatch.got), np.load(self.folder / step["twin"])):
                view = case_of(design, np.random.default_rng(seed)).view
                order = np.asarray(view(np.arange(step["count"]))).reshape(-1)
                step["order"] = self.keep(order.astype(np.int32))

    def add_module(self, tape: Tape) -> None:
        """The whole main module with a tape of a prefill and decode steps; compared with the twin alone."""
        self._write(MODULE, tape, {"gate": "", "thresholds": {}, "seed": 0})

    def _write(self, name: str, tape: Tape, more: dict[str, Any]) -> None:
        artifact, folder = tape.artifact, self.folder / "designs" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "design.mlir").write_text(artifact.text)
        for place, path in source_files(artifact).items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / place)
        description = {
            "name": name, "artifact": artifact.key, "target": artifact.target, "entry_device": artifact.entry_device,
            "flow": flow_of(artifact), "commands": [asdict(step) for step in steps(artifact)],
            "objects": [
                {"name": obj.name, "source": source_place(obj.source), "defines": list(obj.defines)}
                for obj in artifact.objects
            ],
            "arguments": {
                entry: list(found.arguments) for entry, found in signatures(artifact.text)[artifact.entry_device].items()
            },
            "buffers": tape.buffers, "bindings": tape.bindings, "tape": tape.steps,
        }  # fmt: skip
        write_json(folder / "design.json", description | more)

    def finish(self, subject: dict[str, Any]) -> str:
        """Add the program and its runtime, write the manifest and a receipt; returns the emission's id."""
        for place in RUNTIME:
            (self.folder / "runtime" / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PACK / place, self.folder / "runtime" / place)
        for name in ("run_here.py", "run_here.sh"):
            shutil.copyfile(PACK / "pipeline" / name, self.folder / name)
        (self.folder / "run_here.sh").chmod(0o755)
        manifest = {
            "schema": SCHEMA, "subject": subject, "policy": self.policy.sha256, "made": now(),
            "designs": sorted(path.parent.name for path in self.folder.glob("designs/*/design.json")),
            "files": {str(path.relative_to(self.folder)): _sha256(path) for path in _files(self.folder)},
        }  # fmt: skip
        write_json(self.folder / "manifest.json", manifest)
        identity = _sha256(self.folder / "manifest.json")
        write_json(
            RECEIPTS / f"{identity}.json", {"subject": subject, "folder": self.folder.name, "made": manifest["made"]}
        )
        return identity


def _files(folder: Path) -> list[Path]:
    """What the manifest covers: everything but itself, in order; links are none of ours."""
    found = []
    for place, _, names in os.walk(folder):
        found += [Path(place) / name for name in names if not name.startswith(".") and name != "manifest.json"]
    return sorted(path for path in found if not path.is_symlink())


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class Subject(msgspec.Struct, frozen=True):
    """What was emitted: of which deployment, if of any, and whether its weights are made up."""

    synthetic: bool
    deployment: str | None = None


class Manifest(msgspec.Struct, frozen=True):
    """The manifest of an emitted folder."""

    schema: int
    subject: Subject
    policy: str
    made: str
    designs: list[str]
    files: dict[str, str]


def check_folder(folder: Path) -> tuple[str, dict[str, Any]]:
    """The id and manifest of an emitted folder whose files are all as they were written.

    Raises:
        Refusal: no manifest, or files that changed or are gone.
    """
    manifest = read_json(folder / "manifest.json")
    if manifest is None:
        raise Refusal(
            f"no manifest.json in {folder}",
            expected="a folder that scripts/emit.py wrote",
            where="--emitted",
            next_step="give --emitted FOLDER, the folder that emit wrote",
        )
    convert(manifest, Manifest, folder / "manifest.json", "emit again, and run that")
    wrong = [
        place
        for place, digest in manifest["files"].items()
        if not (folder / place).is_file() or _sha256(folder / place) != digest
    ]
    if wrong:
        raise Refusal(f"{len(wrong)} files of the emission changed or are gone: {', '.join(wrong[:5])}",
                      expected="what emit wrote", where=str(folder), next_step="emit again, and run that")  # fmt: skip
    return _sha256(folder / "manifest.json"), manifest


def artifact_of(folder: Path, name: str) -> tuple[Artifact, dict[str, Any]]:
    """The artifact of one emitted design, rebuilt from the folder's own files, and its description."""
    from npu.artifact import KernelObject

    place = folder / "designs" / name
    description = json.loads((place / "design.json").read_text())
    objects = tuple(
        KernelObject(obj["name"], place / obj["source"], tuple((key, value) for key, value in obj["defines"]))
        for obj in description["objects"]
    )
    text = (place / "design.mlir").read_text()
    return Artifact(text, objects, description["entry_device"], description["target"]), description
