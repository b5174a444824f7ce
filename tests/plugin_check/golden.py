# SPDX-License-Identifier: Apache-2.0
"""The golden list: what a session offers in each of the four situations. `make plugin-golden` writes it anew."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.plugin_check.client import Client, Loaded, clone, installed_client

GOLDEN = Path(__file__).with_name("golden.json")
SITUATIONS = ("installed", "opened", "both", "plugin-dir")


def load(situation: str, client: Client, repository: Path, project: Path) -> Loaded:
    """Bring about a situation in an empty home and ask a session what it offers.

    Args:
        situation: "installed" in another project; the repository "opened" and trusted; "both"; or "plugin-dir", the flag.
    """
    if situation in ("installed", "both"):
        client.install(repository, project)
    if situation in ("opened", "both"):
        client.trust(repository)
        return client.loaded(repository)
    return client.loaded(project, *(("--plugin-dir", str(repository)) if situation == "plugin-dir" else ()))


def read() -> dict[str, Loaded]:
    """The golden list by situation."""
    content = json.loads(GOLDEN.read_text())
    return {name: Loaded(tuple(e["commands"]), tuple(e["agents"]), e["hooks"]) for name, e in content.items()}


def main() -> None:
    """Write the golden list from what loads now."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        repository = clone(Path(folder) / "a clone" / "llm to npu")
        for situation in SITUATIONS:
            home, project = Path(folder) / situation / "home", Path(folder) / situation / "my project"
            home.mkdir(parents=True)
            project.mkdir()
            found[situation] = asdict(load(situation, Client(installed_client(), home), repository, project))
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{GOLDEN.name}: " + ", ".join(f"{name} {len(entry['commands'])} commands" for name, entry in found.items()))


if __name__ == "__main__":
    main()
