# SPDX-License-Identifier: Apache-2.0
"""Prefill attention: the whole array's slots against FP64, causal skipping counted, planted faults."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.attention_prefill.oracle import attention, tile_of
from kernels.attention_prefill.stage import PrefillAttentionStage
from kernels.rounding import round_bf16
from refusal import Refusal
from tests.kernels.compiled import Compiled, Memory, bias, memory, multiply_adds, placed, random, relative_error

COLUMNS = 8
LIMIT = 1e-4  # against the oracle rounded at the same store points
BFP16_LIMIT = 6e-2


def stage_for(
    tokens: int, group: int, core_rows: int, head_dim: int, key_block: int = 32, mode: str = "bf16"
) -> PrefillAttentionStage:
    slots = tokens // 64 * group // core_rows
    return PrefillAttentionStage(head_dim, key_block, slots, group, core_rows, mode)


def run(kernel: Compiled, q: Memory, k: Memory, v: Memory, cores: list[tuple[int, int]] | None = None) -> np.ndarray:
    """Attention of one KV head's query heads q[T, group, D], by the calls that the given cores (or all) make."""
    stage = kernel.stage
    tokens, group, dim = q.values.shape
    out = np.full(q.values.shape, np.nan)
    for col, row in cores or [(col, row) for col in range(COLUMNS) for row in range(stage.core_rows)]:
        queries, acc, max_sum = (
            memory(ref.shape, {"bf16": q.values.dtype, "f32": np.float32}[ref.dtype]) for ref in stage.buffers.values()
        )
        kernel("prefill_reset", acc, max_sum)
        places = [tile_of(slot, row, col, stage.core_rows, group) for slot in range(stage.slots)]
        for slot, (first, head) in enumerate(places):
            kernel("prefill_take_query", placed(q.values[first : first + 8, head]), queries, slot)
        for block in range(tokens // stage.key_block):
            keys = slice(block * stage.key_block, (block + 1) * stage.key_block)
            counters = kernel(
                "prefill_block", queries, placed(k.values[keys]), placed(v.values[keys]), acc, max_sum, block, col, row
            )
            assert counters["matrix_macs"] == stage.block_macs(block, col, row)
            assert counters["mul_adds_scalar"] == 0
        for slot, (first, head) in enumerate(places):
            tile = memory((8, dim))
            kernel("prefill_finish", acc, max_sum, tile, slot)
            out[first : first + 8, head] = tile.f64
    return out


def operands(seed: int, tokens: int, group: int, dim: int, scale: float = 1.0) -> tuple[Memory, Memory, Memory]:
    rng = np.random.default_rng(seed)
    return random(rng, tokens, group, dim, scale=scale), random(rng, tokens, dim), random(rng, tokens, dim, offset=0.3)


def reference(q: Memory, k: Memory, v: Memory) -> np.ndarray:
    return attention(q.f64, k.f64[:, None], v.f64[:, None], round_bf16)


@pytest.mark.parametrize(
    ("tokens", "group", "core_rows", "dim", "key_block", "scale"),
    [(128, 3, 3, 64, 32, 1.0), (64, 4, 4, 80, 32, 3.0), (128, 1, 2, 32, 64, 8.0), (64, 6, 2, 96, 32, 0.2)],
)
def test_every_token_and_head_on_all_cores(
    tokens: int, group: int, core_rows: int, dim: int, key_block: int, scale: float
) -> None:
    """Groups that fill rows, that share them, and that are single; flat and peaked distributions. No NaN survives."""
    kernel = Compiled(stage_for(tokens, group, core_rows, dim, key_block))
    q, k, v = operands(tokens, tokens, group, dim, scale)
    y, r = run(kernel, q, k, v), reference(q, k, v)
    assert relative_error(y, r) < LIMIT
    by_position = np.abs(y - r).sum(axis=(1, 2)) / np.abs(r).sum(axis=(1, 2))
    assert by_position.max() < 3 * LIMIT


def test_keys_after_a_token_do_not_touch_it() -> None:
    """Token t's output is bit for bit the same whatever the later keys hold, finite or not far from overflow."""
    kernel = Compiled(stage_for(64, 1, 1, 64))
    q, k, v = operands(0, 64, 1, 64)
    before = run(kernel, q, k, v, [(3, 0)])
    k.values[32:], v.values[32:] = 1e4, -1e4
    after = run(kernel, q, k, v, [(3, 0)])
    first, _ = tile_of(0, 0, 3, 1, 1)
    assert first + 8 == 32
    assert np.array_equal(before[first : first + 8], after[first : first + 8])


def test_huge_scores_do_not_overflow() -> None:
    kernel = Compiled(stage_for(64, 1, 1, 64))
    q, k, v = operands(1, 64, 1, 64, scale=300.0)
    y = run(kernel, q, k, v, [(7, 0)])[56:]
    assert relative_error(y, reference(q, k, v)[56:]) < 1e-3


def test_a_slot_that_saw_no_key_is_zero_and_not_nan() -> None:
    kernel = Compiled(stage_for(64, 1, 1, 64))
    acc, max_sum, out = kernel.out("prefill_reset", 0), kernel.out("prefill_reset", 1), kernel.out("prefill_finish", 2)
    kernel("prefill_reset", acc, max_sum)
    kernel("prefill_finish", acc, max_sum, out, 0)
    assert (out.f64 == 0).all()


def test_positive_values_leave_no_bias() -> None:
    kernel = Compiled(stage_for(64, 3, 3, 64))
    q, k, v = operands(2, 64, 3, 64)
    v = placed(np.abs(v.f64))
    assert abs(bias(run(kernel, q, k, v), attention(q.f64, k.f64[:, None], v.f64[:, None]))) < 3e-4


def test_bfp16_mode_is_another_datapath_within_its_tolerance() -> None:
    kernel = Compiled(stage_for(64, 3, 3, 64, mode="bfp16"))
    q, k, v = operands(3, 64, 3, 64)
    assert 100 * LIMIT < relative_error(run(kernel, q, k, v), reference(q, k, v)) < BFP16_LIMIT


@pytest.mark.parametrize(("dim", "key_block", "mode"), [(64, 32, "bf16"), (96, 64, "bf16"), (64, 32, "bfp16")])
def test_work_is_what_the_stage_says(dim: int, key_block: int, mode: str) -> None:
    stage = PrefillAttentionStage(dim, key_block, 3, 3, 1, mode)
    kernel = Compiled(stage)
    rng = np.random.default_rng(4)
    queries, acc, max_sum = (
        random(rng, stage.slots * 8 * dim, scale=0.1),
        kernel.out("prefill_block", 3),
        kernel.out("prefill_block", 4),
    )
    tile, keys = random(rng, 8 * dim), random(rng, key_block * dim)
    everything_seen = -1  # a block before every token
    calls = {
        "prefill_reset": (acc, max_sum),
        "prefill_take_query": (tile, queries, 0),
        "prefill_block": (queries, keys, keys, acc, max_sum, everything_seen, 7, 0),
        "prefill_finish": (acc, max_sum, tile, 0),
    }
    for function, arguments in calls.items():
        counters = kernel(function, *arguments)
        if function == "prefill_block":  # again: now no maximum moves
            counters = kernel(function, *arguments)
            assert counters["matrix_macs"] >= 0.95 * multiply_adds(counters)
        assert multiply_adds(counters) == stage.macs(function)
        assert counters["vector_ops"] == stage.vector_operations(function)


FAULTS = {
    "floor rounding": (("rounding_mode::conv_even", "rounding_mode::floor"),),
    "mask off by one, own key hidden": (("if (key > token)", "if (key >= token)"),),
    "mask off by one, next key seen": (("if (key > token)", "if (key > token + 1)"),),
    "diagonal group not computed": (
        ("groups = diagonal + 1 < int32_t(key_groups) ? diagonal + 1", "groups = diagonal < 4 ? diagonal"),
    ),
    "maximum not carried": (("= aie::max(old_maximum, round_to_integer(", "= (round_to_integer("),),
    "accumulator not rescaled": (("before = product(TileTerms(before), rescale);", ";"),),
    "sum not rescaled": (("  if (moved) {", "  if (false) {"),),
    "scale of another head dimension": (("float(SCALE_LOG2E)", "float(SCALE_LOG2E) * 1.4142f"),),
    "base e for base 2": (("float(SCALE_LOG2E)", "float(SCALE_LOG2E) * 0.6931f"),),
    "heads tiled instead of repeated": (("(slot * CORE_ROWS + row) / GROUP", "(slot * CORE_ROWS + row) % 2"),),
    "bf16 accumulator": (
        (
            "aie::store_v(acc + d * tile, sum.template to_vector<float>());",
            "aie::store_v(acc + d * tile, TileSum(sum.template to_vector<bfloat16>()).template to_vector<float>());",
        ),
    ),
    "state not reset": (
        (
            "void prefill_reset(float *acc, float *max_sum) {",
            "void prefill_reset(float *acc, float *max_sum) { return;",
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str) -> None:
    """Two cores of 128 tokens; maxima that move from block to block."""
    stage = stage_for(128, 3, 3, 64)
    q, k, v = operands(5, 128, 3, 64, scale=2.0)
    cores = [(1, 0), (6, 1)]
    r = reference(q, k, v)

    def error(kernel: Compiled) -> float:
        y = run(kernel, q, k, v, cores)
        done = [tile_of(slot, row, col, 3, 3) for col, row in cores for slot in range(stage.slots)]
        got = np.stack([y[first : first + 8, head] for first, head in done])
        want = np.stack([r[first : first + 8, head] for first, head in done])
        return relative_error(got, want)

    try:
        faulty = error(Compiled(stage, FAULTS[fault]))
    except AssertionError as skipped:  # a fault in what is skipped shows in the count of multiply-adds
        assert "block_macs" in str(skipped)
        faulty = float("inf")
    assert error(Compiled(stage)) < LIMIT
    assert faulty > 2 * LIMIT


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"head_dim": 60}, "head_dim = 60"),
        ({"head_dim": 264}, "head_dim = 264"),
        ({"key_block": 16}, "key_block = 16"),
        ({"slots": 0}, "slots = 0"),
        ({"mode": "int8"}, "mode = 'int8'"),
    ],
)
def test_refuses_what_the_source_does_not_take(parameters: dict, named: str) -> None:
    legal = {"head_dim": 64, "key_block": 32, "slots": 1, "group": 1, "core_rows": 1}
    with pytest.raises(Refusal, match=named):
        PrefillAttentionStage(**(legal | parameters)).check()
