# SPDX-License-Identifier: Apache-2.0
"""GEMV rows: every row count, residual, SwiGLU and fused RMSNorm; nothing written outside a call's rows; planted faults."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.gemv.oracle import gemv, gemv_add, gemv_swiglu
from kernels.gemv.stage import GemvStage
from kernels.rmsnorm.oracle import rmsnorm
from kernels.rounding import round_bf16
from npu.program import MemRef
from refusal import Refusal
from tests.kernels.compiled import BF16, Compiled, Memory, bias, multiply_adds, placed, random, relative_error

LIMIT = 1e-4  # against the oracle rounded at the same store points: ties, and the order of fp32 sums


def rows_of(kernel: Compiled, w: Memory, x: Memory) -> np.ndarray:
    """y of gemv_rows, call by call."""
    stage = kernel.stage
    y = kernel.out("gemv_rows", 2)
    for first in range(0, stage.out_rows, stage.rows):
        kernel("gemv_rows", placed(w.values[first : first + stage.rows]), x, y, first)
    return y.f64


@pytest.mark.parametrize(
    ("dim", "rows", "out_rows"), [(576, 6, 18), (96, 2, 18), (128, 8, 24), (32, 14, 28), (64, 40, 80)]
)
def test_rows_against_the_oracle(dim: int, rows: int, out_rows: int) -> None:
    kernel = Compiled(GemvStage(dim, rows, out_rows))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        w, x = random(rng, out_rows, dim), random(rng, dim)
        assert relative_error(rows_of(kernel, w, x), round_bf16(gemv(w.f64, x.f64))) < LIMIT


@pytest.mark.parametrize(("rows", "out_rows"), [(2, 6), (8, 16), (24, 24)])
def test_fp32_output_for_the_lm_head(rows: int, out_rows: int) -> None:
    rng = np.random.default_rng(0)
    w, x = random(rng, out_rows, 576), random(rng, 576)
    y = rows_of(Compiled(GemvStage(576, rows, out_rows, out="f32")), w, x)
    assert relative_error(y, gemv(w.f64, x.f64)) < 1e-6


def test_a_call_writes_its_own_rows_alone() -> None:
    kernel = Compiled(GemvStage(64, 6, 18))
    rng = np.random.default_rng(0)
    y = kernel.out("gemv_rows", 2)
    kernel("gemv_rows", random(rng, 6, 64), random(rng, 64), y, 6)
    assert np.array_equal(np.isfinite(y.f64), (np.arange(18) >= 6) & (np.arange(18) < 12))


@pytest.mark.parametrize("rows", [2, 6, 8])
def test_residual_is_added_before_the_one_rounding(rows: int) -> None:
    dim, out_rows, cores = 64, 3 * rows, 4
    stage = GemvStage(dim, rows, out_rows, header=dim + cores * out_rows, kind="add")
    kernel = Compiled(stage)
    rng = np.random.default_rng(1)
    header, w = random(rng, stage.header), random(rng, out_rows, dim)
    core = 2
    y = kernel.out("gemv_add_rows", 2)
    for first in range(0, out_rows, rows):
        kernel("gemv_add_rows", placed(w.values[first : first + rows]), header, y, first, dim + core * out_rows)
    residual = header.f64[dim + core * out_rows :][:out_rows]
    assert relative_error(y.f64, gemv_add(w.f64, header.f64[:dim], residual, round_bf16)) < LIMIT


def in_parts(kernel: Compiled, w: Memory, x: Memory, residual: np.ndarray | None = None) -> np.ndarray:
    """y of rows that are longer than a weight element: part after part of every row, then the one rounding."""
    stage = kernel.stage
    acc = kernel.out("gemv_part", 2)
    for part in range(x.values.size // stage.dim):
        columns = slice(part * stage.dim, (part + 1) * stage.dim)
        for first in range(0, stage.out_rows, stage.rows):
            block = placed(w.values[first : first + stage.rows, columns])
            kernel("gemv_part", block, placed(x.values[columns]), acc, first, part)
    if residual is None:
        y = kernel.out("gemv_whole", 1)
        kernel("gemv_whole", acc, y)
    else:
        y = kernel.out("gemv_whole_add", 2)
        header = np.zeros(stage.dim)
        header[4 : 4 + stage.out_rows] = residual
        kernel("gemv_whole_add", acc, placed(header), y, 4)
    return y.f64


@pytest.mark.parametrize(("rows", "out_rows"), [(2, 6), (6, 18), (8, 24), (14, 28), (16, 48)])
@pytest.mark.parametrize("kind", ["plain", "add"])
def test_rows_in_parts_are_rounded_once_after_the_last_part(kind: str, rows: int, out_rows: int) -> None:
    rng = np.random.default_rng(8)
    w, x = random(rng, out_rows, 192), random(rng, 192)
    residual = random(rng, out_rows).f64 if kind == "add" else None
    y = in_parts(Compiled(GemvStage(64, rows, out_rows, kind=kind, parts=True)), w, x, residual)
    want = gemv(w.f64, x.f64, round_bf16) if residual is None else gemv_add(w.f64, x.f64, residual, round_bf16)
    assert relative_error(y, want) < LIMIT


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("part != 0", "false"),  # earlier parts forgotten
        ("acc + first, part != 0", "acc, part != 0"),  # the first rows' sums taken for all
    ],
)
def test_a_sum_that_is_not_carried_on_is_seen(old: str, new: str) -> None:
    rng = np.random.default_rng(9)
    w, x = random(rng, 12, 192), random(rng, 192)
    y = in_parts(Compiled(GemvStage(64, 6, 12, parts=True), ((old, new),)), w, x)
    assert relative_error(y, gemv(w.f64, x.f64, round_bf16)) > 0.1


def swiglu(kernel: Compiled, gate: Memory, up: Memory, x: Memory) -> np.ndarray:
    stage = kernel.stage
    y = kernel.out("gemv_swiglu_rows", 2)
    for first in range(0, stage.out_rows, stage.rows):
        part = slice(first, first + stage.rows)
        kernel("gemv_swiglu_rows", placed(np.concatenate([gate.values[part], up.values[part]])), x, y, first)
    return y.f64


@pytest.mark.parametrize("rows", [2, 6, 24])
@pytest.mark.parametrize("scale", [0.1, 2.0])
def test_swiglu_over_small_and_saturated_gates(rows: int, scale: float) -> None:
    kernel = Compiled(GemvStage(64, rows, 2 * rows, kind="swiglu", epsilon=1e-5))
    rng = np.random.default_rng(2)
    gate, up, x = random(rng, 2 * rows, 64, scale=scale), random(rng, 2 * rows, 64), random(rng, 64)
    reference = gemv_swiglu(gate.f64, up.f64, x.f64, round_bf16)
    assert relative_error(swiglu(kernel, gate, up, x), reference) < LIMIT


@pytest.mark.parametrize(("dim", "valid"), [(64, 64), (96, 70), (128, 40)])
def test_normalise_ignores_padding(dim: int, valid: int) -> None:
    """Padding of x and gamma is NaN: the result is that of the true row, and its padding is zero."""
    kernel = Compiled(GemvStage(dim, 2, 2, kind="norm", valid=valid, epsilon=1e-5))
    header = random(np.random.default_rng(3), 2 * dim)
    header.values[valid:dim] = header.values[dim + valid :] = np.nan
    xn = kernel.out("gemv_normalise", 1)
    kernel("gemv_normalise", header, xn)
    assert relative_error(xn.f64, rmsnorm(header.f64[:dim], header.f64[dim:], valid, 1e-5, round_bf16)) < LIMIT
    assert (xn.f64[valid:] == 0).all()


def test_positive_inputs_leave_no_bias() -> None:
    rng = np.random.default_rng(4)
    w, x = placed(np.abs(rng.standard_normal((2048, 64)))), placed(np.abs(rng.standard_normal(64)))
    y = rows_of(Compiled(GemvStage(64, 16, 2048)), w, x)
    assert abs(bias(y, gemv(w.f64, x.f64))) < 2e-4


def drawn(rng: np.random.Generator, ref: MemRef) -> Memory:
    dtype = np.float32 if ref.dtype == "f32" else BF16
    return placed(rng.standard_normal(ref.elements), dtype)


@pytest.mark.parametrize("rows", [6, 24])
@pytest.mark.parametrize("kind", ["plain", "norm", "add", "swiglu", "plain in parts", "add in parts"])
def test_work_is_what_the_stage_says(kind: str, rows: int) -> None:
    kind, parts = kind.split()[0], kind.endswith("parts")
    stage = GemvStage(96, rows, rows, kind=kind, valid=90, epsilon=1e-5, parts=parts)
    kernel = Compiled(stage)
    rng = np.random.default_rng(5)
    for function, arguments in stage.functions.items():
        given = [0 if ref == "i32" else drawn(rng, ref) for ref in arguments]
        counters = kernel(function, *given)
        assert multiply_adds(counters) == stage.macs(function)
        assert counters["vector_ops"] == stage.vector_operations(function)
        assert counters["mul_adds_scalar"] == 0


FAULTS = {
    "floor rounding": (("rounding_mode::conv_even", "rounding_mode::floor"),),
    "rows swapped": (("merge(fold(sum2), fold(sum3), 1)", "merge(fold(sum3), fold(sum2), 1)"),),
    "last lanes dropped": (("k < DIM_K; k += lanes", "k < DIM_K - lanes; k += lanes"),),
    "gate taken for up": (("dot<count>(w + (ROWS + row) * DIM_K, x)", "dot<count>(w + row * DIM_K, x)"),),
    "wrong epsilon": (("float(EPSILON)", "1e-3f"),),
    "mean over the padded length": (("1.0f / float(valid)", "1.0f / float(dim)"),),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str) -> None:
    """One error over normalise and SwiGLU, on inputs where epsilon matters, sees every fault."""
    stage = GemvStage(320, 6, 12, kind="swiglu", valid=300, epsilon=1e-5)
    rng = np.random.default_rng(6)
    header, gate, up = random(rng, 640, scale=0.02), random(rng, 12, 320, scale=0.1), random(rng, 12, 320)

    def error(kernel: Compiled) -> float:
        xn = kernel.out("gemv_normalise", 1)
        kernel("gemv_normalise", header, xn)
        normal = relative_error(xn.f64, rmsnorm(header.f64[:320], header.f64[320:], 300, 1e-5, round_bf16))
        product = relative_error(swiglu(kernel, gate, up, xn), gemv_swiglu(gate.f64, up.f64, xn.f64, round_bf16))
        return max(normal, product)

    assert error(Compiled(stage)) < LIMIT
    assert error(Compiled(stage, FAULTS[fault])) > 2 * LIMIT


def test_sums_are_kept_in_fp32() -> None:
    """The same rows with every partial sum rounded to bf16 are far from FP64."""
    rounded_sums = (
        (
            "aie::load_v<lanes>(w + DIM_K + k), activation);",
            "aie::load_v<lanes>(w + DIM_K + k), activation); sum1 = Sum(sum1.template to_vector<bfloat16>());",
        ),
    )
    stage = GemvStage(576, 2, 6, out="f32")
    rng = np.random.default_rng(7)
    w, x = random(rng, 6, 576), random(rng, 576)
    reference = gemv(w.f64, x.f64)
    assert relative_error(rows_of(Compiled(stage), w, x), reference) < 1e-6
    assert relative_error(rows_of(Compiled(stage, rounded_sums), w, x), reference) > 1e-4


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"dim": 40, "rows": 2, "out_rows": 4}, "dim = 40"),
        ({"dim": 64, "rows": 3, "out_rows": 3}, "rows = 3"),
        ({"dim": 64, "rows": 4, "out_rows": 6}, "out_rows = 6"),
        ({"dim": 64, "rows": 2, "out_rows": 4, "kind": "mul"}, "kind = 'mul'"),
        ({"dim": 64, "rows": 2, "out_rows": 4, "kind": "norm", "header": 64}, "header = 64"),
        ({"dim": 64, "rows": 2, "out_rows": 4, "kind": "norm", "valid": 65}, "valid = 65"),
    ],
)
def test_refuses_what_the_source_does_not_take(parameters: dict, named: str) -> None:
    with pytest.raises(Refusal, match=named):
        GemvStage(**parameters).check()
