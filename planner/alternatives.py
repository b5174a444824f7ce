# SPDX-License-Identifier: Apache-2.0
"""Alternatives to a plan: Choices that differ from the accepted ones in one respect, the most promising first.

What is proposed: tiles of the prefill GEMMs, matrix mode and key block of prefill attention, prefill buckets; rows of a weight
element in decode, decode buckets. Grouping is fixed: prefill has one design an operator, decode five dispatches a layer, and
no further fusion exists in kernels/designs (skill optimize-fusion says how one is added). Weights are static already.

Gains are estimated in closed form with the rates of `npu.cost_rates`; they only order the experiments. Whether an
alternative is faster is decided by `npu.cost` on what the twin counts, and whether it is right by a gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from kernels.designs.attention_decode import DecodeAttentionDesign
from kernels.designs.attention_prefill import PrefillAttentionDesign
from kernels.designs.design import NUMPY_DTYPE, OpDesign
from kernels.designs.gemm import COLUMNS, ROWS, GemmDesign, candidates
from kernels.designs.gemv import BANK_BYTES, GemvDesign
from kernels.stage import MMUL_OPERATIONS
from npu import cost_rates as rates
from planner.plan import Choices, Entry, Plan
from refusal import Refusal

Legal = Callable[[OpDesign], bool]
LINEAR_KINDS = ("qkv", "o_proj", "gate_up", "down")
WORTH_A_SHARE = (
    0.01  # of the objective: a smaller gain is not worth a full gate, and lies deep within the model's error
)
BUCKET_STEP = 64  # tokens: what every row-wise and attention design divides by
DECODE_STEP = 128  # keys of a cache group


class Lever(StrEnum):
    """What an alternative turns, and so which optimise skill it belongs to."""

    TILES = "tiles"
    FUSION = "fusion"
    BUFFERS = "buffers"

    @property
    def skill(self) -> str:
        return f"optimize-{self}"


@dataclass(frozen=True)
class Alternative:
    """Choices to try. gain: estimated seconds of the objective that they save; it only orders."""

    name: str
    lever: Lever
    choices: Choices
    gain: float
    why: str


def bucket_for(length: int, buckets: Sequence[int]) -> int:
    """The bucket that serves a prompt or context of `length`: the smallest that holds it, else the largest."""
    return min((bucket for bucket in buckets if bucket >= length), default=max(buckets))


def mean_seconds(lengths: Sequence[int], seconds: Mapping[int, float]) -> float:
    """The objective of both phases: mean predicted seconds over reference lengths, each in its bucket.

    Args:
        seconds: bucket -> predicted seconds of its entry.
    """
    return sum(seconds[bucket_for(length, list(seconds))] for length in lengths) / len(lengths)


# ---- prefill ----


def prefill_alternatives(
    plan: Plan, lengths: Sequence[int], seconds: Mapping[int, float], legal: Legal
) -> tuple[Alternative, ...]:
    """Alternatives for prefill, the largest estimated gain first.

    Args:
        plan: the accepted plan. lengths: reference prompt lengths. seconds: prefill bucket -> predicted seconds.
        legal: whether `npu.legality` accepts a design; nothing illegal is proposed.
    """
    found = [
        *_tiles(plan, lengths, legal),
        *_attention(plan, lengths, legal),
        *_prefill_buckets(plan, lengths, seconds),
    ]
    return _ordered(found, mean_seconds(lengths, seconds))


def _ordered(found: Sequence[Alternative], objective: float) -> tuple[Alternative, ...]:
    worth = [alternative for alternative in found if alternative.gain > WORTH_A_SHARE * objective]
    return tuple(sorted(worth, key=lambda alternative: -alternative.gain))


def _designs(plan: Plan, entry: str, kind: type) -> dict[str, OpDesign]:
    """Operator (the last part of what a dispatch covers) -> its design in an entry, for designs of one type."""
    found: dict[str, OpDesign] = {}
    for dispatch in _entry(plan, entry).dispatches:
        if isinstance(dispatch.design, kind):
            for name in dispatch.covers:
                found.setdefault(name.rsplit(".", 1)[-1], dispatch.design)
    return found


def _entry(plan: Plan, name: str) -> Entry:
    return plan.entry(name)


def _share(plan: Plan, lengths: Sequence[int], bucket: int) -> float:
    """The part of the reference lengths that a prefill bucket serves."""
    served = [bucket_for(length, plan.choices.prefill_buckets) for length in lengths]
    return served.count(bucket) / len(served)


def _tiles(plan: Plan, lengths: Sequence[int], legal: Legal) -> Iterator[Alternative]:
    """The best other tiling of each linear, all of them in one alternative: they do not meet each other."""
    buckets = plan.choices.prefill_buckets
    chosen: dict[str, tuple[int, int, int]] = {}
    gain = 0.0
    for kind in LINEAR_KINDS:
        now = {bucket: _designs(plan, f"prefill_{bucket}", GemmDesign)[kind] for bucket in buckets}
        best = _best_tile(now, {bucket: _share(plan, lengths, bucket) for bucket in buckets}, legal)
        if best is not None:
            chosen[kind] = best[0]
            gain += best[1] * len(plan.layers)
    if chosen:
        names = ", ".join(f"{kind} {'x'.join(map(str, tile))}" for kind, tile in chosen.items())
        choices = replace(plan.choices, tiles=plan.choices.tiles | chosen)
        yield Alternative(
            f"tiles of {names}", Lever.TILES, choices, gain, "the emulated matrix unit's issue rate binds"
        )


def _best_tile(
    now: Mapping[int, OpDesign], share: Mapping[int, float], legal: Legal
) -> tuple[tuple[int, int, int], float] | None:
    """The tile (m, k, n) that saves most over all buckets, and what it saves in one layer; None if none does."""
    largest = now[max(now)]
    assert isinstance(largest, GemmDesign)
    before = sum(share[bucket] * gemm_seconds(design) for bucket, design in now.items())
    ranked = []
    for other in candidates(largest.M, largest.K, largest.N, mode=largest.mode, out=largest.out):
        made = [_of_bucket(other, bucket) for bucket in now]
        if None not in made:
            after = sum(share[bucket] * gemm_seconds(design) for bucket, design in zip(now, made, strict=True))
            ranked.append((after, (other.m, other.k, other.n), made))
    for after, tile, made in sorted(ranked, key=lambda row: row[:2]):
        if after >= before * (1 - WORTH_A_SHARE):
            return None
        if all(legal(design) for design in made):
            return tile, before - after
    return None


def _of_bucket(design: GemmDesign, bucket: int) -> GemmDesign | None:
    """The design with the rows of another bucket, as the planner makes it from an override."""
    try:
        return replace(design, M=bucket, m=min(design.m, bucket // ROWS))
    except Refusal:
        return None


def gemm_seconds(g: GemmDesign) -> float:
    """A GEMM's predicted seconds without instruction stream: `npu.cost` on the stage's own counts."""
    mt, nt, kt = g.tiles
    operations, call = g.stage.vector_operations, rates.CALL_CYCLES.value
    step = operations("gemm_accumulate") + call
    cycles = mt * nt * (kt * step + operations("gemm_zero") + operations("gemm_store") + 2 * call)
    out_bytes = NUMPY_DTYPE[g.out].itemsize
    feed = max(2 * g.M * g.K * nt / ROWS, 2 * g.K * g.N * mt / COLUMNS, out_bytes * g.M * g.N / COLUMNS)
    element = 2 * max(g.m * g.k, g.k * g.n)
    fill = (2 * element + (1 + ROWS) * out_bytes * g.m * g.n) / rates.CHANNEL.value + step / rates.CLOCK.value
    return fill + max(cycles / rates.CLOCK.value, feed / rates.CHANNEL.value, g.ddr_bytes / rates.DDR.value)


def _attention(plan: Plan, lengths: Sequence[int], legal: Legal) -> Iterator[Alternative]:
    """bfp16 products, and blocks of 64 keys, in prefill attention."""
    bfp16 = _attention_gain(plan, lengths, mode="bfp16", legal=legal)
    if plan.choices.attention_mode == "bf16" and bfp16:
        yield Alternative("prefill attention in bfp16", Lever.TILES, replace(plan.choices, attention_mode="bfp16"), bfp16,
                          f"{MMUL_OPERATIONS['bf16']} instructions a product become {MMUL_OPERATIONS['bfp16']}")  # fmt: skip
    block = _attention_gain(plan, lengths, key_block=64, legal=legal)
    if plan.choices.key_block == 32 and block:
        yield Alternative("key block 64 in prefill attention", Lever.TILES, replace(plan.choices, key_block=64), block,
                          "half the kernel calls")  # fmt: skip


def _attention_gain(plan: Plan, lengths: Sequence[int], *, legal: Legal, **change: object) -> float:
    """Seconds saved by a change of the attention design; 0 where it is not possible or not legal."""
    saved = 0.0
    for bucket in plan.choices.prefill_buckets:
        design = _designs(plan, f"prefill_{bucket}", PrefillAttentionDesign)["attn"]
        assert isinstance(design, PrefillAttentionDesign)
        try:
            other = replace(design, **change)
        except Refusal:
            return 0.0
        if not legal(other):
            return 0.0
        saved += _share(plan, lengths, bucket) * (attention_seconds(design) - attention_seconds(other))
    return max(0.0, saved * len(plan.layers))


def attention_seconds(a: PrefillAttentionDesign) -> float:
    """Compute time of prefill attention: about half of all blocks lie under the causal mask."""
    calls = a.kv_heads * a.tokens / a.key_block
    operations = a.stage.vector_operations("prefill_block") / 2
    return calls * (operations + rates.CALL_CYCLES.value) / rates.CLOCK.value


def _prefill_buckets(plan: Plan, lengths: Sequence[int], seconds: Mapping[int, float]) -> Iterator[Alternative]:
    """One more bucket, where reference lengths now run in a larger one; its time is interpolated between those there are."""
    now = mean_seconds(lengths, seconds)
    largest = max(plan.choices.prefill_buckets)
    wanted = {-(-length // BUCKET_STEP) * BUCKET_STEP for length in lengths if length < largest}
    for bucket in sorted(wanted - set(plan.choices.prefill_buckets)):
        after = mean_seconds(lengths, {**seconds, bucket: interpolated(bucket, seconds)})
        choices = replace(plan.choices, prefill_buckets=tuple(sorted((*plan.choices.prefill_buckets, bucket))))
        yield Alternative(f"a prefill bucket of {bucket}", Lever.BUFFERS, choices, now - after,
                          f"prompts of up to {bucket} tokens run fewer padded rows")  # fmt: skip


def interpolated(bucket: int, seconds: Mapping[int, float]) -> float:
    """Seconds of a bucket that is not there, on a line through its neighbours; proportional where there is one side only."""
    below = max((b for b in seconds if b < bucket), default=None)
    above = min((b for b in seconds if b > bucket), default=None)
    if below is None or above is None:
        near = below if above is None else above
        assert near is not None
        return seconds[near] * bucket / near
    part = (bucket - below) / (above - below)
    return seconds[below] + part * (seconds[above] - seconds[below])


# ---- decode ----


def decode_alternatives(
    plan: Plan, lengths: Sequence[int], seconds: Mapping[int, float], legal: Legal
) -> tuple[Alternative, ...]:
    """Alternatives for decode; arguments as for prefill, with context lengths and decode buckets."""
    found = [*_rows(plan, legal), *_decode_buckets(plan, lengths, seconds)]
    return _ordered(found, mean_seconds(lengths, seconds))


def _rows(plan: Plan, legal: Legal) -> Iterator[Alternative]:
    """Rows of a weight element that save most, over all GEMVs of a step."""
    entry = f"decode_{min(plan.choices.decode_buckets)}"
    designs = _designs(plan, entry, GemvDesign)
    chosen, gain = {}, 0.0
    for kind in (*LINEAR_KINDS, "lm_head"):
        design = designs[kind]
        assert isinstance(design, GemvDesign)
        best = next((other for other in sorted(_row_choices(design), key=gemv_seconds) if legal(other)), design)
        saved = gemv_seconds(design) - gemv_seconds(best)
        if saved > WORTH_A_SHARE * gemv_seconds(design):
            chosen[kind] = best.rows
            gain += saved * (1 if kind == "lm_head" else len(plan.layers))
    if chosen:
        choices = replace(plan.choices, gemv_rows=plan.choices.gemv_rows | chosen)
        names = ", ".join(f"{kind} {rows}" for kind, rows in chosen.items())
        yield Alternative(
            f"rows of a weight element: {names}", Lever.BUFFERS, choices, gain, "the first element comes sooner"
        )


def _row_choices(design: GemvDesign) -> Iterator[GemvDesign]:
    """The design with every number of rows that its share divides into and one bank holds."""
    for rows in range(2, design.share + 1, 2):
        if design.share % rows == 0 and design.matrices * rows * design.part * 2 <= BANK_BYTES:
            yield replace(design, rows=rows)


def gemv_seconds(g: GemvDesign) -> float:
    """A GEMV's predicted seconds without instruction stream: `npu.cost` on the stage's own counts."""
    work = {"plain": "gemv_rows", "norm": "gemv_rows", "add": "gemv_add_rows", "swiglu": "gemv_swiglu_rows"}[g.kind]
    work = "gemv_part" if g.parts > 1 else work
    operations, call = g.stage.vector_operations, rates.CALL_CYCLES.value
    step = operations(work) + call
    cycles = g.parts * g.share / g.rows * step
    if g.parts > 1:
        cycles += operations(g.stage.whole) + call
    if g.kind in ("norm", "swiglu"):
        cycles += operations("gemv_normalise") + call
    element = 2 * g.matrices * g.rows * g.part
    out = g.share * NUMPY_DTYPE[g.out].itemsize
    moved = max(ROWS * element, 2 * g.header) + element + (1 + ROWS) * out
    fill = moved / rates.CHANNEL.value + step / rates.CLOCK.value
    feed = 2 * g.macs / COLUMNS / rates.CHANNEL.value
    return fill + max(cycles / rates.CLOCK.value, feed, g.ddr_bytes / rates.DDR.value)


def _decode_buckets(plan: Plan, lengths: Sequence[int], seconds: Mapping[int, float]) -> Iterator[Alternative]:
    """One more context bucket, where attention has a design for it and reference lengths would use it."""
    now, w = mean_seconds(lengths, seconds), plan.widths
    for bucket in sorted({-(-length // DECODE_STEP) * DECODE_STEP for length in lengths} - set(seconds)):
        try:
            DecodeAttentionDesign(bucket, plan.choices.context, w.heads, w.kv_heads, w.head_dim)
        except Refusal:
            continue
        after = mean_seconds(lengths, {**seconds, bucket: interpolated(bucket, seconds)})
        choices = replace(plan.choices, decode_buckets=tuple(sorted((*plan.choices.decode_buckets, bucket))))
        yield Alternative(f"a decode bucket of {bucket}", Lever.BUFFERS, choices, now - after,
                          f"contexts of up to {bucket} keys fetch fewer masked ones")  # fmt: skip
