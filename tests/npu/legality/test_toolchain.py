# SPDX-License-Identifier: Apache-2.0
"""Faults of compiler versions are warnings, and only for the versions that have them."""

import pytest

from npu.legality import Severity, is_legal, require_legal
from npu.program import ArgumentSlice, DeviceProgram, MemRef, Run
from tests.npu.legality.programs import ARGUMENT, design, findings, program, sequence


def entry(*reconfigures, spelling="2026-03"):
    slices = (ArgumentSlice(0, 0, ARGUMENT), ArgumentSlice(0, 16384, ARGUMENT))
    runs = [Run("main", "sequence", slices, reconfigure=r) for r in reconfigures]
    arena = (MemRef((8192,), "i32"),)
    return program(
        design(), DeviceProgram("entry", "npu2", sequences=(sequence(*runs, arguments=arena),)), spelling=spelling
    )


@pytest.mark.parametrize(
    ("reconfigures", "odd"),
    [((True,), True), ((True, True), False), ((True, False), True), ((True, False, True), False), ((True,) * 3, True)],
)
def test_an_odd_number_of_resets_is_a_warning_before_2026_08_28(reconfigures, odd):
    found = [(v.limit, v.severity) for v in findings(entry(*reconfigures))]
    assert found == ([("array resets per dispatch", Severity.WARNING)] if odd else [])


def test_a_compiler_with_the_fix_has_no_finding():
    assert findings(entry(True, spelling="current")) == []


def test_a_warning_is_never_a_refusal():
    assert [v.limit for v in require_legal(entry(True))] == ["array resets per dispatch"]
    assert is_legal(entry(True))


def test_a_module_without_runs_is_not_concerned():
    assert findings(program()) == []
