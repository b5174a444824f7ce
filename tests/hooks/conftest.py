# SPDX-License-Identifier: Apache-2.0
"""A project with a deployment under way, and the guards started as Claude Code starts them: from hooks.json, by a shell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

PACK = Path(__file__).resolve().parents[2]
EVENTS = Path(__file__).with_name("events")


@dataclass
class House:
    """An installed pack and a project beside it, both in a folder with a space, a quote and a letter beyond ASCII."""

    pack: Path
    project: Path

    def fire(self, event: str, command: str = "") -> subprocess.CompletedProcess:
        """Feed a recorded event to the hook of its kind; PROJECT, PACK and COMMAND are filled in."""
        text = (EVENTS / f"{event}.json").read_text()
        recorded = json.loads(text.replace("PROJECT", str(self.project)).replace("PACK", str(self.pack)))
        if command:
            recorded["tool_input"]["command"] = command.replace("PROJECT", str(self.project)).replace(
                "PACK", str(self.pack)
            )
        return self.start(recorded["hook_event_name"], json.dumps(recorded))

    def start(self, kind: str, stdin: str) -> subprocess.CompletedProcess:
        """Run the hook command of `kind` in a shell with the variables that the client sets."""
        hook = json.loads((PACK / "hooks" / "hooks.json").read_text())["hooks"][kind][0]["hooks"][0]
        environment = {
            "PATH": os.environ["PATH"], "CLAUDE_PLUGIN_ROOT": str(self.pack), "CLAUDE_PROJECT_DIR": str(self.project),
        }  # fmt: skip
        return subprocess.run(
            ["sh", "-c", hook["command"]],
            input=stdin,
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def marker(self) -> Path:
        return self.project / "deployments" / "fixture" / "UNDER_WAY"


@pytest.fixture
def house(tmp_path: Path) -> House:
    """The pack's guarded parts and hooks, copied; a project with one deployment under way."""
    pack, project = tmp_path / "plug in's ö", tmp_path / "my project's ö"
    for part in ("hooks", "judge", "reference"):
        shutil.copytree(PACK / part, pack / part, ignore=shutil.ignore_patterns("__pycache__"))
    deployment = project / "deployments" / "fixture"
    deployment.mkdir(parents=True)
    (deployment / "UNDER_WAY").write_text('{"name": "fixture", "pid": 1, "time": "2026-01-02T03:04:05Z", "pack": ""}\n')
    (deployment / "state.json").write_text('{"next": "scripts/deploy.py --name fixture --phase 2", "question": null}\n')
    (deployment / "evidence.jsonl").write_text("")
    return House(pack, project)
