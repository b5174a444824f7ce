# SPDX-License-Identifier: Apache-2.0
"""Elementwise calls, reductions, lane moves, masks and counters, against numpy in the stated order."""

from __future__ import annotations

import numpy as np

from tests.npu.twin import compiled_cases as cases

f32 = np.float32


def normal(seed: int, count: int, dtype: type) -> np.ndarray:
    return cases.aligned(np.random.default_rng(seed).standard_normal(count).astype(f32).astype(dtype))


def test_elementwise_calls_round_once_and_accumulate_in_fp32():
    a, b, c = normal(1, 32, cases.BF16), normal(2, 32, cases.BF16), normal(3, 32, f32)
    out = cases.aligned(np.zeros((10, 32), cases.BF16))
    fout = cases.aligned(np.zeros((10, 32), f32))
    cases.call(cases.library("vectors"), "elementwise", a, b, c, out, fout)
    x, y = a.astype(f32), b.astype(f32)
    even = [x + y, x - y, np.maximum(x, y), np.minimum(x, y), -x, abs(x), x * y, x + x[3]]
    even += [np.where(x < y, y, x), np.where(y >= 0, 0, x)]
    np.testing.assert_array_equal(cases.bits16(out), cases.bits16(np.array(even, f32).astype(cases.BF16)))
    exact = [c + x * y, c - x * y, x * y, -(x * y), c + x[5] * y, c + x * x, c + x, c - c, x * x]
    exact.append((c + x[1] * x) + x[2] * y)
    np.testing.assert_array_equal(fout, np.array(exact, f32))


def halved(lanes: np.ndarray) -> np.float32:
    """Sum of fp32 lanes by adding the upper half onto the lower one."""
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0]


def test_reductions_add_halves_onto_halves():
    a, c = normal(4, 32, cases.BF16), normal(5, 32, f32)
    out = cases.aligned(np.zeros(16, f32))
    cases.call(cases.library("vectors"), "reductions", a, c, out)
    x = a.astype(f32)
    assert out[0] == halved(x).astype(cases.BF16).astype(f32)
    assert out[1:3].tolist() == [x.max(), x.min()]
    assert out[3:8].tolist() == [halved(c), halved(c[:16]), halved(c[4:8]), c.max(), halved(c + c)]
    assert out[8:10].tolist() == [halved(c[:16]), halved(c[16:])]
    assert np.isnan(out[10:12]).all()


def test_lanes_move_where_they_should():
    x, y = np.arange(32, dtype=np.int16), np.arange(100, 132, dtype=np.int16)
    out = cases.aligned(np.zeros((12, 32), np.int16))
    cases.call(cases.library("vectors"), "moves", cases.aligned(x), cases.aligned(y), out)
    fours = x.reshape(4, 2, 4)
    zipped = np.stack([x.reshape(16, 2), y.reshape(16, 2)], 1).reshape(2, 32)
    expected = [
        np.concatenate([x[::2], x[1::2]]),
        np.concatenate([fours[:, 0].ravel(), fours[:, 1].ravel()]),
        *zipped,
        x,
        y,
        x.reshape(4, 8).T.ravel(),
        x[::-1],
        np.concatenate([y[-3:], x[:-3]]),
        np.roll(x, -5),
        x,
        x,
    ]
    np.testing.assert_array_equal(out, expected)


def test_integers_wrap_shift_and_convert():
    rng = np.random.default_rng(6)
    x = rng.integers(-(2**31), 2**31, 16).astype(np.int32)
    y = rng.integers(-(2**31), 2**31, 16).astype(np.int32)
    out, fout = cases.aligned(np.zeros((8, 16), np.int32)), cases.aligned(np.zeros(16, f32))
    cases.call(cases.library("vectors"), "integers", cases.aligned(x), cases.aligned(y), out, fout)
    product = x.astype(np.int64) * y.astype(np.int64)
    expected = [x + y, x - 7, np.maximum(x, y), x ^ y, (product >> 4).astype(np.int32), x >> 3, x.astype(np.int16)]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out[:7], np.array(expected, np.int32))
    near = np.clip(x.astype(f32).astype(np.float64), -(2.0**31), 2.0**31 - 1)
    np.testing.assert_array_equal(out[7], near.astype(np.int32))
    np.testing.assert_array_equal(fout, x.astype(f32) / 16)


def test_masks_hold_one_bit_a_lane_and_nan_compares_false():
    x = np.array([-1, 0, 1, np.nan, -np.inf, np.inf, -0.0, 5, -2, 2, 3, 4, -5, -6, 7, 8], f32)
    out = cases.aligned(np.zeros(4, np.uint32))
    cases.call(cases.library("vectors"), "masks", cases.aligned(x), out)
    below = sum(1 << i for i in range(16) if x[i] < 0)
    rest = sum(1 << i for i in range(16) if x[i] >= 0)
    assert out.tolist() == [below, rest, bin(below).count("1"), 0x8001]


def test_a_lane_that_nobody_wrote_is_nan():
    out = cases.aligned(np.zeros((4, 16), f32))
    cases.call(cases.library("vectors"), "unwritten", cases.aligned(np.ones(16, f32)), out)
    assert np.isnan(out).sum(1).tolist() == [16, 16, 8, 14]


def test_counters_are_exact():
    core = cases.call(
        cases.library("vectors"), "counted", normal(8, 128, cases.BF16), cases.aligned(np.zeros(32, cases.BF16))
    )
    assert core.counters() == {
        "mul_adds_vector": 4 * 32,
        "matrix_macs": 0,
        "mul_adds_scalar": 0,
        "vector_ops": 4 + 1 + 1,  # four mac, one zeros, one to_vector
        "mac_ops": 4,
        "elementary_ops": 0,
        "loads": 8,
        "stores": 1,
    }
