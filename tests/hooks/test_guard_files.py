# SPDX-License-Identifier: Apache-2.0
"""The write guard: what judges a deployment, and what it recorded, may not be edited while it is under way."""

from __future__ import annotations

import json

import pytest

from tests.hooks.conftest import PACK

DENIED = ["write_evidence", "edit_judge", "edit_reference", "notebook_judge"]
ALLOWED = ["write_notes", "edit_issues"]


@pytest.mark.parametrize("event", DENIED)
def test_protected_files_are_denied(house, event):
    done = house.fire(event)
    assert done.returncode == 2
    assert "denied" in done.stderr


@pytest.mark.parametrize("event", ALLOWED)
def test_other_files_are_free(house, event):
    assert house.fire(event).returncode == 0


def test_a_refusal_names_the_marker_and_how_to_end_it(house):
    said = house.fire("edit_judge").stderr
    assert str(house.marker) in said
    assert "2026-01-02T03:04:05Z" in said
    assert "scripts/abandon.py fixture --reason" in said


@pytest.mark.parametrize("event", DENIED)
def test_without_a_marker_nothing_is_guarded(house, event):
    house.marker.unlink()
    done = house.fire(event)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_link_to_a_protected_file_is_the_file(house):
    (house.project / "notes.md").symlink_to(house.pack / "judge" / "policy.toml")
    assert house.fire("write_notes").returncode == 2


@pytest.mark.parametrize(
    "command",
    [
        'echo x > "PACK/judge/policy.toml"',
        'cd "PACK" && sed -i s/0.1/0.2/ judge/policy.toml',
        "cat x | tee deployments/fixture/evidence.jsonl",
        "cp /tmp/x deployments/fixture/evidence.jsonl",
        "cp /tmp/evidence.jsonl deployments/fixture",
        "rm -rf deployments/fixture",
        "mv deployments old",
        "rm deployments/fixture/UNDER_WAY",
        'cd "PACK"; git checkout HEAD~1 -- reference/oracle/ops.py',
        "python3 -c \"open('deployments/fixture/evidence.jsonl', 'w')\"",
        "python3 - <<'X'\nfrom pathlib import Path\nPath('deployments/fixture/state.json').write_text('{}')\nX",
        "true; FOO=1 truncate -s 0 deployments/fixture/evidence.jsonl",
        "dd if=/dev/zero of=deployments/fixture/evidence.jsonl",
        'echo 1>>"PACK/hooks/hooks.json"',
        "bash -c 'echo x > deployments/fixture/evidence.jsonl'",
    ],
)
def test_shell_commands_that_write_protected_files_are_denied(house, command):
    assert house.fire("bash", command).returncode == 2, command


@pytest.mark.parametrize(
    "command",
    [
        'cat "PACK/judge/policy.toml" > /tmp/copy.toml',
        "tail -n 1 deployments/fixture/evidence.jsonl | python3 -m json.tool",
        'grep -r threshold "PACK/judge" 2>/dev/null',
        'python3 "PACK/scripts/status.py" fixture --wait 90',
        "cp deployments/fixture/evidence.jsonl /tmp/",
        "git status && git log",
        'echo "it\'s under way" >> notes.md',
        "sed -n 1,5p deployments/fixture/evidence.jsonl",
        "rm -rf /tmp/some-scratch",
    ],
)
def test_shell_commands_that_read_or_write_elsewhere_are_free(house, command):
    done = house.fire("bash", command)
    assert done.returncode == 0, done.stderr


def test_a_missing_script_blocks(house):
    (house.pack / "hooks" / "guard_files.py").unlink()
    assert house.fire("write_notes").returncode == 2


def test_a_missing_script_does_not_bind_a_project_without_a_marker(house):
    (house.pack / "hooks" / "guard_files.py").unlink()
    house.marker.unlink()
    assert house.fire("write_notes").returncode == 0


def test_a_crash_blocks(house):
    (house.pack / "hooks" / "guard_files.py").write_text("raise SystemExit(1)\n")
    assert house.fire("write_notes").returncode == 2


@pytest.mark.parametrize(
    "stdin", ["", "{broken", "[]", '{"tool_name": "Write"}', '{"tool_name": "Write", "tool_input": {}}']
)
def test_an_event_that_cannot_be_read_blocks(house, stdin):
    assert house.start("PreToolUse", stdin).returncode == 2


def test_hooks_are_declared_as_the_client_needs_them():
    """plugin-spec 2.5: only `|| exit 2` and onFailure close; the default path stands in no manifest; paths are quoted."""
    hooks = json.loads((PACK / "hooks" / "hooks.json").read_text())["hooks"]
    (guard,) = hooks["PreToolUse"]
    assert guard["matcher"] == "Write|Edit|NotebookEdit|Bash"
    (handler,) = guard["hooks"]
    assert handler["command"].endswith("|| exit 2")
    assert handler["onFailure"] == "block"
    for kind in hooks.values():
        command = kind[0]["hooks"][0]["command"]
        assert command.count("${CLAUDE_PLUGIN_ROOT}") == command.count('"${CLAUDE_PLUGIN_ROOT}/')
    assert "hooks" not in json.loads((PACK / ".claude-plugin" / "plugin.json").read_text())
    assert "hooks" not in json.loads((PACK / ".claude" / "settings.json").read_text())
