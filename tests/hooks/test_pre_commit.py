# SPDX-License-Identifier: Apache-2.0
"""The checks before a commit: each finds what it is for, names the command that mends it, and lets an honest commit pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from judge.evidence import Entry, Kind, append
from judge.fixture import write_fixture
from pipeline import documents, manifest
from pipeline.deployment import Deployment
from pipeline.intake import describe

PACK = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository with one file that is staged."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "my project"
    folder.mkdir()
    git(folder, "init", "-q")
    stage(folder, "README.md", "text\n")
    return folder


@pytest.fixture
def deployment(project: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment in the project with a few records and fresh documents."""
    monkeypatch.chdir(project)
    write_fixture(project / "model")
    found = Deployment.start(describe("model", device="twin", name="x", context=512))
    for number in range(3):
        append(found.evidence, Entry(Kind.DECISION, f"choice {number}", {"choice": "a", "reason": "b"}))
    documents.write(found)
    return found


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


def stage(folder: Path, name: str, content: str | bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    git(folder, "add", "-f", name)


def run(folder: Path, *checks: str) -> tuple[int, str]:
    command = [sys.executable, str(PACK / "hooks" / "pre_commit.py"), *checks]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_an_honest_commit_passes_every_check(project, deployment):
    assert run(project) == (0, "")


@pytest.mark.parametrize(
    "name",
    ["model/model.safetensors", "a.gguf", "kernel.o", "x.xclbin", "deployments/x/plan.md", "models/m/config.json"],
)
def test_artefacts_are_kept_out(project, name):
    stage(project, name, "x")
    code, said = run(project, "artefacts")
    assert code == 1
    assert f"git rm --cached {name}" in said


def test_large_files_are_kept_out(project):
    stage(project, "data.json", b" " * (5 << 20) + b"0")
    assert run(project, "artefacts")[0] == 1


def test_a_broken_chain_is_named_with_its_record(project, deployment):
    deployment.evidence.write_text(deployment.evidence.read_text().replace("choice 1", "choice 9"))
    code, said = run(project, "evidence")
    assert code == 1
    assert "record 1 (line 2)" in said


def test_a_broken_chain_is_found_as_it_is_staged(project, deployment):
    whole = deployment.evidence.read_text()
    stage(project, "kept/evidence.jsonl", whole.replace("choice 1", "choice 9"))
    (project / "kept" / "evidence.jsonl").write_text(whole)
    code, said = run(project, "evidence")
    assert code == 1
    assert "kept/evidence.jsonl (staged)" in said


def test_stale_documents_are_named_and_the_command_mends_them(project, deployment):
    append(deployment.evidence, Entry(Kind.DECISION, "later", {"choice": "a", "reason": "b"}))
    code, said = run(project, "documents")
    assert code == 1
    assert "plan.md" in said
    documents.write(deployment)
    assert run(project, "documents")[0] == 0


def test_a_manifest_that_is_not_what_is_staged_is_named(project):
    stage(project, "judge/policy.toml", "a = 1\n")
    manifest.write(project)
    git(project, "add", manifest.NAME)
    assert run(project, "manifest") == (0, "")
    stage(project, "judge/policy.toml", "a = 2\n")
    code, said = run(project, "manifest")
    assert code == 1
    assert "changed: judge/policy.toml; make manifest" in said


@pytest.mark.parametrize("text", ["import os\n", "x = {  'a':1}\n"])
def test_lint_and_format_of_staged_python(project, text):
    stage(project, "a.py", text)
    assert run(project, "lint")[0] == 1


def test_an_unknown_check_is_refused(project):
    assert run(project, "spelling")[0] == 2
