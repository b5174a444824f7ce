# SPDX-License-Identifier: Apache-2.0
"""The pack's skills under the pack's own lint, the open standard's validator, and agnix."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import skills_ref

from judge.diagnosis import rules
from pipeline.conduct import PHASES, SKILLS
from tests.skills.lint import RULES, lint
from tests.skills.verbs import PACK, parsers

FOLDERS = sorted(path.parent for path in PACK.glob("skills/*/SKILL.md"))


def test_the_own_lint_has_nothing_to_say() -> None:
    report = lint(PACK / "skills", PACK, parsers())
    assert report.problems == []
    assert set(report.looked_at) == {rule.__name__ for rule in RULES}
    assert min(report.looked_at.values()) > 0


def test_there_is_a_skill_for_every_phase_and_every_diagnosis() -> None:
    names = {folder.name for folder in FOLDERS}
    assert set(SKILLS) == set(PHASES)
    assert set(SKILLS.values()) <= names
    diagnosed = {rule.skill for rule in rules() if rule.skill}
    assert diagnosed
    assert diagnosed <= names


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_open_standard_accepts_it(folder: Path) -> None:
    assert skills_ref.validate(folder) == []


def agnix(folder: Path) -> tuple[int, list[dict], int]:
    """Exit code, diagnostics that are not mere information, and how many files agnix looked at."""
    command = [str(Path(sys.executable).parent / "agnix"), "--strict", "--format", "json", str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    found = [item for item in report["diagnostics"] if item["level"] != "info"]
    return done.returncode, found, report["files_checked"]


def test_agnix_has_nothing_to_say_about_the_pack() -> None:
    code, found, files = agnix(PACK)
    assert found == []
    assert code == 0
    assert files > len(FOLDERS)


def test_agnix_says_something_about_a_bad_skill(tmp_path: Path) -> None:
    bad = tmp_path / "skills" / "bad" / "SKILL.md"
    bad.parent.mkdir(parents=True)
    bad.write_text("---\nname: bad\ndescription: Use when testing\nmodel: nonsense\n---\n\n# Bad\n")
    code, found, _ = agnix(tmp_path)
    assert found
    assert code == 1
