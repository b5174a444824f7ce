# SPDX-License-Identifier: Apache-2.0
"""The shipped manifest: what ships, what differs is named, and a copy made by it works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import manifest
from refusal import Refusal
from scripts import environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A small pack with a manifest."""
    folder = tmp_path / "a pack"
    for name in ("judge/gates.py", "scripts/doctor.py", ".claude-plugin/plugin.json", "README.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name}\n")
    manifest.write(folder)
    return folder


@pytest.mark.parametrize(
    "path",
    ["judge/policy.toml", "npu/twin/include/aie_api/aie.hpp", ".claude-plugin/plugin.json", "skills/x/SKILL.md", "refusal.py",
     "hooks/hooks.json", "agents/independent-evaluator.md", "pyproject.toml"],
)  # fmt: skip
def test_ships(path):
    assert manifest.ships(path)


@pytest.mark.parametrize(
    "path",
    ["manifest.json", "tests/judge/test_gates.py", ".claude/settings.json", ".venv/bin/python", ".git/HEAD", "plan.md",
     "judge/__pycache__/gates.cpython-311.pyc", "models/x/config.json", "deployments/x/evidence.jsonl", "npu/x.so",
     "pipeline/.hidden.py", ".gitignore"],
)  # fmt: skip
def test_does_not_ship(path):
    assert not manifest.ships(path)


def test_a_fresh_manifest_agrees(pack):
    assert not manifest.check(pack)
    assert manifest.pack_hash(pack) == manifest.digest(manifest.read(pack))


def test_changed_extra_and_missing_files_are_named(pack):
    (pack / "judge" / "gates.py").write_text("lenient\n")
    (pack / "judge" / "more.py").write_text("\n")
    (pack / "README.md").unlink()
    assert manifest.check(pack).lines() == ["changed: judge/gates.py", "extra: judge/more.py", "missing: README.md"]


def test_a_copy_has_the_files_of_the_manifest_and_no_others(pack, tmp_path):
    (pack / "judge" / "more.py").write_text("\n")
    target = tmp_path / "copy"
    assert manifest.copy_pack(pack, target) == manifest.digest(manifest.read(pack))
    assert manifest.files_of(target) == manifest.read(pack)
    assert not (target / "judge" / "more.py").exists()


def test_a_changed_file_is_not_copied(pack, tmp_path):
    (pack / "judge" / "gates.py").write_text("lenient\n")
    with pytest.raises(Refusal, match=r"changed: judge/gates\.py"):
        manifest.copy_pack(pack, tmp_path / "copy")


def test_a_missing_file_stops_the_copy(pack, tmp_path):
    (pack / "README.md").unlink()
    with pytest.raises(Refusal, match=r"missing: README.md"):
        manifest.copy_pack(pack, tmp_path / "copy")


@pytest.mark.parametrize("linked", ["judge/gates.py", "judge"])
def test_links_are_never_followed(pack, tmp_path, linked):
    elsewhere = tmp_path / "elsewhere"
    shutil.move(pack / linked, elsewhere)
    (pack / linked).symlink_to(elsewhere)
    assert "missing: judge/gates.py" in manifest.check(pack).lines()
    with pytest.raises(Refusal, match=r"link: judge/gates\.py"):
        manifest.copy_pack(pack, tmp_path / "copy")


def test_a_link_to_the_pack_itself_does_not_loop(pack):
    (pack / "skills").mkdir()
    (pack / "skills" / "npu").symlink_to(pack)
    assert not manifest.check(pack)


@pytest.mark.parametrize("name", ["../outside.py", "/etc/passwd", "tests/x.py"])
def test_a_manifest_that_points_outside_the_pack_is_refused(pack, name):
    (pack / manifest.NAME).write_text(json.dumps({"files": {name: "0" * 64}}))
    with pytest.raises(Refusal, match="inside the pack"):
        manifest.read(pack)


def test_what_git_is_about_to_commit_is_judged_by_its_own_content(pack):
    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=pack, check=True, capture_output=True)

    git("init", "-q")
    git("add", "-A")
    assert not manifest.compare(manifest.staged_manifest(pack), manifest.staged(pack))
    (pack / "README.md").write_text("changed, and staged\n")
    git("add", "README.md")
    (pack / "judge" / "gates.py").write_text("changed, and not staged\n")
    found = manifest.compare(manifest.staged_manifest(pack), manifest.staged(pack))
    assert found.lines() == ["changed: README.md"]


def test_the_doctor_runs_from_a_copy_in_a_path_with_a_space(tmp_path):
    """The copy is made from the files as they are, so that this holds between two runs of `make manifest` too."""
    source, target, data = tmp_path / "source", tmp_path / "plug in" / "copied pack", tmp_path / "data"
    for name in manifest.files_of(ROOT):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    manifest.write(source)
    manifest.copy_pack(source, target)
    data.mkdir()
    (data / "venv").symlink_to(environment.location())
    done = subprocess.run(
        [sys.executable, str(target / "scripts" / "doctor.py")], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CLAUDE_PLUGIN_DATA": str(data)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().splitlines()[-1].startswith("next: scripts/deploy.py")
