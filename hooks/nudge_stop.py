# SPDX-License-Identifier: Apache-2.0
"""Stop: remind a session, at most twice for the same step, that a deployment is still under way. Standard library only.

It is a nudge and never a proof. It lets the session end when it has been nudged in this turn already (stop_hook_active),
when a human is asked, when the counter is used up, and on every error of its own.

Exit 0: the session may end. Exit 2: the reminder goes back to it.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from markers import describe, how_to_end, project, under_way

LIMIT = 2
COUNTER = ".stop_nudges.json"


def main() -> int:
    """Read the event, decide, answer."""
    event = json.load(sys.stdin)
    if event.get("stop_hook_active"):
        return 0
    for marker in under_way(project(event)):
        state = _read(marker.parent / "state.json")
        if state.get("question"):
            continue
        step = state.get("next") or f"scripts/deploy.py --name {marker.parent.name}"
        if _count(marker.parent / COUNTER, f"{event.get('session_id', '')} {step}") > LIMIT:
            continue
        print(
            f"{describe(marker)} and not finished.\nnext: {step}\n"
            f"If a worker is running: scripts/status.py {marker.parent.name} --wait 90. If a human has to decide: "
            f"scripts/ask.py --name {marker.parent.name} QUESTION. To end it without a proof: {how_to_end(marker)}",
            file=sys.stderr,
        )
        return 2
    return 0


def _read(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}


def _count(path: Path, key: str) -> int:
    """How often this session was reminded of this step, this time included."""
    counts = _read(path)
    counts = {key: counts.get(key, 0) + 1}  # another step or session starts anew
    path.write_text(json.dumps(counts))
    return counts[key]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception as error:
        print(f"npu stop reminder skipped: {error}", file=sys.stderr)
        sys.exit(0)
