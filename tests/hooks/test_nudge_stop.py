# SPDX-License-Identifier: Apache-2.0
"""The Stop guard is a nudge: it reminds, it never loops, and its own faults never hold a session."""

from __future__ import annotations

import json

import pytest


def test_a_deployment_under_way_is_named_with_its_next_step(house):
    done = house.fire("stop")
    assert done.returncode == 2
    assert "next: scripts/deploy.py --name fixture --phase 2" in done.stderr
    assert "scripts/abandon.py fixture" in done.stderr


def test_no_marker_no_nudge(house):
    house.marker.unlink()
    assert house.fire("stop").returncode == 0


def test_the_round_after_a_nudge_may_end(house):
    assert house.fire("stop_again").returncode == 0


def test_the_same_step_is_nudged_twice_at_most(house):
    assert [house.fire("stop").returncode for _ in range(4)] == [2, 2, 0, 0]


def test_another_step_is_nudged_again(house):
    for _ in range(3):
        house.fire("stop")
    (house.marker.parent / "state.json").write_text('{"next": "skill debug-nan", "question": null}')
    assert house.fire("stop").returncode == 2


def test_a_question_to_a_human_may_wait(house):
    (house.marker.parent / "state.json").write_text(json.dumps({"next": "", "question": "which layout?"}))
    assert house.fire("stop").returncode == 0


@pytest.mark.parametrize("damage", ["missing", "crash", "state", "event"])
def test_its_own_faults_never_hold_a_session(house, damage):
    script = house.pack / "hooks" / "nudge_stop.py"
    if damage == "missing":
        script.unlink()
    elif damage == "crash":
        script.write_text("raise RuntimeError\n")
    elif damage == "state":
        (house.marker.parent / "state.json").write_text("{broken")
    done = house.start("Stop", "{broken") if damage == "event" else house.fire("stop")
    assert done.returncode != 2
