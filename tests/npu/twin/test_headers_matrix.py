# SPDX-License-Identifier: Apache-2.0
"""aie::mmul in both matrix modes and integers, and bfp16ebs8 quantisation.

Quantised values come from floor(x * 64 / 2^E) in exact arithmetic; sums follow the order that mmul.hpp states.
"""

from __future__ import annotations

import numpy as np
import pytest

from npu.twin.hostcc import CoreState
from tests.npu.twin import compiled_cases as cases

f32, f64 = np.float32, np.float64
EMULATED = "AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16"
NATIVE_SHAPES = [(8, 8, 8), (4, 8, 8), (8, 8, 4), (4, 8, 4), (8, 1, 8)]


def block_exponent(blocks: np.ndarray) -> np.ndarray:
    """E - 127 of blocks of eight along the last axis (normal values and zeros only)."""
    return np.frexp(np.abs(blocks).max(-1, keepdims=True))[1] - 1


def truncated(blocks: np.ndarray) -> np.ndarray:
    """The values that bfp16ebs8 blocks stand for: mantissas cut toward minus infinity."""
    step = np.ldexp(1.0, block_exponent(blocks)) / 64
    return np.floor(blocks.astype(f64) / step) * step


def operands(shape: tuple[int, int, int], steps: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    m, k, n = shape
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((steps, m, k)) * 2.0 ** rng.integers(-6, 6, (steps, m, k))
    b = rng.standard_normal((steps, k, n)) * 2.0 ** rng.integers(-6, 6, (steps, k, n))
    c = rng.standard_normal((m, n)).astype(f32)
    return cases.aligned(a.astype(f32).astype(cases.BF16)), cases.aligned(b.astype(f32).astype(cases.BF16)), c


def run(shape: tuple[int, int, int], defines: tuple[str, ...], operand_type: str, arrays, out: np.ndarray) -> CoreState:
    symbol = "mmul_{}_{}_{}_{}".format(*shape, operand_type)
    return cases.call(cases.library("mmul", *defines), symbol, *arrays, out, len(arrays[0]))


@pytest.mark.parametrize("shape", NATIVE_SHAPES)
def test_native_bf16_adds_exact_products_one_k_after_the_other(shape):
    a, b, c = operands(shape, 3, seed=11)
    expected = c.copy()
    for step in range(3):
        for k in range(shape[1]):
            exact = a[step, :, k, None].astype(f64) * b[step, None, k, :].astype(f64)
            assert (exact.astype(f32) == exact).all()
            expected = expected + exact.astype(f32)
    out = cases.aligned(c)
    run(shape, (), "bfloat16_bfloat16", (a, b), out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("shape", [(8, 8, 8), (4, 8, 8)])
def test_emulated_bf16_quantises_both_operands_along_k_and_adds_one_exact_sum(shape):
    a, b, c = operands(shape, 3, seed=12)
    expected = c.copy()
    for step in range(3):
        left = truncated(a[step].astype(f64))
        right = truncated(b[step].astype(f64).T).T
        total = left @ right
        assert (total.astype(f32) == total).all(), "a sum of eight products has 18 bits"
        expected = expected + total.astype(f32)
    out = cases.aligned(c)
    run(shape, (EMULATED,), "bfloat16_bfloat16", (a, b), out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("shape", [(8, 8, 4), (4, 8, 4), (8, 1, 8)])
def test_shapes_without_an_emulated_form_stay_native(shape):
    a, b, c = operands(shape, 2, seed=13)
    results = []
    for defines in ((), (EMULATED,)):
        out = cases.aligned(c)
        run(shape, defines, "bfloat16_bfloat16", (a, b), out)
        results.append(out.copy())
    np.testing.assert_array_equal(*results)


INTEGERS = {"int8": np.int8, "uint8": np.uint8, "int16": np.int16, "int32": np.int32}


@pytest.mark.parametrize(
    ("shape", "left", "right"),
    [
        ((2, 8, 8), "int8", "int8"),
        ((4, 8, 8), "int8", "int8"),
        ((8, 8, 8), "int8", "int8"),
        ((8, 8, 8), "uint8", "int8"),
        ((4, 4, 8), "int16", "int16"),
        ((8, 2, 8), "int16", "int16"),
        ((4, 4, 8), "int16", "int8"),
        ((4, 4, 8), "int32", "int16"),
        ((4, 4, 8), "int32", "int32"),
    ],
)
def test_integer_products_are_exact(shape, left, right):
    m, k, n = shape
    rng = np.random.default_rng(14)
    limits = [np.iinfo(INTEGERS[t]) for t in (left, right)]
    a = rng.integers(limits[0].min, limits[0].max, (2, m, k), endpoint=True).astype(INTEGERS[left])
    b = rng.integers(limits[1].min, limits[1].max, (2, k, n), endpoint=True).astype(INTEGERS[right])
    c = rng.integers(-1000, 1000, (m, n)).astype(np.int32)
    with np.errstate(over="ignore"):
        wide = c + (a.astype(np.int64) @ b.astype(np.int64)).sum(0)
    out = cases.aligned(c)
    run(shape, (), f"{left}_{right}", (cases.aligned(a), cases.aligned(b)), out)
    np.testing.assert_array_equal(out, wide.astype(np.int32))


def quantised(values: list[float], *defines: str, mode: int = 0) -> tuple[int, list[int], np.ndarray]:
    """Exponent byte, mantissas and values of the first of eight equal blocks."""
    kernels = cases.library("mmul", *defines)
    core = cases.call(kernels, "set_rounding", mode)
    data = cases.aligned(np.tile(np.array(values, f32), 8))
    stored, back = cases.aligned(np.zeros((8, 9), np.int8)), cases.aligned(np.zeros(64, f32))
    cases.call(kernels, "quantise", data, stored, back, core=core)
    assert (stored == stored[0]).all()
    return int(stored[0, 0].view(np.uint8)), stored[0, 1:].tolist(), back[:8]


def test_a_block_worked_by_hand():
    values = [1.0, -1.0, 0.5, -(2.0**-7), 1.9921875, -1.9921875, 0.0, -(2.0**-20)]
    exponent, mantissas, back = quantised(values)
    # E = 127; in steps of 1/64: 64, -64, 32, floor(-0.5), floor(127.5), floor(-127.5), 0, floor(-2^-14).
    assert (exponent, mantissas) == (127, [64, -64, 32, -1, 127, -128, 0, -1])
    assert back.tolist() == [m / 64 for m in mantissas]


def test_far_smaller_values_become_zero_or_minus_one_step():
    exponent, mantissas, _ = quantised([2.0**100, 1.0, -1.0, 2.0**-100, -(2.0**-100), 0.0, -0.0, 2.0**93])
    assert exponent == 227
    assert mantissas == [64, 0, -1, 0, -1, 0, 0, 0]


def test_a_denormal_has_no_hidden_bit():
    exponent, mantissas, back = quantised([2.0**-127, -(2.0**-127), 0, 0, 0, 0, 0, 0])
    # Field 0; significand 2^22 without a hidden bit, cut to 2^5; m * 2^-127 / 64 is what E = 0 stands for.
    assert (exponent, mantissas[:2]) == (0, [32, -32])
    assert back[:2].tolist() == [2.0**-128, -(2.0**-128)]


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_block_with_a_nan_or_infinity_is_nan_throughout(bad):
    _, _, back = quantised([1.0, bad, 0, 0, 0, 0, 0, 0])
    assert np.isnan(back).all()


def test_the_switch_rounds_by_the_register_and_agrees_with_truncation_under_floor():
    values = [1.0, 1.0078125, -1.0078125, 1.0234375, -1.0234375, 0.01171875, -0.01171875, 1.9921875]
    by_register = "TWIN_BFP16_ROUND_BY_REGISTER"
    assert quantised(values, by_register, mode=cases.FLOOR)[1] == quantised(values)[1]
    # In steps of 1/64: 64, 64.5, -64.5, 65.5, -65.5, 0.75, -0.75, 127.5; ties to even, held at 127.
    assert quantised(values, by_register, mode=cases.CONV_EVEN)[1] == [64, 64, -64, 66, -66, 1, -1, 127]


def test_the_block_instruction_multiplies_by_the_transpose():
    rng = np.random.default_rng(15)
    a, b = rng.standard_normal((8, 8)).astype(f32), rng.standard_normal((8, 8)).astype(f32)
    c = rng.standard_normal((8, 8)).astype(f32)
    out = cases.aligned(c)
    cases.call(cases.library("mmul"), "block_product", cases.aligned(a), cases.aligned(b), out)
    np.testing.assert_array_equal(out, c + (truncated(a) @ truncated(b).T).astype(f32))


def test_matrix_work_is_counted_by_mode():
    a, b, c = operands((8, 8, 8), 5, seed=16)
    native = run((8, 8, 8), (), "bfloat16_bfloat16", (a, b), cases.aligned(c))
    emulated = run((8, 8, 8), (EMULATED,), "bfloat16_bfloat16", (a, b), cases.aligned(c))
    assert native.matrix_macs == emulated.matrix_macs == 5 * 512
    assert (native.mac_ops, emulated.mac_ops) == (5 * 16, 5 * 1)
    assert native.vector_ops > 8 * emulated.vector_ops
