# SPDX-License-Identifier: Apache-2.0
"""The deployments of a project that are under way, from their markers. Standard library only: hooks import it."""

import json
import os
from pathlib import Path


def project(event: dict) -> Path:
    """The project that the session was started in."""
    return Path(os.environ.get("CLAUDE_PROJECT_DIR") or event.get("cwd") or ".")


def under_way(folder: Path) -> list:
    """The markers of a project, in order."""
    return sorted(folder.glob("deployments/*/UNDER_WAY"))


def describe(marker: Path) -> str:
    """The marker in one line; one that cannot be read is still a marker."""
    try:
        since = json.loads(marker.read_text()).get("time", "an unknown time")
    except (OSError, ValueError, AttributeError):
        since = "an unknown time"
    return f"deployment {marker.parent.name} is under way since {since} (marker: {marker})"


def how_to_end(marker: Path) -> str:
    """The command that ends a deployment without a proof."""
    return f"scripts/abandon.py {marker.parent.name} --reason TEXT"
