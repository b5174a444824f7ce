# SPDX-License-Identifier: Apache-2.0
"""The pinned command-line client: installed once from npm into a cache folder, run in an empty home and environment.

The native package holds one program of 402 MB. Its version is pinned, since older ones are far weaker validators. No
install script runs, no account is used, and the only service that a session talks to is the stand-in on 127.0.0.1.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from tests.plugin_check.model_stand_in import Script

PACKAGE, VERSION = "@anthropic-ai/claude-code-linux-x64", "2.1.332"
PACK = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("PLUGIN_CHECK_CACHE", PACK / ".cache" / "claude-code"))
TIMEOUT_SECONDS = 120
INITIALIZE = {"type": "control_request", "request_id": "1", "request": {"subtype": "initialize"}}


def installed_client() -> Path:
    """The client's program; installed by npm where it is not in the cache.

    One process installs, into a folder beside the cache that is renamed when it is whole: a program that is still being
    written cannot be run ("text file busy"), and the workers of one run all ask for it at once.
    """
    program = CACHE / "node_modules" / PACKAGE / "claude"
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{CACHE}.lock"):
        if not _has_pinned_version(program):
            _install()
    return program


def _has_pinned_version(program: Path) -> bool:
    manifest = program.parent / "package.json"
    return program.exists() and manifest.exists() and json.loads(manifest.read_text())["version"] == VERSION


def _install() -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("npm is not installed; it is needed once to fetch the client: apt-get install npm")
    fresh = CACHE.with_name(f"{CACHE.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    options = ["--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run([npm, "install", "--prefix", str(fresh), *options, f"{PACKAGE}@{VERSION}"], check=True)
    shutil.rmtree(CACHE, ignore_errors=True)
    fresh.rename(CACHE)


@dataclass(frozen=True)
class Loaded:
    """What a session offers of this plugin."""

    commands: tuple[str, ...]
    agents: tuple[str, ...]
    hooks: int


@dataclass(frozen=True)
class Session:
    """How a session went. hooks: (event, exit code, message) of every hook that ran, in order."""

    hooks: tuple[tuple[str, int, str], ...]
    ended: bool
    stream: str

    def of(self, event: str) -> list[tuple[int, str]]:
        """Exit code and message of each hook of an event."""
        return [(code, text) for name, code, text in self.hooks if name == event]


@dataclass(frozen=True)
class Client:
    """The client in one home.

    Args:
        program: the native program. home: its home, empty at first.
    """

    program: Path
    home: Path

    def environment(self, more: Mapping[str, str] = {}) -> dict[str, str]:
        """All that the client sees of this machine."""
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.home), "TERM": "dumb", "LANG": "C.UTF-8",
            "DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            **more,
        }  # fmt: skip

    def run(
        self, *arguments: str, cwd: Path, given: str = "", more: Mapping[str, str] = {}
    ) -> subprocess.CompletedProcess[str]:
        """Run the client; standard input is `given`."""
        return subprocess.run(
            [str(self.program), *arguments], cwd=cwd, env=self.environment(more), input=given,
            capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False,
        )  # fmt: skip

    def trust(self, folder: Path) -> None:
        """Mark a folder as trusted, as a person does in the dialog."""
        settings = self.home / ".claude.json"
        content = json.loads(settings.read_text()) if settings.exists() else {}
        content.setdefault("projects", {})[str(folder)] = {"hasTrustDialogAccepted": True}
        settings.write_text(json.dumps(content))

    def install(self, repository: Path, cwd: Path) -> None:
        """Add the repository as a marketplace and install the plugin from it."""
        for arguments in (("marketplace", "add", str(repository)), ("install", "npu@llm-to-npu")):
            done = self.run("plugin", *arguments, cwd=cwd)
            assert done.returncode == 0, done.stdout + done.stderr

    def listing(self, cwd: Path, *flags: str) -> list[dict[str, Any]]:
        """`plugin list --json`: the one place where a broken install shows."""
        done = self.run(*flags, "plugin", "list", "--json", cwd=cwd)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def session(self, script: Script, cwd: Path, *flags: str) -> Session:
        """One headless session whose model is the script; the tools that write may be used without asking."""
        more = {"ANTHROPIC_BASE_URL": script.endpoint, "ANTHROPIC_API_KEY": "scripted"}
        streams = ("--output-format", "stream-json", "--verbose", "--include-hook-events")
        done = self.run("-p", "go", *streams, "--allowedTools", "Write,Edit,Bash", *flags, cwd=cwd, more=more)
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        answers = [event for event in found if event.get("subtype") == "hook_response"]
        hooks = tuple((event["hook_event"], event["exit_code"], event["stderr"]) for event in answers)
        ended = any(event.get("type") == "result" and event.get("subtype") == "success" for event in found)
        return Session(hooks, ended, done.stdout)

    def loaded(self, cwd: Path, *flags: str) -> Loaded:
        """Start a session, ask what it offers, send no prompt."""
        log = self.home / "debug.log"
        log.unlink(missing_ok=True)
        streams = ("--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
        done = self.run("-p", *streams, "--debug-file", str(log), *flags, cwd=cwd, given=json.dumps(INITIALIZE) + "\n")
        answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        (answer,) = [a["response"]["response"] for a in answers if a.get("type") == "control_response"]
        return Loaded(
            tuple(sorted(name for c in answer["commands"] if (name := c["name"]).startswith("npu") or _ours(name))),
            tuple(sorted(a["name"] for a in answer["agents"] if a["name"].startswith("npu") or _ours(a["name"]))),
            _hooks(log.read_text()),
        )


def _ours(name: str) -> bool:
    """Whether a bare name is one of the plugin's: it would have lost its prefix."""
    bare = name.split(":")[-1]
    return (PACK / "skills" / bare).is_dir() or (PACK / "agents" / f"{bare}.md").is_file()


def _hooks(debug: str) -> int:
    """How many hooks were registered, from the debug log."""
    found = re.findall(r"Registered (\d+) hooks from (\d+) plugins", debug)
    return int(found[-1][0]) if found else 0


def clone(target: Path, source: Path = PACK) -> Path:
    """The repository as a clone of it would be: every file that git knows or would add, links kept as links."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=source, capture_output=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listing.decode().split("\0")):
        origin, copy = source / name, target / name
        if not origin.exists() and not origin.is_symlink():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(origin, copy, follow_symlinks=False)
    return target
