# SPDX-License-Identifier: Apache-2.0
"""Phase 1's gate: honest kernels pass on unseen data, each planted fault fails, and so does what was not computed."""

from __future__ import annotations

import numpy as np
import pytest

from judge.gates import Dispatch, judge_kernel
from judge.kernel_cases import SHAPES, answer, draw
from judge.kernel_floors import FAULTS, shows
from judge.measure_kernels import kernel_dispatches
from judge.metrics import Failure, unwritten
from judge.policy import Policy

SEED = 91
PLANTED = [(kernel, fault) for kernel in SHAPES for fault in FAULTS[kernel]]


def small(kernel: str, fault: str = ""):
    """The last shape that shows a fault; the last ones are the smallest."""
    return [shape for shape in SHAPES[kernel] if shows(fault, shape)][-1]


@pytest.mark.parametrize("kernel", SHAPES)
def test_an_honest_kernel_passes_on_unseen_data(kernel: str, policy: Policy):
    verdict = judge_kernel(kernel, kernel_dispatches(kernel, small(kernel), SEED, 3), policy)
    assert verdict.passed, verdict.lines()
    assert verdict.looked_at >= 3


@pytest.mark.parametrize(("kernel", "fault"), PLANTED)
def test_a_planted_fault_fails_or_is_listed_as_caught_elsewhere(kernel: str, fault: str, policy: Policy):
    gate = policy.gates[f"phase1.{kernel}"]
    if fault in gate.elsewhere:
        assert fault in policy.gates[gate.elsewhere[fault]].faults
        return
    verdict = judge_kernel(kernel, kernel_dispatches(kernel, small(kernel, fault), SEED, 3, fault), policy)
    assert not verdict.passed
    assert verdict.missed, "a fault in the arithmetic is a missed threshold, not a named failure"


@pytest.fixture
def dispatches() -> list[Dispatch]:
    return kernel_dispatches("add", SHAPES["add"][2], SEED, 3)


def names(dispatches: list[Dispatch], policy: Policy, kernel: str = "add") -> set[Failure]:
    verdict = judge_kernel(kernel, dispatches, policy)
    assert not verdict.passed
    return {failure.name for failure in verdict.failures}


def test_fewer_than_three_dispatches_fail(dispatches: list[Dispatch], policy: Policy):
    assert names(dispatches[:2], policy) == {Failure.TOO_FEW}
    assert names([], policy) == {Failure.TOO_FEW, Failure.EMPTY}


def test_a_second_result_that_is_the_first_again_is_stale(dispatches: list[Dispatch], policy: Policy):
    """RT-02: a device that runs once and then returns what is in its buffer."""
    buffer = dispatches[0].got
    again = [Dispatch(buffer, dispatch.want) for dispatch in dispatches]
    assert Failure.STALE in names(again, policy)


def test_data_that_does_not_change_proves_nothing(dispatches: list[Dispatch], policy: Policy):
    assert names([dispatches[0]] * 3, policy) == {Failure.ORACLE_UNUSABLE}


def test_a_dispatch_that_was_cut_short_is_unwritten(policy: Policy):
    """RT-01: a timed-out kernel leaves three quarters of the buffer as it was."""
    cut = []
    for index in range(3):
        operands = draw("add", SHAPES["add"][2], index)
        out = unwritten(operands["a"].shape, "float32")
        out[:16] = answer("add", operands)[:16]
        cut.append(Dispatch(out, answer("add", operands).astype(np.float32)))
    assert names(cut, policy) == {Failure.UNWRITTEN}


def test_a_kernel_that_was_dropped_is_all_zero(dispatches: list[Dispatch], policy: Policy):
    dropped = [Dispatch(np.zeros_like(dispatch.got), dispatch.want) for dispatch in dispatches]
    assert Failure.ALL_ZERO in names(dropped, policy)


def test_one_bad_dispatch_among_good_ones_fails(dispatches: list[Dispatch], policy: Policy):
    bad = kernel_dispatches("add", SHAPES["add"][2], SEED + 1, 1, "operand_dropped")
    verdict = judge_kernel("add", [*dispatches, *bad], policy)
    assert not verdict.passed
    assert verdict.missed[0].source == "dispatch 3"
