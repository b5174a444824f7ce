# SPDX-License-Identifier: Apache-2.0
"""The manifests validate strictly, the plugin installs from its own marketplace without errors, and costs few tokens."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.plugin_check.client import Client

ALWAYS_ON_TOKENS = 1500  # added to every session of a person who has installed the plugin
ON_INVOKE_TOKENS = 5000  # after compaction a client brings back the first 5,000 tokens of a skill


@pytest.mark.parametrize("path", [".", ".claude-plugin/plugin.json", ".claude-plugin/marketplace.json"])
def test_the_folder_and_both_manifests_validate_strictly(path: str, client: Client, repository: Path) -> None:
    done = client.run("plugin", "validate", "--strict", str(repository / path), cwd=repository)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_validator_is_not_asleep(client: Client, tmp_path: Path, repository: Path) -> None:
    bad = tmp_path / "bad" / ".claude-plugin"
    bad.mkdir(parents=True)
    (bad / "plugin.json").write_text('{"name": "has spaces"}')
    assert client.run("plugin", "validate", "--strict", str(bad.parent), cwd=repository).returncode == 1


def test_it_installs_from_its_own_marketplace_without_errors(client: Client, repository: Path, project: Path) -> None:
    client.install(repository, project)
    (entry,) = [plugin for plugin in client.listing(project) if plugin["id"].startswith("npu@")]
    assert entry["enabled"]
    assert not entry.get("errors")


def test_an_install_that_is_broken_shows_in_the_list(
    client: Client, tmp_path: Path, project: Path, repository: Path
) -> None:
    broken = Path(shutil.copytree(repository, tmp_path / "broken", symlinks=True))
    (broken / "hooks" / "hooks.json").write_text("{ not json")
    client.install(broken, project)
    (entry,) = [plugin for plugin in client.listing(project) if plugin["id"].startswith("npu@")]
    assert entry.get("errors")


def test_settings_of_the_repository_are_valid_and_bad_ones_would_show(
    client: Client, repository: Path, project: Path
) -> None:
    client.trust(repository)
    client.trust(project)
    bad = project / ".claude" / "settings.json"
    bad.parent.mkdir()
    bad.write_text('{"permissions": {"allow": "everything"}}')
    said = {folder: client.run("doctor", cwd=folder) for folder in (repository, project)}
    assert "Invalid settings" in said[project].stdout + said[project].stderr
    assert "Invalid settings" not in said[repository].stdout + said[repository].stderr


def test_token_cost_is_within_budget(client: Client, repository: Path, project: Path) -> None:
    client.install(repository, project)
    done = client.run("plugin", "details", "npu", cwd=project)
    always = _number(re.search(r"Always-on:\s+~([\d.k]+) tok", done.stdout)[1])
    rows = re.findall(r"^\s+([\w:-]+)\s+~([\d.k]+)\s+~([\d.k]+)\s*$", done.stdout, re.M)
    assert len(rows) >= len(list((repository / "skills").iterdir())), done.stdout
    assert 0 < always <= ALWAYS_ON_TOKENS
    for name, _, invoked in rows:
        assert _number(invoked) <= ON_INVOKE_TOKENS, name


def _number(text: str) -> float:
    return float(text[:-1]) * 1000 if text.endswith("k") else float(text)
