# SPDX-License-Identifier: Apache-2.0
"""Residual add: the correctly rounded sum of every pair, planted faults."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.add.oracle import add
from kernels.add.stage import AddStage
from kernels.rounding import round_bf16
from refusal import Refusal
from tests.kernels.compiled import Compiled, Memory, bias, multiply_adds, placed, random


def run(kernel: Compiled, a: Memory, b: Memory) -> np.ndarray:
    y = kernel.out("add", 2)
    kernel("add", a, b, y)
    return y.f64


@pytest.mark.parametrize("dim", [32, 576, 960])
def test_sums_are_correctly_rounded(dim: int) -> None:
    kernel = Compiled(AddStage(dim))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        a, b = random(rng, dim), random(rng, dim, scale=10.0**seed)
        assert np.array_equal(run(kernel, a, b), add(a.f64, b.f64, round_bf16))


def test_ties_go_to_even_and_infinities_survive() -> None:
    a = placed(np.array([256.0, 258.0, np.inf, 0.0] * 8))
    b = placed(np.array([1.0, 1.0, 1.0, -0.0] * 8))
    assert run(Compiled(AddStage(32)), a, b)[:4].tolist() == [256.0, 260.0, np.inf, 0.0]


def test_repeated_adding_does_not_shrink_a_stream() -> None:
    """72 residual adds of positive values: floor rounding loses percents, rounding to even none."""
    kernel, floor = (
        Compiled(AddStage(2048)),
        Compiled(AddStage(2048), (("rounding_mode::conv_even", "rounding_mode::floor"),)),
    )
    drifts = []
    for subject in (kernel, floor):
        rng = np.random.default_rng(1)
        stream = random(rng, 2048, offset=8.0)
        exact = stream.f64
        for _ in range(72):
            step = placed(rng.uniform(0, 1, 2048))
            exact = exact + step.f64
            stream = placed(run(subject, stream, step))
        drifts.append(abs(bias(stream.f64, exact)))
    assert drifts[0] < 2e-3
    assert drifts[1] > 2e-2


def test_work_is_what_the_stage_says() -> None:
    stage = AddStage(96)
    kernel = Compiled(stage)
    rng = np.random.default_rng(2)
    counters = kernel("add", random(rng, 96), random(rng, 96), kernel.out("add", 2))
    assert multiply_adds(counters) == stage.macs("add") == 0
    assert counters["vector_ops"] == stage.vector_operations("add")
    assert counters["mul_adds_scalar"] == 0


FAULTS = {
    "floor rounding": (("rounding_mode::conv_even", "rounding_mode::floor"),),
    "residual dropped": (("aie::add(left, right)", "aie::add(left, left)"),),
    "last vector missing": (("i < DIM; i += 32", "i < DIM - 32; i += 32"),),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str) -> None:
    rng = np.random.default_rng(3)
    a, b = random(rng, 96), random(rng, 96)
    assert not np.array_equal(run(Compiled(AddStage(96), FAULTS[fault]), a, b), add(a.f64, b.f64, round_bf16))


def test_refuses_what_the_source_does_not_take() -> None:
    with pytest.raises(Refusal, match="dim = 33"):
        AddStage(33).check()
