# SPDX-License-Identifier: Apache-2.0
"""A copy of the pack by its manifest works, and the link that opens the repository as a plugin makes no tool run in a circle."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import manifest
from tests.walker.conftest import ROOT, Town

LINK = Path(".claude/skills/npu")


def output(folder: Path, *command: str) -> list[str]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_copy_by_the_manifest_holds_no_link_and_is_its_manifest(town: Town) -> None:
    paths = [path for path in town.pack.rglob("*") if path.is_file() or path.is_symlink()]
    assert len(paths) > 100
    assert not [path for path in paths if path.is_symlink()]
    assert not manifest.check(town.pack)
    assert {path.relative_to(town.pack).parts[0] for path in paths}.isdisjoint({".claude", "tests", ".git"})


def test_a_copy_by_the_manifest_runs_doctor_from_elsewhere(town: Town, tmp_path: Path) -> None:
    step = town.walker(tmp_path).run("doctor")
    assert (step.code, step.next) == (0, "scripts/deploy.py MODEL"), step.err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_pack(tmp_path: Path) -> Path:
    """The repository's settings and link around one source file and one test."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for folder in ("tests", "skills/one"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tests" / "test_one.py").write_text('"""One test."""\n\n\ndef test_one() -> None:\n    assert True\n')
    (tmp_path / "skills" / "one" / "SKILL.md").write_text("a word to be found\n")
    (tmp_path / LINK).parent.mkdir(parents=True)
    (tmp_path / LINK).symlink_to((ROOT / LINK).readlink())
    assert (tmp_path / LINK / "tests" / "test_one.py").exists()
    return tmp_path


@pytest.mark.parametrize("given", [(), (".",)])
def test_pytest_collects_a_test_once(small_pack: Path, given: tuple[str, ...]) -> None:
    command = ("-m", "pytest", "-p", "no:cacheprovider", "--collect-only", *given)
    found = [line for line in output(small_pack, sys.executable, *command) if "::" in line]
    assert found == ["tests/test_one.py::test_one"]


def test_ruff_looks_at_a_file_once(small_pack: Path) -> None:
    found = output(small_pack, sys.executable, "-m", "ruff", "check", "--show-files", "--no-cache", ".")
    assert [Path(line).name for line in found if line.endswith(".py")] == ["test_one.py"]


@pytest.mark.skipif(shutil.which("rg") is None, reason="ripgrep is not installed here")
def test_ripgrep_finds_a_word_once(small_pack: Path) -> None:
    assert output(small_pack, "rg", "--hidden", "-l", "a word to be found", ".") == ["./skills/one/SKILL.md"]


def test_grep_finds_a_word_once(small_pack: Path) -> None:
    assert output(small_pack, "grep", "-rl", "a word to be found", ".") == ["./skills/one/SKILL.md"]


def test_the_manifest_lists_a_file_once(small_pack: Path) -> None:
    assert sorted(manifest.files_of(small_pack)) == ["pyproject.toml", "skills/one/SKILL.md"]
