# SPDX-License-Identifier: Apache-2.0
"""What a session offers: the same commands, agents and hooks, once, in whichever way the pack came in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.plugin_check import golden
from tests.plugin_check.client import PACK, Client, Loaded


@pytest.mark.parametrize("situation", golden.SITUATIONS)
def test_a_session_offers_the_golden_list(situation: str, client: Client, repository: Path, project: Path) -> None:
    found = golden.load(situation, client, repository, project)
    assert found == golden.read()[situation], "what loads has changed; if it should: make plugin-golden"


def test_the_golden_list_is_what_the_repository_holds() -> None:
    """The list was written by the client; this counts the files, so neither can lose a skill alone."""
    handlers = json.loads((PACK / "hooks" / "hooks.json").read_text())["hooks"]
    expected = Loaded(
        tuple(sorted(f"npu:{path.parent.name}" for path in PACK.glob("skills/*/SKILL.md"))),
        tuple(sorted(f"npu:{path.stem}" for path in PACK.glob("agents/*.md"))),
        sum(len(entry["hooks"]) for entries in handlers.values() for entry in entries),
    )
    assert expected.commands
    assert golden.read() == dict.fromkeys(golden.SITUATIONS, expected)


def test_an_untrusted_folder_offers_nothing(client: Client, repository: Path) -> None:
    assert client.loaded(repository) == Loaded((), (), 0)


def test_only_the_copy_that_stepped_aside_is_reported(client: Client, repository: Path, project: Path) -> None:
    client.install(repository, project)
    client.trust(repository)
    errors = {plugin["id"]: plugin.get("errors") for plugin in client.listing(repository) if "npu@" in plugin["id"]}
    assert not errors["npu@llm-to-npu"]
    (said,) = errors["npu@skills-dir"]
    assert "already taken" in said
