# SPDX-License-Identifier: Apache-2.0
"""The plugin's manifests, the repository's settings, and the one link that makes it load when it is opened."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.skills.verbs import PACK, parsers

PROJECT = tomllib.loads((PACK / "pyproject.toml").read_text())


def manifest(name: str) -> dict:
    return json.loads((PACK / ".claude-plugin" / name).read_text())


def test_the_plugin_names_itself_and_nothing_that_is_loaded_by_convention() -> None:
    plugin = manifest("plugin.json")
    assert plugin["name"] == "npu"
    assert re.fullmatch(r"\d+\.\d+\.\d+", plugin["version"])
    assert plugin["version"] == PROJECT["project"]["version"]
    assert plugin["license"] == "Apache-2.0"
    assert plugin["description"]
    # Naming a folder that is loaded anyway makes some clients drop it as a duplicate.
    assert not {"hooks", "skills", "agents", "commands"} & set(plugin)


def test_the_marketplace_is_the_repository_and_holds_this_plugin_alone() -> None:
    market = manifest("marketplace.json")
    (entry,) = market["plugins"]
    assert market["name"] == "llm-to-npu"
    assert (entry["name"], entry["source"]) == (manifest("plugin.json")["name"], "./")
    assert "version" not in entry  # the plugin's own is the one that counts


def test_opening_the_repository_loads_the_plugin_through_one_link() -> None:
    (link,) = (PACK / ".claude" / "skills").iterdir()
    assert link.name == manifest("plugin.json")["name"]
    assert link.readlink() == Path("../..")
    assert link.resolve() == PACK.resolve()


def test_settings_hold_permissions_alone_and_name_verbs_and_targets_that_exist() -> None:
    settings = json.loads((PACK / ".claude" / "settings.json").read_text())
    assert set(settings) == {"permissions"}
    allowed = settings["permissions"]["allow"]
    verbs = [found[1] for rule in allowed if (found := re.fullmatch(r"Bash\(scripts/(\w+)\.py:\*\)", rule))]
    makes = [found[1] for rule in allowed if (found := re.fullmatch(r"Bash\(make ([a-z-]+)\)", rule))]
    assert sorted(verbs) == sorted(parsers())
    assert set(makes) <= set(re.findall(r"^([a-z-]+):", (PACK / "Makefile").read_text(), re.M))
    assert len(verbs) + len(makes) == len(allowed)


def test_every_verb_can_be_run_as_the_rules_name_it() -> None:
    for verb in parsers():
        script = PACK / "scripts" / f"{verb}.py"
        assert script.stat().st_mode & 0o111, script
        assert script.read_text().startswith("#!/usr/bin/env python3\n")


def test_ruff_does_not_follow_the_link() -> None:
    command = [sys.executable, "-m", "ruff", "check", "--show-files", "."]
    done = subprocess.run(command, cwd=PACK, capture_output=True, text=True, check=True)
    files = [Path(line).relative_to(PACK) for line in done.stdout.splitlines()]
    assert Path("scripts/deploy.py") in files
    assert not [path for path in files if path.parts[0] == ".claude"]


def test_pytest_does_not_follow_the_link() -> None:
    patterns = PROJECT["tool"]["pytest"]["ini_options"]["norecursedirs"]
    assert any(fnmatch.fnmatch(".claude", pattern) for pattern in patterns)
