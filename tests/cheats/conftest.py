# SPDX-License-Identifier: Apache-2.0
"""Honest deployments of the fixture model by a copy of the pack, and the tools of a cheater.

Deploying and evaluating run in processes of their own, from the copy, as they do for a person: nothing of the test's own
process takes part. A cheater can write every file, so `forge` makes a chain that fits in itself again after an edit.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from judge.evidence import GENESIS, digest
from pipeline import manifest

ROOT = Path(__file__).resolve().parents[2]
NONCE = "5f1d2c3b4a5968778695a4b3c2d1e0ff"
# Experiments of phases 4 and 5 are left out: they cost minutes, and no cheat here is about them.
DEPLOY = """
import sys
from pathlib import Path
from judge.fixture import write_fixture
from npu.twin.device import TwinDevice
from pipeline.conduct import conduct
from pipeline.context import PhaseContext
from pipeline.deployment import Deployment
from pipeline.intake import describe, pack_hash
from pipeline.manifest import PACK
from pipeline.phases import optimise
optimise.MAX_EXPERIMENTS = 0
seed, layers = int(sys.argv[1]), int(sys.argv[2]) or None
write_fixture(Path("model"), seed)
description = describe("model", device="twin", name="fixture", context=512, layers=layers)
deployment = Deployment.start(description, pack_hash=pack_hash(PACK))
cache = Path(sys.argv[3])
sys.exit(conduct(PhaseContext(deployment, TwinDevice(cache), cache, print)))
"""
REFRESH = """
import sys
from pathlib import Path
from pipeline import documents
from pipeline.deployment import Deployment
documents.write(Deployment(Path(sys.argv[1])))
"""


@dataclass
class House:
    """A project folder with a deployment in it, and the pack that made it."""

    root: Path
    pack: Path
    caches: Path

    @property
    def folder(self) -> Path:
        return self.root / "deployments" / "fixture"

    @property
    def evidence(self) -> Path:
        return self.folder / "evidence.jsonl"

    def run(self, *arguments: str, code: int | None = 0) -> str:
        """Python with code from the pack alone; returns what it printed."""
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PYTHONPATH": str(self.pack),
                       "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.root, env=environment, capture_output=True, text=True, check=False
        )
        assert code is None or done.returncode == code, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def deploy(self, seed: int = 1, layers: int = 0) -> House:
        """All phases of the fixture model, frozen."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.run("-c", DEPLOY, str(seed), str(layers), str(self.caches / "deploying"))
        return self

    def evaluate(self, *options: str, nonce: str = NONCE) -> dict:
        """Evaluate in a process of its own; the verdict as written."""
        (self.folder / "evaluation.json").unlink(missing_ok=True)
        arguments = [
            "-m",
            "pipeline.evaluate",
            str(self.folder),
            "--nonce",
            nonce,
            "--cache",
            str(self.caches / "evaluating"),
        ]
        self.run(*arguments, *options, code=None)
        assert (self.folder / "evaluation.json").exists(), (self.folder / "worker.log").read_text()[-3000:]
        return json.loads((self.folder / "evaluation.json").read_text())

    def copy(self, root: Path, own_pack: bool = False) -> House:
        """The deployment in another project; with own_pack also the pack, for cheats that alter it."""
        other = House(root, root / "pack" if own_pack else self.pack, self.caches)
        shutil.copytree(self.folder, other.folder)
        if own_pack:
            shutil.copytree(self.pack, other.pack)
        return other

    # ---- a cheater's tools ----

    def forge(self, edit: Callable[[list[dict]], None]) -> None:
        """Edit the entries of the records and make the chain fit again: freeze, cited hashes and documents included."""
        records = [json.loads(line) for line in self.evidence.read_text().splitlines()]
        edit(records)
        head, lines, renamed = GENESIS, [], {}
        for number, record in enumerate(records):
            record["sequence"], record["previous"] = number, head
            if record["entry"]["body"].get("evidence") in renamed:
                record["entry"]["body"]["evidence"] = renamed[record["entry"]["body"]["evidence"]]
            if record["entry"]["kind"] == "freeze":
                record["entry"]["body"]["head"] = head
            before = record.pop("hash")
            record["hash"] = renamed[before] = head = digest(record)
            lines.append(json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False))
        self.evidence.write_text("\n".join(lines) + "\n")
        self.run("-c", REFRESH, str(self.folder))

    def describe_otherwise(self, edit: Callable[[dict], None]) -> None:
        """Edit deployment.json, and forge the freeze so that it pins the new description."""
        path = self.folder / "deployment.json"
        description = json.loads(path.read_text())
        edit(description)
        path.write_text(json.dumps(description))

        def pin(records: list[dict]) -> None:
            freeze_of(records)["entry"]["inputs"]["description"] = digest(description)

        self.forge(pin)

    def alter_pack(self, file: str, before: str, after: str) -> None:
        """Edit a file of the pack, make its manifest fit again, and forge the records as if this pack had made them."""
        path = self.pack / file
        text = path.read_text()
        assert text.count(before) == 1, f"{file} has {text.count(before)} times: {before}"
        path.write_text(text.replace(before, after))
        manifest.write(self.pack)
        pack = manifest.pack_hash(self.pack)

        def claim(records: list[dict]) -> None:
            for record in records:
                if "pack" in record["entry"]["inputs"]:
                    record["entry"]["inputs"]["pack"] = pack

        self.forge(claim)


def freeze_of(records: list[dict]) -> dict:
    return next(record for record in records if record["entry"]["kind"] == "freeze")


def gate_of(records: list[dict], phase: int) -> dict:
    """The body of a phase's gate record."""
    return next(r["entry"] for r in reversed(records) if r["entry"]["subject"] == f"phase-{phase}")


@pytest.fixture(scope="session")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pack as it ships, with a manifest of the files as they are now."""
    target = tmp_path_factory.mktemp("an installed") / "pack copy"
    for name in manifest.files_of(ROOT):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    manifest.write(target)
    return target


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Caches that the tests share: one that deployments fill, one that evaluations fill."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory, pack: Path, caches: Path) -> House:
    """An honest deployment; tests copy it and never change it."""
    return House(tmp_path_factory.mktemp("my project") / "a b", pack, caches).deploy()


@pytest.fixture
def cheat(honest: House, tmp_path: Path) -> House:
    """A copy of the honest deployment to cheat with."""
    return honest.copy(tmp_path / "cheat")


@pytest.fixture
def cheat_with_pack(honest: House, tmp_path: Path) -> House:
    """The same, with a pack of its own."""
    return honest.copy(tmp_path / "cheat", own_pack=True)
