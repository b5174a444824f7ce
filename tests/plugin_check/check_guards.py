# SPDX-License-Identifier: Apache-2.0
"""Each guard in a real session: it blocks, it lets pass, and with its script missing it fails on the safe side.

The model is scripted (`model_stand_in`), so hooks, permissions and tools really run and every case is the same each time.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.plugin_check.client import Client, Session
from tests.plugin_check.model_stand_in import DONE, Script, serving

BEFORE = "the first record\n"


@pytest.fixture
def installed(client: Client, repository: Path, project: Path, tmp_path: Path) -> Path:
    """The plugin, installed from a copy that a case may spoil; returns the copy."""
    copy = Path(shutil.copytree(repository, tmp_path / "the pack" / "llm to npu", symlinks=True))
    client.install(copy, project)
    client.trust(project)
    return copy


@pytest.fixture
def evidence(project: Path) -> Path:
    """A deployment's evidence in the person's project; no deployment is under way yet."""
    path = project / "deployments" / "demo" / "evidence.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(BEFORE)
    return path


def begin(evidence: Path) -> None:
    """From now on the deployment is under way."""
    (evidence.parent / "UNDER_WAY").write_text('{"time": "2026-01-01T00:00:00Z", "name": "demo"}')


def write(path: Path, client: Client, project: Path) -> Session:
    """A session in which the model writes to a file once."""
    if path.exists():
        # A file that is there is written by the shell: the Write tool asks for a read first.
        call = ("Bash", {"command": f"echo changed > '{path}'", "description": "write"})
    else:
        call = ("Write", {"file_path": str(path), "content": "changed\n"})
    with serving(Script(*call)) as script:
        session = client.session(script, project)
    assert script.asked, "the tool was not offered"
    assert session.ended, session.stream
    return session


def test_the_file_guard_denies_a_record_of_a_deployment_under_way(
    installed: Path, evidence: Path, client: Client, project: Path
) -> None:
    begin(evidence)
    ((code, said),) = write(evidence, client, project).of("PreToolUse")
    assert code == 2
    assert evidence.read_text() == BEFORE
    for word in ("evidence.jsonl", "demo", "scripts/abandon.py demo"):
        assert word in said


def test_the_file_guard_denies_the_write_tool_too(
    installed: Path, evidence: Path, client: Client, project: Path
) -> None:
    begin(evidence)
    forged = evidence.with_name("evaluation_report.md")
    assert write(forged, client, project).of("PreToolUse")[0][0] == 2
    assert not forged.exists()


def test_the_file_guard_denies_the_judge_of_the_pack(
    installed: Path, evidence: Path, client: Client, project: Path
) -> None:
    begin(evidence)
    policy = installed / "judge" / "policy.toml"
    before = policy.read_bytes()
    assert write(policy, client, project).of("PreToolUse")[0][0] == 2
    assert policy.read_bytes() == before


def test_the_file_guard_lets_other_files_pass(installed: Path, evidence: Path, client: Client, project: Path) -> None:
    begin(evidence)
    notes = project / "notes.md"
    assert write(notes, client, project).of("PreToolUse") == [(0, "")]
    assert notes.read_text() == "changed\n"


def test_the_file_guard_binds_no_project_without_a_deployment_under_way(
    installed: Path, evidence: Path, client: Client, project: Path
) -> None:
    assert write(evidence, client, project).of("PreToolUse") == [(0, "")]
    assert evidence.read_text() == "changed\n"


@pytest.mark.parametrize("spoil", ["missing", "crashing"])
def test_without_its_script_the_file_guard_blocks(
    spoil: str, installed: Path, evidence: Path, client: Client, project: Path
) -> None:
    begin(evidence)
    script = installed / "hooks" / "guard_files.py"
    script.unlink()
    if spoil == "crashing":
        script.write_text("raise SystemExit(1)\n")
    notes = project / "notes.md"
    write(notes, client, project)
    assert not notes.exists()


def test_the_reminder_sends_a_session_back_once_and_then_lets_it_end(
    installed: Path, evidence: Path, client: Client, project: Path
) -> None:
    begin(evidence)
    with serving(Script()) as script:
        session = client.session(script, project)
    (first, said), (second, _) = session.of("Stop")
    assert (first, second) == (2, 0)
    assert session.ended
    assert "next: scripts/deploy.py --name demo" in said
    assert "scripts/deploy.py --name demo" in script.heard[-1]  # the model was told


def test_the_reminder_is_silent_where_nothing_is_under_way(
    installed: Path, evidence: Path, client: Client, project: Path
) -> None:
    with serving(Script()) as script:
        session = client.session(script, project)
    assert session.of("Stop") == [(0, "")]
    assert session.ended
    assert DONE in session.stream


def test_without_its_script_the_reminder_lets_the_session_end(
    installed: Path, evidence: Path, client: Client, project: Path
) -> None:
    """A reminder is no gate: a session that it cannot end would loop. The proof is `evaluate`."""
    begin(evidence)
    (installed / "hooks" / "nudge_stop.py").unlink()
    with serving(Script()) as script:
        session = client.session(script, project)
    assert session.of("Stop") == [(0, "")]
    assert session.ended


def test_opened_and_installed_each_hook_fires_once(
    client: Client, repository: Path, project: Path, tmp_path: Path
) -> None:
    opened = Path(shutil.copytree(repository, tmp_path / "opened pack", symlinks=True))
    client.install(opened, project)
    client.trust(opened)
    session = write(opened / "notes.md", client, opened)
    assert len(session.of("PreToolUse")) == 1
    assert len(session.of("Stop")) == 1
