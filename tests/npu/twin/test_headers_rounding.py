# SPDX-License-Identifier: Apache-2.0
"""Narrowing: fp32 to bfloat16 and integer accumulators to vectors, in every mode of the registers.

Expected bits come from choosing between the two neighbours by value, or are worked by hand.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from npu.twin.hostcc import CoreState
from tests.npu.twin import compiled_cases as cases


def nearest_of(low: Fraction, high: Fraction, low_is_even: bool, x: Fraction, mode: int) -> bool:
    """Whether x, which lies strictly between two neighbours, goes to the upper one."""
    if mode in (cases.FLOOR, cases.CEIL):
        return mode == cases.CEIL
    if mode in (cases.SYMMETRIC_FLOOR, cases.SYMMETRIC_CEIL):
        return (x < 0) == (mode == cases.SYMMETRIC_FLOOR)
    if x - low != high - x:
        return x - low > high - x
    return {
        cases.NEGATIVE_INF: False,
        cases.POSITIVE_INF: True,
        cases.SYMMETRIC_ZERO: x < 0,
        cases.SYMMETRIC_INF: x > 0,
        cases.CONV_EVEN: not low_is_even,
        cases.CONV_ODD: low_is_even,
    }[mode]


def bf16_value(pattern: int) -> Fraction:
    """The value of a finite bfloat16; the pattern of infinity stands for 2^128, the next one on the grid."""
    exponent, mantissa = (pattern >> 7) & 0xFF, pattern & 0x7F
    size = Fraction(mantissa if exponent == 0 else mantissa + 128) * Fraction(2) ** (max(exponent, 1) - 127 - 7)
    return -size if pattern >> 15 else size


def rounded(value: np.float32, mode: int) -> int:
    """bfloat16 bits of a finite float by comparing exact values."""
    pattern = int(np.float32(value).view(np.uint32))
    toward_zero = pattern >> 16
    if pattern & 0xFFFF == 0:
        return toward_zero
    away = toward_zero + 1
    x = Fraction(float(value))
    if x > 0:
        low, high = toward_zero, away
    else:
        low, high = away, toward_zero
    return high if nearest_of(bf16_value(low), bf16_value(high), low & 1 == 0, x, mode) else low


def edge_values() -> np.ndarray:
    """Ties, neighbours of ties, tiny, huge and denormal values of both signs."""
    low_bits = [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    high_bits = [0x0000, 0x0001, 0x007F, 0x0080, 0x0081, 0x3F7F, 0x3F80, 0x3F81, 0x40C9, 0x7F00, 0x7F7E, 0x7F7F]
    patterns = [(h | s) << 16 | low for h in high_bits for s in (0, 0x8000) for low in low_bits]
    rng = np.random.default_rng(7)
    bits = np.concatenate([np.array(patterns, np.uint32), rng.integers(0, 2**32, 2000, dtype=np.uint32)])
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]
    return values[: len(values) // 16 * 16]


@pytest.mark.parametrize("mode", cases.MODES)
def test_a_float_narrows_to_the_neighbour_that_the_mode_names(mode):
    values = cases.aligned(edge_values())
    out = cases.aligned(np.zeros(len(values), cases.BF16))
    cases.call(cases.library("rounding"), "narrow", values, out, len(values), mode)
    expected = np.array([rounded(v, mode) for v in values], np.uint16)
    np.testing.assert_array_equal(cases.bits16(out), expected)


@pytest.mark.parametrize(
    ("mode", "value", "bits"),
    [
        # 1 + 2^-8 lies half way between 1 (0x3f80, even) and 1 + 2^-7 (0x3f81).
        (cases.FLOOR, 1 + 2**-8, 0x3F80),
        (cases.FLOOR, -(1 + 2**-8), 0xBF81),
        (cases.CEIL, 1 + 2**-8, 0x3F81),
        (cases.CEIL, -(1 + 2**-8), 0xBF80),
        (cases.SYMMETRIC_FLOOR, -(1 + 2**-8), 0xBF80),
        (cases.SYMMETRIC_CEIL, 1 + 2**-20, 0x3F81),
        (cases.NEGATIVE_INF, -(1 + 2**-8), 0xBF81),
        (cases.POSITIVE_INF, -(1 + 2**-8), 0xBF80),
        (cases.SYMMETRIC_ZERO, -(1 + 2**-8), 0xBF80),
        (cases.SYMMETRIC_INF, -(1 + 2**-8), 0xBF81),
        (cases.CONV_EVEN, 1 + 2**-8, 0x3F80),
        (cases.CONV_ODD, 1 + 2**-8, 0x3F81),
        # The largest float rounds to infinity, or stays at the largest bfloat16.
        (cases.CONV_EVEN, 3.4028235e38, 0x7F80),
        (cases.FLOOR, 3.4028235e38, 0x7F7F),
        (cases.FLOOR, -3.4028235e38, 0xFF80),
        # The smallest denormal float, 2^-149: rounded like any other, never flushed.
        (cases.CEIL, 2.0**-149, 0x0001),
        (cases.FLOOR, -(2.0**-149), 0x8001),
        (cases.CONV_EVEN, 2.0**-149, 0x0000),
        # 3 * 2^-134, one and a half of the smallest bfloat16.
        (cases.CONV_EVEN, 3 * 2.0**-134, 0x0002),
        (cases.SYMMETRIC_ZERO, 3 * 2.0**-134, 0x0001),
    ],
)
def test_cases_worked_by_hand(mode, value, bits):
    values = cases.aligned(np.full(16, value, np.float32))
    out = cases.aligned(np.zeros(16, cases.BF16))
    cases.call(cases.library("rounding"), "narrow", values, out, 16, mode)
    assert [hex(b) for b in cases.bits16(out)] == [hex(bits)] * 16


@pytest.mark.parametrize("mode", cases.MODES)
def test_infinity_stays_and_nan_stays_a_quiet_nan(mode):
    patterns = [0x7F800000, 0xFF800000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0x7F80FFFF]
    values = cases.aligned(np.array(patterns * 2, np.uint32).view(np.float32))
    out = cases.aligned(np.zeros(16, cases.BF16))
    cases.call(cases.library("rounding"), "narrow", values, out, 16, mode)
    bits = cases.bits16(out)[:8].tolist()
    assert bits == [0x7F80, 0xFF80, 0x7FC0, 0xFFC0, 0x7FFF, 0xFFFF, 0x7FC0, 0x7FC0]


def test_widening_is_exact_for_every_bfloat16():
    values = cases.aligned(np.arange(65536, dtype=np.uint16).view(cases.BF16))
    out = cases.aligned(np.zeros(65536, np.float32))
    cases.call(cases.library("rounding"), "widen", values, out, 65536)
    np.testing.assert_array_equal(out.view(np.uint32), np.arange(65536, dtype=np.uint32) << 16)


def test_the_register_is_floor_after_reset_and_sticks_between_calls():
    kernels, core = cases.library("rounding"), CoreState()
    values = cases.aligned(np.array([1 + 3 * 2**-9, -(1 + 3 * 2**-9)] * 8, np.float32))
    out = cases.aligned(np.zeros(16, cases.BF16))
    cases.call(kernels, "narrow_as_is", values, out, 16, core=core)
    assert cases.bits16(out)[:2].tolist() == [0x3F80, 0xBF81]
    cases.call(kernels, "set_modes", cases.CONV_EVEN, 0, core=core)
    cases.call(kernels, "narrow_as_is", values, out, 16, core=core)
    assert cases.bits16(out)[:2].tolist() == [0x3F81, 0xBF81]
    cases.call(kernels, "narrow_as_is", values, out, 16, core=CoreState())
    assert cases.bits16(out)[:2].tolist() == [0x3F80, 0xBF81]


def test_a_constant_is_folded_to_nearest_even_under_any_register():
    out = cases.aligned(np.zeros(8, cases.BF16))
    cases.call(cases.library("rounding"), "constant", out)
    assert cases.bits16(out).tolist() == [0x3EAB] * 8


def shifted(value: int, shift: int, mode: int) -> int:
    """value / 2^shift as an integer by the mode."""
    x = Fraction(value, 1 << shift)
    low = x.numerator // x.denominator
    if x == low:
        return low
    return low + nearest_of(Fraction(low), Fraction(low + 1), low % 2 == 0, x, mode)


@pytest.mark.parametrize("mode", cases.MODES)
def test_an_accumulator_is_shifted_and_rounded_by_the_mode(mode):
    rng = np.random.default_rng(3)
    small = np.arange(-40, 40, dtype=np.int32)
    values = cases.aligned(np.concatenate([small, rng.integers(-(2**31), 2**31, 1200).astype(np.int32)]))
    kernels = cases.library("rounding")
    for shift in (0, 1, 4, 17, 31):
        out = cases.aligned(np.zeros(len(values), np.int16))
        core = cases.call(kernels, "set_modes", mode, 1)
        cases.call(kernels, "srs_16", values, out, len(values), shift, core=core)
        expected = [min(max(shifted(int(v), shift, mode), -32768), 32767) for v in values]
        np.testing.assert_array_equal(out, expected)


def test_saturation_wraps_saturates_or_keeps_symmetric():
    kernels = cases.library("rounding")
    values = cases.aligned(np.array([0, 127, 128, 300, -127, -128, -129, -300] * 2, np.int32))
    expected = {
        0: [0, 127, -128, 44, -127, -128, 127, -44],
        1: [0, 127, 127, 127, -127, -128, -128, -128],
        3: [0, 127, 127, 127, -127, -127, -127, -127],
    }
    for saturation, wanted in expected.items():
        out = cases.aligned(np.zeros(16, np.int8))
        core = cases.call(kernels, "set_modes", cases.FLOOR, saturation)
        cases.call(kernels, "srs_8", values, out, 16, 0, core=core)
        assert out[:8].tolist() == wanted
    out = cases.aligned(np.zeros(16, np.uint8))
    core = cases.call(kernels, "set_modes", cases.FLOOR, 1)
    cases.call(kernels, "srs_u8", values, out, 16, 0, core=core)
    assert out[:8].tolist() == [0, 127, 128, 255, 0, 0, 0, 0]
