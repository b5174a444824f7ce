# SPDX-License-Identifier: Apache-2.0
"""Number formats against ml_dtypes, exact fractions and values by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from judge.rounding import quantise_bfp16, round_bf16

RNG = np.random.default_rng(7)
VALUES = np.concatenate(
    [RNG.standard_normal(4000) * 10.0 ** RNG.integers(-30, 30, 4000), [0.0, -0.0, 1.0, -1.0, 3.3e38]]
).astype(np.float32)


def test_even_is_what_ml_dtypes_does():
    assert np.array_equal(round_bf16(VALUES), VALUES.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_floor_is_the_next_bf16_below():
    low = round_bf16(VALUES, "floor")
    assert (low <= VALUES).all()
    exact = round_bf16(VALUES) == VALUES
    assert np.array_equal(low[exact], VALUES[exact])
    above = np.nextafter(low.astype(ml_dtypes.bfloat16), np.array(np.inf, ml_dtypes.bfloat16)).astype(np.float32)
    assert (above[~exact] > VALUES[~exact]).all()


def test_zero_cuts_the_magnitude():
    cut = round_bf16(VALUES, "zero")
    assert (np.abs(cut) <= np.abs(VALUES)).all()
    assert np.array_equal(cut, np.sign(VALUES) * round_bf16(np.abs(VALUES), "floor"))


def test_infinity_and_nan_stay():
    assert np.array_equal(round_bf16(np.array([np.inf, -np.inf, np.nan], np.float32)), [np.inf, -np.inf, np.nan], True)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="'even', 'floor' or 'zero'"):
        round_bf16(VALUES, "nearest")


def bfp16_by_definition(block: list[float]) -> list[float]:
    """facts/npu2-hardware.md 2.2: significand cut to 8 bits in two's complement, then shifted by the exponent gap."""
    exponents = [math.frexp(x)[1] - 1 if x else -200 for x in block]
    top = max(exponents)
    out = []
    for x, e in zip(block, exponents, strict=True):
        significand = math.floor(Fraction(x) / Fraction(2) ** e * 2**22) if x else 0  # 24 bits with sign
        mantissa = significand >> 16 >> min(top - e, 31)
        out.append(float(Fraction(mantissa) * Fraction(2) ** top / 64))
    return out


def test_bfp16_follows_the_published_steps():
    blocks = (RNG.standard_normal((200, 8)) * 2.0 ** RNG.integers(-12, 4, (200, 8))).astype(ml_dtypes.bfloat16)
    blocks = blocks.astype(np.float32)
    expected = np.array([bfp16_by_definition([float(x) for x in block]) for block in blocks], np.float32)
    assert np.array_equal(quantise_bfp16(blocks), expected)


def test_bfp16_by_hand():
    assert quantise_bfp16(np.array([1.0, -1.0, 0.3, -0.3, 1 / 64, -1 / 128, 0, 0], np.float32)).tolist() == [
        1.0, -1.0, 19 / 64, -20 / 64, 1 / 64, -1 / 64, 0, 0,
    ]  # fmt: skip


def test_bfp16_blocks_do_not_mix_and_a_short_tail_is_padded():
    x = np.concatenate([np.full(8, 1000.0), np.full(3, 0.01)]).astype(np.float32)
    assert quantise_bfp16(x)[8:] == pytest.approx(0.01, rel=2**-6)


def test_a_block_of_zeros_is_zero():
    assert not quantise_bfp16(np.zeros((2, 16), np.float32)).any()
