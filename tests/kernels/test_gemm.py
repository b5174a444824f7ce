# SPDX-License-Identifier: Apache-2.0
"""The GEMM tile: exact bf16 products, fp32 sums over all K steps, one rounding; both matrix modes; planted faults."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.gemm.oracle import from_blocks, gemm, to_blocks
from kernels.gemm.stage import GemmStage
from kernels.rounding import round_bf16
from refusal import Refusal
from tests.kernels.compiled import Compiled, Memory, bias, memory, multiply_adds, placed, random, relative_error

# Against the oracle rounded at the same point: rounding differs only where the fp32 order of summation does.
FLOOR_LIMIT = 1e-4
# Against exact FP64 in bfp16 mode: truncated mantissas (README.md).
BFP16_LIMIT = 2.5e-2


def run(kernel: Compiled, a: list[Memory], b: list[Memory]) -> np.ndarray:
    """C of several K steps, by the calls that a core makes."""
    stage = kernel.stage
    acc = kernel.out("gemm_accumulate", 2)
    out = kernel.out("gemm_store", 1)
    kernel("gemm_zero", acc)
    for left, right in zip(a, b, strict=True):
        kernel("gemm_accumulate", placed(to_blocks(left.values)), placed(to_blocks(right.values)), acc)
    kernel("gemm_store", acc, out)
    return from_blocks(out.f64, stage.m, stage.n)


def steps(seed: int, stage: GemmStage, count: int, **kind: float) -> tuple[list[Memory], list[Memory], np.ndarray]:
    """Operands of `count` K steps and both of them whole."""
    rng = np.random.default_rng(seed)
    a = [random(rng, stage.m, stage.k, **kind) for _ in range(count)]
    b = [random(rng, stage.k, stage.n, **kind) for _ in range(count)]
    whole = (np.concatenate([x.f64 for x in a], axis=1), np.concatenate([x.f64 for x in b], axis=0))
    return a, b, gemm(*whole)


@pytest.mark.parametrize("shape", [(64, 64, 64), (16, 24, 8), (8, 32, 16), (24, 8, 40), (32, 96, 24)])
def test_one_rounding_after_all_k_steps(shape: tuple[int, int, int]) -> None:
    """Every register blocking (2x2, 2x1, 1x2, 1x1), three calls with changing data."""
    stage = GemmStage(*shape, mode="bf16")
    kernel = Compiled(stage)
    for seed in range(3):
        a, b, reference = steps(seed, stage, 4)
        assert relative_error(run(kernel, a, b), round_bf16(reference)) < FLOOR_LIMIT


def test_fp32_output_keeps_fp32() -> None:
    stage = GemmStage(16, 64, 16, mode="bf16", out="f32")
    a, b, reference = steps(0, stage, 4)
    assert relative_error(run(Compiled(stage), a, b), reference) < 1e-6


def test_positive_inputs_leave_no_bias() -> None:
    stage = GemmStage(64, 64, 64, mode="bf16")
    a, b, _ = steps(0, stage, 2)
    a, b = ([placed(np.abs(x.f64)) for x in side] for side in (a, b))
    reference = sum(x.f64 @ y.f64 for x, y in zip(a, b, strict=True))
    assert abs(bias(run(Compiled(stage), a, b), reference)) < 2e-4


def test_bfp16_mode_is_another_datapath_within_its_tolerance() -> None:
    exact, emulated = (GemmStage(64, 64, 64, mode=mode) for mode in ("bf16", "bfp16"))
    a, b, reference = steps(0, exact, 4)
    error = relative_error(run(Compiled(emulated), a, b), reference)
    assert 10 * FLOOR_LIMIT < error < BFP16_LIMIT


def test_zero_really_clears() -> None:
    """An accumulator full of NaN, and a second product after a first, begin from zero."""
    stage = GemmStage(16, 16, 16, mode="bf16")
    kernel = Compiled(stage)
    a, b, first = steps(1, stage, 1)
    assert np.array_equal(run(kernel, a, b), run(kernel, a, b))
    assert relative_error(run(kernel, a, b), round_bf16(first)) < FLOOR_LIMIT


@pytest.mark.parametrize("mode", ["bf16", "bfp16"])
@pytest.mark.parametrize("out", ["bf16", "f32"])
def test_work_is_what_the_stage_says(mode: str, out: str) -> None:
    stage = GemmStage(16, 32, 24, mode=mode, out=out)
    kernel = Compiled(stage)
    a, b = placed(np.ones(16 * 32)), placed(np.ones(32 * 24))
    acc, c = memory(16 * 24, np.float32), kernel.out("gemm_store", 1)
    for function, arguments in (
        ("gemm_zero", (acc,)),
        ("gemm_accumulate", (a, b, acc)),
        ("gemm_store", (acc, c)),
    ):
        counters = kernel(function, *arguments)
        assert multiply_adds(counters) == stage.macs(function)
        assert counters["vector_ops"] == stage.vector_operations(function)
        assert counters["mul_adds_scalar"] == 0


FAULTS = {
    "floor rounding": (("rounding_mode::conv_even", "rounding_mode::floor"),),
    "bf16 accumulation": (
        (
            "aie::store_v(acc0, c00.template to_vector<float>());",
            "aie::store_v(acc0, aie::accum<accfloat, 64>(c00.template to_vector<bfloat16>()).template to_vector<float>());",
        ),
    ),
    "accumulator overwritten": (("Block c00(aie::load_v<block>(acc0)), c01", "Block c00, c01"),),
    "B not advanced": (("    b += n_blocks * block;", "    b += block;"),),
    "rows swapped": (("aie::store_v(acc1, c10", "aie::store_v(acc1, c11"),),
    "output partly unwritten": (("i < DIM_M * DIM_N; i += 32", "i < DIM_M * DIM_N - 32; i += 32"),),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str) -> None:
    stage = GemmStage(32, 32, 32, mode="bf16")
    a, b, reference = steps(3, stage, 8)
    assert relative_error(run(Compiled(stage), a, b), round_bf16(reference)) < FLOOR_LIMIT
    assert relative_error(run(Compiled(stage, FAULTS[fault]), a, b), round_bf16(reference)) > 2 * FLOOR_LIMIT


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"m": 12, "k": 8, "n": 8}, "m = 12"),
        ({"m": 8, "k": 0, "n": 8}, "k = 0"),
        ({"m": 8, "k": 8, "n": 8, "mode": "fp8"}, "mode = 'fp8'"),
        ({"m": 8, "k": 8, "n": 8, "out": "i8"}, "out = 'i8'"),
    ],
)
def test_refuses_what_the_source_does_not_take(parameters: dict, named: str) -> None:
    with pytest.raises(Refusal, match=named):
        GemmStage(**parameters).check()
