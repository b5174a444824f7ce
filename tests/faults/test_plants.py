# SPDX-License-Identifier: Apache-2.0
"""A plant is real: its text is there exactly once, its effect is there while it lasts, and gone afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.rope import stage as rope
from planner import widths
from tests.faults.plant import edited, planted_python, planted_source


@pytest.mark.parametrize("old", ["absent", "twice"])
def test_an_edit_that_does_not_hit_exactly_once_is_refused(old: str) -> None:
    with pytest.raises(AssertionError, match="expected once"):
        edited("twice and twice", (old, "new"))


def test_a_planted_source_has_its_own_object_and_leaves_no_trace(tmp_path: Path) -> None:
    stage = rope.RopeStage(32, 6, 2)
    before = stage.object
    with planted_source(rope, ("turned_low = aie::msc", "turned_low = aie::mac"), folder=tmp_path) as copy:
        planted = stage.object
        assert planted.source == copy
        assert planted.name != before.name
    assert stage.object == before


def test_a_planted_module_behaves_as_its_edited_source_for_those_who_imported_it_before() -> None:
    with planted_python(widths, ("return -(-width // unit) * unit", "return width")):
        assert widths.pad(65) == 65
    assert widths.pad(65) == 128


def test_a_plant_that_changes_no_function_is_refused() -> None:
    edit = ("Padded widths: the one rule", "Padded widths: a rule")
    with pytest.raises(AssertionError, match="changes no function"), planted_python(widths, edit):
        pass
