# SPDX-License-Identifier: Apache-2.0
"""A plan: every operator once, in order, on slices that never overlap; buckets that leave no hole; one copy of a weight."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from kernels.designs.gemm import GemmDesign
from kernels.designs.gemv import GemvDesign
from planner.graph import head_calls, layer_calls
from planner.memory import ALIGNMENT, Arenas, Slice
from planner.packing import WeightPacker
from planner.plan import Choices, Plan, make_plan
from reference.oracle.config import load_config
from reference.oracle.tensors import open_weights
from refusal import Refusal
from tests.faults.deployed import fixture_directory

CHOICES = Choices(prefill_buckets=(64, 512), decode_buckets=(256, 1024), context=1024, score_bucket=512)


def planned(choices: Choices = CHOICES) -> Plan:
    # Tile legality is npu's matter; any tiling serves here.
    return make_plan(load_config(fixture_directory()), choices, legal=lambda design: True)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned()


# ---- operators ----


@pytest.mark.parametrize("bucket", CHOICES.prefill_buckets)
def test_prefill_carries_out_every_operator_of_every_layer_once_and_in_order(plan: Plan, bucket: int) -> None:
    done = [name for dispatch in plan.entry(f"prefill_{bucket}").dispatches for name in dispatch.covers]
    assert done == [call.name for call in layer_calls(range(3))]


@pytest.mark.parametrize("bucket", CHOICES.decode_buckets)
def test_decode_carries_out_every_operator_of_layers_and_head_once_and_in_order(plan: Plan, bucket: int) -> None:
    done = [name for dispatch in plan.entry(f"decode_{bucket}").dispatches for name in dispatch.covers]
    assert done == [call.name for call in [*layer_calls(range(3)), *head_calls("")]]


def test_scoring_carries_out_the_head(plan: Plan) -> None:
    assert [d.covers for d in plan.entry("score_512").dispatches] == [("final_norm",), ("lm_head",)]


def test_every_operand_has_as_many_elements_and_the_type_that_its_design_asks_for(plan: Plan) -> None:
    for entry in plan.entries:
        for dispatch in entry.dispatches:
            assert [part.type for part in dispatch.operands] == [o.type for o in dispatch.design.operands]


def test_every_operand_is_written_before_it_is_read(plan: Plan) -> None:
    """By an earlier dispatch of the entry, or by the host: input, params, weights, cache."""
    packed = {part.slice for part in plan.weights} | set(plan.cache)
    for entry in plan.entries:
        written = [*packed, *(entry.values[name] for name in ("input", "params") if name in entry.values)]
        for dispatch in entry.dispatches:
            *read, output = dispatch.operands
            for part in read:
                assert any(_inside(part, whole) for whole in written), (entry.name, dispatch.covers, part)
            written.append(output)


def test_a_dispatch_never_writes_what_it_reads(plan: Plan) -> None:
    for entry in plan.entries:
        for dispatch in entry.dispatches:
            *read, output = dispatch.operands
            assert not any(_overlap(part, output) for part in read), (entry.name, dispatch.covers)


# ---- memory ----


def _inside(part: Slice, whole: Slice) -> bool:
    return (
        part.arena == whole.arena
        and whole.offset <= part.offset
        and part.offset + part.elements <= whole.offset + whole.elements
    )


def _overlap(one: Slice, two: Slice) -> bool:
    return one.arena == two.arena and max(one.offset, two.offset) < min(
        one.offset + one.elements, two.offset + two.elements
    )


def test_weights_and_caches_never_overlap_and_lie_within_their_arenas(plan: Plan) -> None:
    parts = [item.slice for item in plan.weights] + list(plan.cache)
    sizes = dict(zip(plan.arenas.sizes, plan.arenas.types(), strict=True))
    for index, part in enumerate(parts):
        assert part.offset % ALIGNMENT == 0
        assert part.offset + part.elements <= sizes[part.arena].elements
        assert not any(_overlap(part, other) for other in parts[:index]), part


def test_outputs_of_one_entry_never_overlap(plan: Plan) -> None:
    """What a gate reads after the entry is what its operator wrote, not what a later one put there."""
    for entry in plan.entries:
        outputs = [dispatch.operands[-1] for dispatch in entry.dispatches]
        for index, part in enumerate(outputs):
            assert not any(_overlap(part, other) for other in outputs[:index]), entry.name


def test_slices_are_handed_out_aligned_and_apart() -> None:
    arenas = Arenas()
    taken = [arenas.take("kv", elements) for elements in (1, 64, 65, 7)]
    assert [part.offset for part in taken] == [0, 64, 128, 256]
    assert arenas.sizes["kv"] == 263


def test_a_part_that_leaves_its_slice_is_refused() -> None:
    whole = Slice("kv", 128, 64)
    assert whole.part(32, 32) == Slice("kv", 160, 32)
    with pytest.raises(ValueError, match="part 32\\+33"):
        whole.part(32, 33)


# ---- weights ----


def test_buckets_share_one_copy_of_a_weight(plan: Plan) -> None:
    copies = Counter((item.logical, item.layout) for item in plan.weights)
    assert set(copies.values()) == {1}
    for kind in ("qkv", "o_proj", "gate_up", "down"):
        assert copies[f"layers.0.{kind}", "gemm"] == copies[f"layers.0.{kind}", "gemv"] == 1


def test_every_layer_has_its_own_weights(plan: Plan) -> None:
    kinds = Counter(item.logical.split(".")[1] for item in plan.weights if item.logical.startswith("layers."))
    assert kinds == {"0": 10, "1": 10, "2": 10}


@pytest.mark.parametrize("logical", ["layers.1.qkv", "layers.2.down", "lm_head"])
def test_a_packed_weight_is_unpacked_to_the_checkpoint(plan: Plan, logical: str) -> None:
    """By the layouts that the operands name, read the other way round."""
    packer = WeightPacker(plan.config, open_weights(plan.config), plan.widths)
    weight = packer.matrix(logical)
    for item in plan.weights:
        if item.logical != logical:
            continue
        packed = packer.pack(item)
        if isinstance(item.design, GemmDesign):
            g = item.design
            shape = (8, g.N // 8 // g.n, g.K // g.k, g.k // 8, g.n // 8, 8, 8)
            # [column][round][K step][k/8][n/8][8 k][8 n] -> [round, column, n/8, 8 n][K step, k/8, 8 k]
            flat = packed.reshape(shape).transpose(1, 0, 4, 6, 2, 3, 5).reshape(g.N, g.K)
        else:
            assert isinstance(item.design, GemvDesign)
            g = item.design
            # [column][element][core row][R][K] -> [column, core row, element, R][K]
            elements = g.N // 32 // g.rows
            flat = packed.reshape(8, elements, 4, g.rows, g.K).transpose(0, 2, 1, 3, 4).reshape(g.N, g.K)
        assert np.array_equal(flat[: weight.shape[0], : weight.shape[1]], weight)
        assert not flat[weight.shape[0] :].astype(np.float32).any()


# ---- choices ----


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decode_buckets": (256,)}, "decode buckets"),
        ({"decode_buckets": ()}, "decode buckets"),
        ({"decode_buckets": (256, 2048)}, "decode buckets"),
        ({"prefill_buckets": ()}, "prefill buckets"),
        ({"prefill_buckets": (64, 2048)}, "prefill buckets"),
        ({"score_bucket": 1024}, "score bucket"),
        ({"layers": (3,)}, "layers"),
        ({"layers": ()}, "layers"),
        ({"decode_buckets": (128, 1024)}, "context bucket 128"),
    ],
)
def test_choices_that_leave_a_hole_or_reach_too_far_are_refused(change: dict, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        planned(replace(CHOICES, **change))


def test_a_partial_deployment_plans_the_layers_it_names() -> None:
    partial = planned(replace(CHOICES, layers=(0, 2)))
    assert partial.layers == (0, 2)
    assert len(partial.cache) == 2
    assert {item.logical.split(".")[1] for item in partial.weights if item.logical.startswith("layers.")} == {"0", "2"}


def test_no_legal_tiling_is_a_refusal() -> None:
    with pytest.raises(Refusal, match=r"none of \d+ tilings is legal"):
        make_plan(load_config(fixture_directory()), CHOICES, legal=lambda design: False)
