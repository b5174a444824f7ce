# SPDX-License-Identifier: Apache-2.0
"""Alternatives differ in one respect, are legal, make a plan, and come most promising first."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from judge.fixture import write_fixture
from kernels.designs.gemm import GemmDesign
from kernels.designs.gemv import GemvDesign
from npu import cost_rates as rates
from planner import alternatives
from planner.alternatives import (
    Alternative,
    Lever,
    bucket_for,
    decode_alternatives,
    gemm_seconds,
    gemv_seconds,
    interpolated,
    mean_seconds,
    prefill_alternatives,
)
from planner.plan import Choices, Plan, make_plan
from reference.oracle.config import ModelConfig, load_config

CHOICES = Choices(prefill_buckets=(64, 512), decode_buckets=(256, 1024), context=1024, score_bucket=None)
PREFILL_SECONDS, DECODE_SECONDS = {64: 1e-3, 512: 8e-3}, {256: 1e-4, 1024: 4e-4}
LENGTHS = (64, 128, 256, 512)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return load_config(write_fixture(tmp_path_factory.mktemp("fixture")))


def everything(_: object) -> bool:
    return True


def plan_of(config: ModelConfig, **changes: object) -> Plan:
    return make_plan(config, replace(CHOICES, **changes), legal=everything)


def changed(before: Choices, after: Choices) -> set[str]:
    return {f.name for f in fields(Choices) if getattr(before, f.name) != getattr(after, f.name)}


def named(found: tuple[Alternative, ...], word: str) -> Alternative:
    return next(alternative for alternative in found if word in alternative.name)


def test_the_objective_is_the_mean_over_lengths_each_in_its_bucket() -> None:
    assert [bucket_for(length, (512, 64)) for length in (1, 64, 65, 512, 600)] == [64, 64, 512, 512, 512]
    assert mean_seconds((64, 65), {64: 1.0, 512: 3.0}) == 2.0


def test_each_alternative_changes_one_thing_and_makes_a_plan(config: ModelConfig) -> None:
    plan = plan_of(config)
    prefill = prefill_alternatives(plan, LENGTHS, PREFILL_SECONDS, everything)
    decode = decode_alternatives(plan, (128, 1024), DECODE_SECONDS, everything)
    assert prefill
    assert decode
    for alternative in (*prefill, *decode):
        assert len(changed(CHOICES, alternative.choices)) == 1, alternative.name
        made = make_plan(config, alternative.choices, legal=everything)
        assert {d.name for d in made.designs} != {d.name for d in plan.designs}, alternative.name


def test_they_come_most_promising_first_and_none_without_a_gain(config: ModelConfig) -> None:
    found = prefill_alternatives(plan_of(config), LENGTHS, PREFILL_SECONDS, everything)
    gains = [alternative.gain for alternative in found]
    assert gains == sorted(gains, reverse=True)
    assert min(gains) > 0.01 * mean_seconds(LENGTHS, PREFILL_SECONDS)


def test_nothing_illegal_is_proposed(config: ModelConfig) -> None:
    plan = plan_of(config)
    there = {design.name for design in plan.designs}

    def legal(design: object) -> bool:
        return design.name in there  # type: ignore[attr-defined]

    for found in (
        prefill_alternatives(plan, LENGTHS, PREFILL_SECONDS, legal),
        decode_alternatives(plan, (128, 1024), DECODE_SECONDS, legal),
    ):
        assert all("bucket" in alternative.name for alternative in found), [a.name for a in found]


def test_a_bucket_is_proposed_where_lengths_fall_between_and_belongs_to_buffers(config: ModelConfig) -> None:
    found = prefill_alternatives(plan_of(config), LENGTHS, PREFILL_SECONDS, everything)
    bucket = named(found, "bucket of 256")
    assert bucket.choices.prefill_buckets == (64, 256, 512)
    assert bucket.lever.skill == "optimize-buffers"
    # two of four lengths, 128 and 256, leave the bucket of 512 for one on the line between 64 and 512
    assert bucket.gain == pytest.approx((8e-3 - interpolated(256, PREFILL_SECONDS)) / 2)
    assert not [a for a in prefill_alternatives(plan_of(config), (64, 512), PREFILL_SECONDS, everything)
                if "bucket" in a.name]  # fmt: skip


def test_a_decode_bucket_is_proposed_only_where_attention_has_a_design(config: ModelConfig) -> None:
    plan = plan_of(config, context=2048, decode_buckets=(256, 2048))
    found = decode_alternatives(plan, (300, 1100, 1500), {256: 1e-4, 2048: 8e-4}, everything)
    # 300 keys are three groups of 128, one a column; nine and twelve groups do not share eight columns evenly
    assert [a.choices.decode_buckets for a in found if "bucket" in a.name] == [(256, 384, 2048)]


def test_interpolation_is_exact_at_its_ends() -> None:
    assert interpolated(288, {64: 1.0, 512: 3.0}) == 2.0
    assert interpolated(128, {512: 4.0}) == 1.0


def test_bad_tiles_are_found_and_replaced_by_better_ones(config: ModelConfig) -> None:
    plan = plan_of(config, tiles={"gate_up": (16, 32, 8)})
    found = prefill_alternatives(plan, LENGTHS, {64: 1e-5, 512: 5e-5}, everything)
    tiles = named(found, "tiles")
    assert tiles.lever is Lever.TILES
    assert tiles.choices.tiles["gate_up"] != (16, 32, 8)
    after = make_plan(config, tiles.choices, legal=everything)

    def seconds(p: Plan) -> float:
        entry = p.entry("prefill_512")
        design = next(d.design for d in entry.dispatches if d.covers[0].endswith("gate_up"))
        assert isinstance(design, GemmDesign)
        return gemm_seconds(design)

    assert seconds(after) < seconds(plan)


def test_bad_rows_are_found_and_the_choice_reaches_the_plan(config: ModelConfig) -> None:
    plan = plan_of(config)
    rows = named(decode_alternatives(plan, (128,), {256: 1e-6, 1024: 1e-6}, everything), "rows of a weight element")
    after = make_plan(config, rows.choices, legal=everything)
    for kind, count in rows.choices.gemv_rows.items():
        designs = {d.covers[-1].rsplit(".", 1)[-1]: d.design for d in after.entry("decode_256").dispatches}
        place = {"o_proj": "residual1", "gate_up": "act", "down": "residual2"}.get(kind, kind)
        assert designs[place].rows == count  # type: ignore[attr-defined]


def test_closed_forms_follow_the_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm, gemv = GemmDesign(512, 576, 3072, 32, 96, 96), GemvDesign(1536, 576, 6, "plain")
    before = gemm_seconds(gemm), gemv_seconds(gemv)
    monkeypatch.setattr(rates, "DDR", replace(rates.DDR, value=rates.DDR.value / 20))
    assert gemm_seconds(gemm) > 5 * before[0]
    assert gemv_seconds(gemv) > 5 * before[1]


def test_attention_in_bfp16_is_proposed_once(config: ModelConfig) -> None:
    seconds = {64: 1e-5, 512: 1e-4}
    assert named(prefill_alternatives(plan_of(config), LENGTHS, seconds, everything), "attention in bfp16")
    again = prefill_alternatives(plan_of(config, attention_mode="bfp16"), LENGTHS, seconds, everything)
    assert not [a for a in again if "bfp16" in a.name]


def test_levers_name_the_three_skills() -> None:
    skills = {lever.skill for lever in Lever}
    folders = {path.parent.name for path in Path("skills").glob("optimize-*/SKILL.md")}
    assert skills == folders == {"optimize-tiles", "optimize-fusion", "optimize-buffers"}
    assert alternatives.WORTH_A_SHARE > 0
