# SPDX-License-Identifier: Apache-2.0
"""README, "By hand": every line works in a fresh clone, one after another, and the evaluation ends in its verdict."""

from __future__ import annotations

import os
import re
import shlex
import subprocess

import pytest

from tests.walker.conftest import ROOT, Town, source_pack
from tests.walker.walk import Step, Walker, ended_workers, waits

pytestmark = pytest.mark.slow
BY_HAND = [
    line
    for line in re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text().split("## By hand")[1], re.S)[0].splitlines()
    if line
]  # fmt: skip


def test_the_lines_work_in_a_fresh_clone(town: Town) -> None:
    clone = source_pack(town.root / "a fresh" / "clone of it")
    walker = Walker(clone, clone, town.environment)
    assert BY_HAND[0] == "scripts/doctor.py"
    said = ""
    with ended_workers(clone):
        for line in BY_HAND:
            step = typed(line, walker)
            if waits(step.words) or step.verb == "evaluate":  # again and again, as the page says
                step = walker.settle(step)
            assert step.code == 0, f"{line}\n{step.out[-2000:]}\n{step.err[-2000:]}"
            said += step.out
    assert "evaluation: PROVEN on synthetic weights" in said


def typed(line: str, walker: Walker) -> Step:
    """One line as a person types it: the script itself, from the clone's root."""
    done = subprocess.run(
        shlex.split(line), cwd=walker.project, env=os.environ | dict(walker.environment), capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    script, *arguments = shlex.split(line)
    return Step(
        (script.removeprefix("scripts/").removesuffix(".py"), *arguments), done.returncode, done.stdout, done.stderr
    )
