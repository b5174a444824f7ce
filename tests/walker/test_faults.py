# SPDX-License-Identifier: Apache-2.0
"""With a fault in the pack the same dumb walk ends at the skill that knows the fault, or at a human."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline import manifest
from tests.faults.plant import Edit, edited
from tests.walker.conftest import MODEL, NAME, Town
from tests.walker.walk import Walk, ended_workers

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Planted:
    """Edits of one file of the pack, the phase whose gate fails by them, and the skill that has to be reached."""

    file: str
    edits: tuple[Edit, ...]
    phase: int
    skill: str


ROUND_EVEN, FLOOR = "aie::set_rounding(aie::rounding_mode::conv_even);", "aie::set_rounding(aie::rounding_mode::floor);"
LAST_COLUMN = "col * share, share - ({}), stream.width)"
FAULTS = {
    "a store that rounds down": Planted(
        "kernels/rope/rope.cc", ((ROUND_EVEN, FLOOR),), 1, "debug-wrong-values",
    ),
    "a row that nobody writes": Planted(
        "kernels/designs/rowwise.py",
        (("col * share, share, stream.width)", LAST_COLUMN.format("col == 7")),), 1, "debug-nan",
    ),
    "a transfer that ends too early": Planted(
        "kernels/designs/rowwise.py",
        (("col * share, share, stream.width)", LAST_COLUMN.format("stream.produce and col == 7")),), 1, "debug-resources",
    ),
    "operands that are taken once": Planted(
        "pipeline/exercise.py",
        (("    for name, values in case.inputs.items():\n        session.write(name, 0, values)\n",
          "    for name, values in case.inputs.items():\n"
          "        taken = vars(session).setdefault('taken', set())\n"
          "        if name not in taken:\n"
          "            taken.add(name)\n"
          "            session.write(name, 0, values)\n"),), 1, "debug-stale-data",
    ),
    "a row of the cache that goes one too far": Planted(
        "pipeline/model_session.py",
        (("self._append(place, position, kv[place])", "self._append(place, position + 1, kv[place])"),), 2, "debug-position",
    ),
}  # fmt: skip
# A gate that could not look at what it must: no debug skill knows a way.
INCOMPLETE = Planted("pipeline/phases/oracle.py", (("for steps in (1, 2, 17)", "for steps in (1, 2)"),), 0, "")


def walk_with(planted: Planted, town: Town, folder: Path) -> tuple[Walk, Path]:
    """Walk with a copy of the pack that has the fault; returns the walk and the deployment's folder."""
    pack = folder / "faulty pack"
    shutil.copytree(town.pack, pack)
    path = pack / planted.file
    path.write_text(edited(path.read_text(), *planted.edits))
    manifest.write(pack)
    project = town.project(folder.name)
    with ended_workers(project):
        return town.walker(project, pack).walk("deploy", MODEL, "--context", "1024"), project / "deployments" / NAME


def phases_of(deployment: Path) -> dict[str, str]:
    return json.loads((deployment / "state.json").read_text())["phases"]


@pytest.mark.parametrize("name", FAULTS)
def test_the_walk_ends_at_the_skill_that_knows_the_fault(name: str, town: Town, tmp_path: Path) -> None:
    planted = FAULTS[name]
    walk, deployment = walk_with(planted, town, tmp_path)
    assert (walk.ending, walk.at) == ("skill", planted.skill), walk.out[-3000:]
    assert walk.steps[-1].code == 1
    wanted = {str(phase): "passed" for phase in range(planted.phase)} | {str(planted.phase): "failed"}
    assert phases_of(deployment) == wanted
    assert (deployment / "UNDER_WAY").exists()


def test_a_failure_that_no_skill_knows_ends_at_a_human(town: Town, tmp_path: Path) -> None:
    walk, deployment = walk_with(INCOMPLETE, town, tmp_path)
    assert walk.verbs[-1] == "ask"
    assert walk.ending == "human"
    assert walk.steps[-1].code == 3
    answer = rf"a human answers with: scripts/ask\.py --name {NAME} --question [0-9a-f]{{12}} --answer TEXT"
    assert re.fullmatch(answer, walk.at)
    assert phases_of(deployment) == {"0": "failed"}
    assert json.loads((deployment / "state.json").read_text())["question"]
