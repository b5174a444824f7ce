# SPDX-License-Identifier: Apache-2.0
"""RoPE: half-split rotation, copied heads bit for bit, planted faults."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.rope.oracle import rope
from kernels.rope.stage import RopeStage
from kernels.rounding import round_bf16
from refusal import Refusal
from tests.kernels.compiled import Compiled, Memory, bias, multiply_adds, placed, random, relative_error

FLOOR_LIMIT = 1e-4


def angles(rng: np.random.Generator, rows: int, head_dim: int) -> Memory:
    """cos then sin of random angles."""
    theta = rng.uniform(0, 2 * np.pi, (rows, head_dim // 2))
    return placed(np.concatenate([np.cos(theta), np.sin(theta)], axis=1))


def run(kernel: Compiled, x: Memory, cos_sin: Memory) -> np.ndarray:
    y = kernel.out("rope_rows", 2)
    kernel("rope_rows", x, cos_sin, y)
    return y.f64.reshape(x.values.shape)


@pytest.mark.parametrize(
    ("head_dim", "rotated", "copied", "rows"), [(64, 12, 3, 1), (80, 2, 0, 2), (96, 1, 1, 3), (128, 3, 2, 1)]
)
def test_rotation_against_the_oracle(head_dim: int, rotated: int, copied: int, rows: int) -> None:
    kernel = Compiled(RopeStage(head_dim, rotated, copied, rows))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x, cos_sin = random(rng, rows, rotated + copied, head_dim), angles(rng, rows, head_dim)
        y = run(kernel, x, cos_sin)
        assert relative_error(y, rope(x.f64, cos_sin.f64, rotated, round_bf16)) < FLOOR_LIMIT
        assert np.array_equal(y[:, rotated:], x.f64[:, rotated:])


def test_angle_zero_is_the_identity_and_a_quarter_turn_swaps_halves() -> None:
    kernel = Compiled(RopeStage(64, 1, 0, 2))
    x = random(np.random.default_rng(0), 2, 1, 64)
    turns = placed(
        np.concatenate([np.repeat([[1, 0]], 32, 1).reshape(1, 64), np.repeat([[0, 1]], 32, 1).reshape(1, 64)])
    )
    y = run(kernel, x, turns)
    assert np.array_equal(y[0], x.f64[0])
    assert np.array_equal(y[1, 0], np.concatenate([-x.f64[1, 0, 32:], x.f64[1, 0, :32]]))


def test_positive_inputs_leave_no_bias() -> None:
    rng = np.random.default_rng(1)
    x, cos_sin = placed(np.abs(rng.standard_normal((16, 8, 64)))), angles(rng, 16, 64)
    y = run(Compiled(RopeStage(64, 8, 0, 16)), x, cos_sin)
    assert abs(bias(y, rope(x.f64, cos_sin.f64, 8))) < 2e-4


@pytest.mark.parametrize("head_dim", [64, 80, 96])
def test_work_is_what_the_stage_says(head_dim: int) -> None:
    stage = RopeStage(head_dim, 2, 1, 2)
    kernel = Compiled(stage)
    rng = np.random.default_rng(2)
    counters = kernel("rope_rows", random(rng, 2, 3, head_dim), angles(rng, 2, head_dim), kernel.out("rope_rows", 2))
    assert multiply_adds(counters) == stage.macs("rope_rows")
    assert counters["vector_ops"] == stage.vector_operations("rope_rows")
    assert counters["mul_adds_scalar"] == 0


FAULTS = {
    "floor rounding": (("rounding_mode::conv_even", "rounding_mode::floor"),),
    "interleaved": (
        ("low = aie::load_v<lanes>(x + i), high = aie::load_v<lanes>(x + half + i)",
         "low = aie::filter_even(aie::load_v<2 * lanes>(x + 2 * i)), high = aie::filter_odd(aie::load_v<2 * lanes>(x + 2 * i))"),
    ),
    "turned backwards": (("turned_low = aie::msc(", "turned_low = aie::mac("), ("turned_high = aie::mac(", "turned_high = aie::msc(")),
    "sign of the second half": (("turned_low = aie::msc(", "turned_low = aie::mac("),),
    "angles of the first row for all": (("    cos_sin += HEAD_DIM;\n", ""),),
    "a copied head rotated": (
        ("head < ROTATED_HEADS; ++head", "head < heads; ++head"), ("i = ROTATED_HEADS * HEAD_DIM", "i = heads * HEAD_DIM"),
    ),
    "products rounded before their sum": (
        ("turned_high = aie::mac(turned_high, low, sine)",
         "turned_high = aie::add(turned_high, aie::mul(low, sine).template to_vector<bfloat16>())"),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str) -> None:
    stage = RopeStage(64, 2, 1, 2)
    rng = np.random.default_rng(3)
    x, cos_sin = random(rng, 2, 3, 64), angles(rng, 2, 64)
    reference = rope(x.f64, cos_sin.f64, 2, round_bf16)
    assert relative_error(run(Compiled(stage), x, cos_sin), reference) < FLOOR_LIMIT
    assert relative_error(run(Compiled(stage, FAULTS[fault]), x, cos_sin), reference) > 2 * FLOOR_LIMIT


@pytest.mark.parametrize(
    ("parameters", "named"),
    [((40, 1), "head_dim = 40"), ((64, 0), "rotated_heads = 0"), ((64, 1, -1), "copied_heads = -1")],
)
def test_refuses_what_the_source_does_not_take(parameters: tuple, named: str) -> None:
    with pytest.raises(Refusal, match=named):
        RopeStage(*parameters).check()
