# SPDX-License-Identifier: Apache-2.0
"""RMSNorm: fp32 statistics and scale, padding that cannot leak, planted faults."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.rmsnorm.oracle import rmsnorm
from kernels.rmsnorm.stage import RmsNormStage
from kernels.rounding import round_bf16
from refusal import Refusal
from tests.kernels.compiled import Compiled, Memory, bias, multiply_adds, placed, random, relative_error

FLOOR_LIMIT = 1e-4
EPSILON = 1e-5


def run(kernel: Compiled, x: Memory, gamma: Memory) -> np.ndarray:
    y = kernel.out("rmsnorm_rows", 2)
    kernel("rmsnorm_rows", x, gamma, y)
    return y.f64.reshape(x.values.shape)


@pytest.mark.parametrize(("dim", "valid", "rows"), [(576, 576, 1), (96, 96, 3), (64, 33, 2), (128, 60, 2)])
def test_rows_against_the_oracle_with_nan_in_the_padding(dim: int, valid: int, rows: int) -> None:
    kernel = Compiled(RmsNormStage(dim, valid, EPSILON, rows))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x, gamma = random(rng, rows, dim, scale=3.0**seed), random(rng, dim)
        x.values[:, valid:] = gamma.values[valid:] = np.nan
        y = run(kernel, x, gamma)
        assert relative_error(y, rmsnorm(x.f64, gamma.f64, valid, EPSILON, round_bf16)) < FLOOR_LIMIT
        assert (y[:, valid:] == 0).all()


@pytest.mark.parametrize("scale", [1e-18, 1e-3, 1e3, 1e15])
def test_small_and_large_rows(scale: float) -> None:
    kernel = Compiled(RmsNormStage(64, 64, EPSILON, 1))
    x, gamma = random(np.random.default_rng(0), 1, 64, scale=scale), placed(np.ones(64))
    assert relative_error(run(kernel, x, gamma), rmsnorm(x.f64, gamma.f64, 64, EPSILON, round_bf16)) < FLOOR_LIMIT


def test_a_row_of_zeros_is_zero() -> None:
    y = run(Compiled(RmsNormStage(64, 64, EPSILON, 1)), placed(np.zeros((1, 64))), placed(np.ones(64)))
    assert (y == 0).all()


def test_positive_inputs_leave_no_bias() -> None:
    rng = np.random.default_rng(1)
    x, gamma = placed(np.abs(rng.standard_normal((8, 576)))), placed(np.abs(rng.standard_normal(576)))
    y = run(Compiled(RmsNormStage(576, 576, EPSILON, 8)), x, gamma)
    assert abs(bias(y, rmsnorm(x.f64, gamma.f64, 576, EPSILON))) < 2e-4


@pytest.mark.parametrize(("dim", "valid"), [(96, 96), (128, 60), (96, 33)])
def test_work_is_what_the_stage_says(dim: int, valid: int) -> None:
    stage = RmsNormStage(dim, valid, EPSILON, 2)
    kernel = Compiled(stage)
    rng = np.random.default_rng(2)
    counters = kernel("rmsnorm_rows", random(rng, 2, dim), random(rng, dim), kernel.out("rmsnorm_rows", 2))
    assert multiply_adds(counters) == stage.macs("rmsnorm_rows")
    assert counters["vector_ops"] == stage.vector_operations("rmsnorm_rows")
    assert counters["mul_adds_scalar"] == 0


FAULTS = {
    "floor rounding": (("rounding_mode::conv_even", "rounding_mode::floor"),),
    "wrong epsilon": (("float(EPSILON)", "1e-6f"),),
    "mean over the padded length": (("1.0f / float(valid)", "1.0f / float(dim)"),),
    "scale in bf16": (("    y = aie::mac(y, high, scale.middle);\n", ""),),
    "gamma not applied": (("aie::mul(x, gamma)", "aie::mul(x, aie::broadcast<bfloat16, lanes>(bfloat16(1)))"),),
    "padding leaks": (("aie::mask<lanes>::from_uint32(~0u << tail)", "aie::mask<lanes>::from_uint32(0u)"),),
    "second row missing": (("row < ROWS", "row < 1"),),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str) -> None:
    """Rows of small values, so that epsilon matters, with NaN behind them."""
    stage = RmsNormStage(320, 300, EPSILON, 8)
    rng = np.random.default_rng(3)
    x, gamma = random(rng, 8, 320, scale=0.02), random(rng, 320)
    x.values[:, 300:] = gamma.values[300:] = np.nan
    reference = rmsnorm(x.f64, gamma.f64, 300, EPSILON, round_bf16)
    assert relative_error(run(Compiled(stage), x, gamma), reference) < FLOOR_LIMIT
    assert relative_error(run(Compiled(stage, FAULTS[fault]), x, gamma), reference) > 2 * FLOOR_LIMIT


@pytest.mark.parametrize(
    ("parameters", "named"),
    [((100, 100, EPSILON), "dim = 100"), ((96, 97, EPSILON), "valid = 97"), ((96, 96, -1.0), "epsilon = -1")],
)
def test_refuses_what_the_source_does_not_take(parameters: tuple, named: str) -> None:
    with pytest.raises(Refusal, match=named):
        RmsNormStage(*parameters).check()
