# SPDX-License-Identifier: Apache-2.0
"""Decode attention: a chain of cores over a cache whose unused rows are NaN, the token itself, planted faults."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from kernels.attention_decode.oracle import decode_attention
from kernels.attention_decode.stage import PARAMS, DecodeAttentionStage
from kernels.rounding import round_bf16
from refusal import Refusal
from tests.kernels.compiled import BF16, Compiled, Memory, bias, memory, multiply_adds, placed, random, relative_error

LIMIT = 1e-4  # against the oracle rounded at the same store points


@dataclass(frozen=True)
class Step:
    """One decode step: the header as the host writes it, and a cache with NaN from `pos` on."""

    header: Memory
    k: Memory  # [blocks * key_block, KV, D]
    v: Memory
    pos: int

    def reference(self, stage: DecodeAttentionStage, store=round_bf16) -> np.ndarray:
        values = self.header.f64[PARAMS:]
        cos_sin, qkv = values[: stage.head_dim], values[stage.head_dim :].reshape(-1, stage.head_dim)
        return decode_attention(qkv, cos_sin, self.k.f64[: self.pos], self.v.f64[: self.pos], stage.heads, store)


def step_at(
    stage: DecodeAttentionStage, pos: int, blocks: int, seed: int = 0, scale: float = 1.0, offset: float = 0.3
) -> Step:
    rng = np.random.default_rng(seed)
    theta = rng.uniform(0, 2 * np.pi, stage.head_dim // 2)
    qkv = rng.standard_normal((stage.heads + 2 * stage.kv_heads, stage.head_dim))
    qkv[: stage.heads] *= scale
    header = placed(np.concatenate([np.zeros(PARAMS), np.cos(theta), np.sin(theta), qkv.reshape(-1)]))
    header.values[:PARAMS].view(np.int32)[:] = -(2**30)  # the rest of params is not the kernel's
    header.values[:PARAMS].view(np.int32)[0] = pos
    shape = (blocks * stage.key_block, stage.kv_heads, stage.head_dim)
    k, v = random(rng, *shape), random(rng, *shape, offset=offset)
    k.values[pos:] = v.values[pos:] = np.nan
    return Step(header, k, v, pos)


def run(kernel: Compiled, step: Step, cores: int) -> np.ndarray:
    """Blocks dealt to a chain of cores, each merging what comes in; the last one finishes. [heads + 2 KV, D]."""
    stage = kernel.stage
    blocks = step.k.values.shape[0] // stage.key_block
    incoming = None
    for core in range(cores):
        queries, state = kernel.out("decode_prepare", 1), kernel.out("decode_prepare", 2)
        kernel("decode_prepare", step.header, queries, state)
        for head in range(stage.kv_heads):
            for block in range(core, blocks, cores):
                keys = slice(block * stage.key_block, (block + 1) * stage.key_block)
                k, v = placed(step.k.values[keys, head]), placed(step.v.values[keys, head])
                kernel("decode_block", step.header, queries, k, v, state, head, keys.start)
        if incoming is not None:
            kernel("decode_merge", incoming, state)
        if core < cores - 1:
            incoming = kernel.out("decode_pass", 1)
            kernel("decode_pass", state, incoming)
    out = kernel.out("decode_current", 3)
    kernel("decode_current", step.header, queries, state, out)
    kernel("decode_finish", state, out)
    return out.f64.reshape(-1, stage.head_dim)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "key_block", "positions"),
    [
        (9, 3, 64, 32, (0, 1, 31, 32, 77)),  # SmolLM2-135M: groups of three
        (8, 1, 96, 32, (5, 64)),  # one KV head, eight query heads
        (2, 2, 80, 64, (63, 130)),  # every head its own KV head
        (14, 2, 64, 32, (40,)),  # groups of seven
    ],
)
def test_every_head_at_every_kind_of_position(
    heads: int, kv_heads: int, head_dim: int, key_block: int, positions: tuple
) -> None:
    """An empty cache, one key, the last row of a block, the first of the next; the rest of the cache is NaN."""
    stage = DecodeAttentionStage(heads, kv_heads, head_dim, key_block)
    kernel = Compiled(stage)
    for seed, pos in enumerate(positions):
        step = step_at(stage, pos, blocks=5, seed=seed, scale=1.0 + seed)
        y, r = run(kernel, step, cores=3), step.reference(stage)
        assert relative_error(y[:heads], r[:heads]) < LIMIT
        by_head = np.abs(y[:heads] - r[:heads]).sum(axis=1) / np.abs(r[:heads]).sum(axis=1)
        assert by_head.max() < 4 * LIMIT
        assert relative_error(y[heads : heads + kv_heads], r[heads : heads + kv_heads]) < 1e-4
        assert np.array_equal(y[heads + kv_heads :], r[heads + kv_heads :])


def test_the_number_of_cores_hardly_matters() -> None:
    """Rescaling by powers of 2 is exact, so dealing blocks differently changes little more than the order of sums."""
    stage = DecodeAttentionStage(9, 3, 64)
    kernel = Compiled(stage)
    step = step_at(stage, 100, blocks=4)
    results = [run(kernel, step, cores) for cores in (1, 2, 4)]
    for other in results[1:]:
        assert relative_error(other, results[0]) < LIMIT


def test_a_block_beyond_the_position_changes_nothing() -> None:
    stage = DecodeAttentionStage(4, 2, 32)
    kernel = Compiled(stage)
    step = step_at(stage, 32, blocks=2)
    queries, state = kernel.out("decode_prepare", 1), kernel.out("decode_prepare", 2)
    kernel("decode_prepare", step.header, queries, state)
    before = state.values.copy()
    nothing = memory(stage.key_block * stage.head_dim)
    counters = kernel("decode_block", step.header, queries, nothing, nothing, state, 0, 32)
    assert np.array_equal(before, state.values)
    assert counters["vector_ops"] == 0


def test_a_head_that_saw_no_key_is_zero_and_not_nan() -> None:
    stage = DecodeAttentionStage(4, 2, 32)
    kernel = Compiled(stage)
    step = step_at(stage, 0, blocks=1)
    queries, state, out = (
        kernel.out("decode_prepare", 1),
        kernel.out("decode_prepare", 2),
        kernel.out("decode_finish", 1),
    )
    kernel("decode_prepare", step.header, queries, state)
    kernel("decode_merge", placed(state.values, np.float32), state)
    kernel("decode_finish", state, out)
    assert (out.f64[: 4 * 32] == 0).all()
    assert np.isnan(out.f64[4 * 32 :]).all()


def test_positive_values_leave_no_bias() -> None:
    stage = DecodeAttentionStage(32, 4, 64)
    step = step_at(stage, 90, blocks=3, offset=6.0)
    y, r = run(Compiled(stage), step, 1)[:32], step.reference(stage, lambda x: x)[:32]
    assert abs(bias(y, r)) < 3e-4


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "key_block"), [(9, 3, 64, 32), (4, 4, 80, 64)])
def test_work_is_what_the_stage_says(heads: int, kv_heads: int, head_dim: int, key_block: int) -> None:
    stage = DecodeAttentionStage(heads, kv_heads, head_dim, key_block)
    kernel = Compiled(stage)
    step = step_at(stage, key_block, blocks=1)
    queries, state, out = (
        kernel.out("decode_prepare", 1),
        kernel.out("decode_prepare", 2),
        kernel.out("decode_current", 3),
    )
    keys = placed(step.k.values[:, 0])
    counted = {"decode_prepare": kernel("decode_prepare", step.header, queries, state)}
    counted["decode_current"] = kernel("decode_current", step.header, queries, state, out)
    kernel("decode_block", step.header, queries, keys, keys, state, 0, 0)
    counted["decode_block"] = kernel("decode_block", step.header, queries, keys, keys, state, 0, 0)
    counted["decode_merge"] = kernel("decode_merge", placed(state.values, np.float32), state)
    counted["decode_pass"] = kernel("decode_pass", state, kernel.out("decode_pass", 1))
    counted["decode_finish"] = kernel("decode_finish", state, out)
    assert counted.keys() == stage.functions.keys()
    for function, counters in counted.items():
        assert multiply_adds(counters) == stage.macs(function), function
        assert counters["vector_ops"] == stage.vector_operations(function), function
        assert counters["mul_adds_scalar"] == 0


FAULTS = {
    "floor rounding": (("rounding_mode::conv_even", "rounding_mode::floor"),),
    "key mask off by one": (("= position(header) - first_key;", "= position(header) - first_key + 1;"),),
    "last key dropped": (("= position(header) - first_key;", "= position(header) - first_key - 1;"),),
    "values beyond the position not cleared": (("return valid_in(g) >= 8 ? all", "return true ? all"),),
    "token itself forgotten": (("    attend<1>(queries + head", "    if (false) attend<1>(queries + head"),),
    "keys written unrotated": (
        ("rotate_head<HEAD_DIM>(header + header_k + head * HEAD_DIM, header + cosines, key);",
         "for (unsigned i = 0; i < HEAD_DIM; i += 8) aie::store_v(key + i, aie::load_v<8>(header + header_k + head * HEAD_DIM + i));"),
    ),
    "rope turned backwards": (("turned_low = aie::msc(", "turned_low = aie::mac("), ("turned_high = aie::mac(", "turned_high = aie::msc(")),
    "rope interleaved": (
        ("low = aie::load_v<lanes>(x + i), high = aie::load_v<lanes>(x + half + i)",
         "low = aie::filter_even(aie::load_v<64>(x)), high = aie::filter_odd(aie::load_v<64>(x))"),
    ),
    "heads tiled instead of repeated": (
        ("queries + kv_head * head_acc, CachedKeys", "queries + (1 - kv_head) * HEAD_DIM, CachedKeys"),
    ),
    "merge without rescaling": (("their_rows = along_rows(their_scale)", "their_rows = along_rows(our_scale)"),),
    "merge loses the sum": (("aie::add(their_sum, our_sum)", "our_sum"),),
    "scale of another head dimension": (("float(SCALE_LOG2E)", "float(SCALE_LOG2E) * 1.4142f"),),
    "state not reset": (("    aie::store_v(state + i, aie::zeros<float, 8>());", "    ;"),),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str) -> None:
    """Two cores; a position inside a block of the second; scores flat enough that every key counts; the worst head."""
    stage = DecodeAttentionStage(6, 2, 64)
    step = step_at(stage, 45, blocks=2, seed=9)
    r = step.reference(stage)

    def error(kernel: Compiled) -> float:
        y = run(kernel, step, 2)
        return max(relative_error(got, want) for got, want in zip(y, r, strict=True))

    assert error(Compiled(stage)) < LIMIT
    assert error(Compiled(stage, FAULTS[fault])) > 2 * LIMIT


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ((9, 2, 64), "heads = 9"),
        ((16, 1, 64), "heads / kv_heads = 16"),
        ((8, 2, 40), "head_dim = 40"),
        ((8, 2, 64, 16), "key_block = 16"),
    ],
)
def test_refuses_what_the_source_does_not_take(parameters: tuple, named: str) -> None:
    with pytest.raises(Refusal, match=named):
        DecodeAttentionStage(*parameters).check()


def test_state_and_queries_are_as_small_as_the_heads() -> None:
    """The padding to 8 rows of the matrix unit stays in registers: 9 heads pass 2.4 kB from core to core, not 6.3."""
    buffers = DecodeAttentionStage(9, 3, 64).buffers
    assert buffers["state"].nbytes == 4 * (9 * 64 + 2 * 8 * 3)
    assert buffers["queries"].nbytes == BF16.itemsize * 9 * 64
