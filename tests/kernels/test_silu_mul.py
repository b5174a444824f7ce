# SPDX-License-Identifier: Apache-2.0
"""SiLU-multiply: relative accuracy over the whole range of gates, planted faults."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.rounding import round_bf16
from kernels.silu_mul.oracle import silu_mul
from kernels.silu_mul.stage import SiluMulStage
from refusal import Refusal
from tests.kernels.compiled import Compiled, Memory, bias, multiply_adds, placed, random, relative_error

LIMIT = 1e-4  # against the oracle rounded at the same store points
ELEMENT_LIMIT = 2**-7  # of one element: two roundings to bf16


def run(kernel: Compiled, gate: Memory, up: Memory) -> np.ndarray:
    y = kernel.out("silu_mul", 2)
    kernel("silu_mul", gate, up, y)
    return y.f64


@pytest.mark.parametrize("dim", [32, 960])
def test_elements_against_the_oracle(dim: int) -> None:
    kernel = Compiled(SiluMulStage(dim))
    for seed, scale in enumerate((0.1, 1.0, 8.0)):
        rng = np.random.default_rng(seed)
        gate, up = random(rng, dim, scale=scale), random(rng, dim)
        assert relative_error(run(kernel, gate, up), silu_mul(gate.f64, up.f64, round_bf16)) < LIMIT


def test_every_gate_from_minus_64_to_64_is_relatively_right() -> None:
    """A bf16 tanh would lose all digits of gates below -6; this must not."""
    gate, up = placed(np.linspace(-64, 64, 4096)), placed(np.ones(4096))
    y, reference = run(Compiled(SiluMulStage(4096)), gate, up), silu_mul(gate.f64, up.f64)
    nonzero = np.abs(reference) > 1e-30
    assert (np.abs(y - reference)[nonzero] <= ELEMENT_LIMIT * np.abs(reference)[nonzero]).all()


def test_huge_gates_stay_finite() -> None:
    gate = placed(np.array([-3e38, -1e15, -200.0, -88.0, 0.0, 88.0, 200.0, 1e4] * 4))
    y = run(Compiled(SiluMulStage(32)), gate, placed(np.ones(32)))
    assert np.isfinite(y).all()
    assert np.abs(y - silu_mul(gate.f64, np.ones(32))).max() <= ELEMENT_LIMIT * 1e4
    assert np.abs(y[:4]).max() < 1e-20


def test_positive_inputs_leave_no_bias() -> None:
    rng = np.random.default_rng(1)
    gate, up = placed(np.abs(rng.standard_normal(8192))), placed(np.abs(rng.standard_normal(8192)))
    assert abs(bias(run(Compiled(SiluMulStage(8192)), gate, up), silu_mul(gate.f64, up.f64))) < 2e-4


def test_work_is_what_the_stage_says() -> None:
    stage = SiluMulStage(96)
    kernel = Compiled(stage)
    rng = np.random.default_rng(2)
    counters = kernel("silu_mul", random(rng, 96), random(rng, 96), kernel.out("silu_mul", 2))
    assert multiply_adds(counters) == stage.macs("silu_mul")
    assert counters["vector_ops"] == stage.vector_operations("silu_mul")
    assert counters["mul_adds_scalar"] == 0


FAULTS = {
    "floor rounding": (("rounding_mode::conv_even", "rounding_mode::floor"),),
    "base e for base 2": (
        ("high = 1.4453125f, middle = -0.00262451171875f", "high = 1.0f, middle = 0.0f"), ("log2e = 1.44269504088896f", "log2e = 1.0f"),
    ),
    "no Newton step": (
        ("silu.template to_vector<bfloat16>(), error.template", "one, aie::zeros<accfloat, lanes>().template"),
    ),
    "up not applied": (("y = aie::mac(y, high, u);", "y = aie::mac(y, high, one);"),),
    "gelu for silu": (("aie::mul(g, r)", "aie::mul(r, r)"),),
    "last vector missing": (("i < DIM; i += lanes", "i < DIM - lanes; i += lanes"),),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str) -> None:
    stage = SiluMulStage(2048)
    rng = np.random.default_rng(3)
    gate, up = placed(np.abs(rng.standard_normal(2048))), placed(np.abs(rng.standard_normal(2048)))
    reference = silu_mul(gate.f64, up.f64, round_bf16)

    assert relative_error(run(Compiled(stage), gate, up), reference) < LIMIT
    assert relative_error(run(Compiled(stage, FAULTS[fault]), gate, up), reference) > 2 * LIMIT


def test_refuses_what_the_source_does_not_take() -> None:
    with pytest.raises(Refusal, match="dim = 40"):
        SiluMulStage(40).check()
