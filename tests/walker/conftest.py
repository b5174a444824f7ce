# SPDX-License-Identifier: Apache-2.0
"""One pack, one project and one walk to the verdict for all tests of this folder, also when they run in several processes.

The pack is a copy made from its manifest; the project is an empty directory; both paths have spaces. The environment is the
one that runs these tests, handed over as Claude Code does, and compiled kernels are kept where all tests keep them.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

from judge.fixture import write_fixture
from pipeline import manifest
from pipeline.context import CACHE_VARIABLE
from tests.stand_ins.byte_level import write_byte_level_tokenizer
from tests.twin_device import CACHE
from tests.walker.walk import Walk, Walker, ended_workers

ROOT = Path(__file__).resolve().parents[2]
MODEL, NAME = "my model", "my-model"


@dataclass(frozen=True)
class Town:
    """Where the tests of a run live. environment: what the verbs get beside the usual."""

    root: Path
    pack: Path
    environment: dict[str, str]

    def project(self, name: str) -> Path:
        """An empty directory, but for the model."""
        project = self.root / name / "my project"
        write_fixture(project / MODEL)
        write_byte_level_tokenizer(project / MODEL, 512)
        return project

    def walker(self, project: Path, pack: Path | None = None) -> Walker:
        return Walker(pack or self.pack, project, self.environment)


def source_pack(target: Path) -> Path:
    """The pack's files as they are now, with a manifest of them."""
    for name in manifest.files_of(ROOT):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    manifest.write(target)
    return target


@pytest.fixture(scope="session")
def town(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Town:
    """The pack and the environment; made by the first process that asks."""
    base = tmp_path_factory.getbasetemp()
    root = (base if worker_id == "master" else base.parent) / "a walker's town"
    pack, data = root / "an installed" / "pack copy", root / "plugin data"
    root.mkdir(exist_ok=True)
    with FileLock(root / "town.lock"):
        if not data.exists():
            manifest.copy_pack(source_pack(root / "sources"), pack)
            data.mkdir()
            (data / "venv").symlink_to(sys.prefix)
    return Town(root, pack, {"CLAUDE_PLUGIN_DATA": str(data), CACHE_VARIABLE: str(CACHE / "twin")})


@dataclass(frozen=True)
class Proven:
    """A finished walk and the project that it left."""

    walk: Walk
    project: Path

    @property
    def deployment(self) -> Path:
        return self.project / "deployments" / NAME


@pytest.fixture(scope="session")
def proven(town: Town) -> Proven:
    """The walk from `deploy.py MODEL` to its end; nobody changes its project."""
    saved, project = town.root / "walk.json", town.root / "proven" / "my project"
    with FileLock(town.root / "walk.lock"):
        if not saved.exists():
            with ended_workers(town.project("proven")):
                town.walker(project).walk("deploy", MODEL).save(saved)
    return Proven(Walk.load(saved), project)
