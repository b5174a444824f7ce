# SPDX-License-Identifier: Apache-2.0
"""exp2 and tanh within one bfloat16 ulp, inv and invsqrt within the device's own error, at every input that matters."""

from __future__ import annotations

import numpy as np
import pytest

from tests.npu.twin import compiled_cases as cases

f32, f64 = np.float32, np.float64


def ordered(values: np.ndarray) -> np.ndarray:
    """bfloat16 bits as integers in the order of the values; both zeros are 0."""
    bits = cases.bits16(values).astype(np.int32)
    return np.where(bits & 0x8000, -(bits & 0x7FFF), bits)


def inputs() -> np.ndarray:
    """Every bfloat16 that is a number, and many floats of ordinary size."""
    every = np.arange(65536, dtype=np.uint16).view(cases.BF16).astype(f32)
    rng = np.random.default_rng(21)
    floats = np.concatenate([rng.uniform(-160, 140, 20000), rng.uniform(-6, 6, 20000)]).astype(f32)
    values = np.concatenate([every[~np.isnan(every)], floats])
    return cases.aligned(values[: len(values) // 32 * 32])


@pytest.mark.parametrize(("symbol", "truth"), [("exp2_of", np.exp2), ("tanh_of", np.tanh)])
def test_the_result_is_the_nearest_bfloat16_or_its_neighbour(symbol, truth):
    values = inputs()
    out = cases.aligned(np.zeros(len(values), cases.BF16))
    cases.call(cases.library("elementary"), symbol, values, out, len(values))
    with np.errstate(over="ignore", under="ignore"):
        exact = truth(values.astype(f64)).astype(f32).astype(cases.BF16)
    distance = abs(ordered(out) - ordered(exact))
    assert distance.max() <= 1
    assert (distance == 0).mean() > 0.999


@pytest.mark.parametrize("mode", [cases.FLOOR, cases.CEIL])
def test_exp2_does_not_follow_the_rounding_register(mode):
    values = inputs()[-1024:]
    results = []
    for rounding in (mode, cases.CONV_EVEN):
        out = cases.aligned(np.zeros(1024, cases.BF16))
        core = cases.CoreState(rounding=rounding)
        cases.call(cases.library("elementary"), "exp2_of", values, out, 1024, core=core)
        results.append(cases.bits16(out).copy())
    np.testing.assert_array_equal(*results)


def test_special_values():
    values = cases.aligned(np.array([np.inf, -np.inf, np.nan, 0, -0.0, 128, 127, -133, -134.5, -126] + [1] * 22, f32))
    out = cases.aligned(np.zeros(32, cases.BF16))
    cases.call(cases.library("elementary"), "exp2_of", values, out, 32)
    bits = cases.bits16(out)[:10].tolist()
    assert bits == [0x7F80, 0x0000, 0x7FC0, 0x3F80, 0x3F80, 0x7F80, 0x7F00, 0x0001, 0x0000, 0x0080]
    cases.call(cases.library("elementary"), "tanh_of", values, out, 32)
    assert cases.bits16(out)[:6].tolist() == [0x3F80, 0xBF80, 0x7FC0, 0x0000, 0x8000, 0x3F80]


def test_vector_inverses_are_within_two_bfloat16_ulp():
    values = cases.aligned(np.arange(0x0880, 0x7780, dtype=np.uint16).view(cases.BF16))
    out = cases.aligned(np.zeros(len(values), cases.BF16))
    for symbol, truth in (("inv_of", lambda x: 1 / x), ("invsqrt_of", lambda x: 1 / np.sqrt(x))):
        cases.call(cases.library("elementary"), symbol, values, out, len(values))
        exact = truth(values.astype(f64)).astype(f32).astype(cases.BF16)
        assert abs(ordered(out) - ordered(exact)).max() <= 2


def test_scalar_inverses_are_ieee():
    values, out = cases.aligned(np.array([3.0, 7.0, 2.0, -0.1], f32)), cases.aligned(np.zeros(4, f32))
    core = cases.call(cases.library("elementary"), "scalars", values, out)
    root = np.sqrt(f32(7))
    assert out.tolist() == [f32(1) / f32(3), f32(1) / root, np.sqrt(f32(2)), f32(1) / f32(-0.1)]
    assert core.elementary_ops == 4
