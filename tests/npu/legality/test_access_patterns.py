# SPDX-License-Identifier: Apache-2.0
"""Wraps, steps, iterations, granularity, padding and bounds of descriptors, per tile kind."""

import pytest

from npu.program import BufferDescriptor, Dim, MemRef
from tests.npu.legality.programs import (
    ARGUMENT,
    CORE,
    MEMTILE,
    design,
    findings,
    into,
    limits,
    out_of,
    pool,
    ring,
    sequence,
    shim_dims,
    task,
    transfer,
    with_task,
)

HUGE = MemRef((1 << 29,), "i32")  # 2 GiB: no bound gets in the way
HALF = MemRef((1 << 29,), "bf16")
ROOMY = MemRef((60000,), "i32")
MEMTILE_OUT = out_of(MEMTILE, 0)


def on_shim(*dims, element_bytes=4, **bd):
    reference = HALF if element_bytes == 2 else HUGE
    repeat = bd["iteration"].size - 1 if "iteration" in bd else 0
    return limits(
        with_task(
            shim_dims(*dims, element_bytes=element_bytes, **bd), arguments=(reference,), repeat_count=min(repeat, 255)
        )
    )


def in_array(channel, *dims, element=ROOMY, **bd):
    length = 1
    for size, _ in dims:
        length *= size
    buffers = pool("p", channel.tile, 1, element)
    given = ring(channel, buffers, **{"dims": tuple(Dim(*d) for d in dims), "length": length, **bd})
    device = design(buffers=buffers, dmas=(given,), routes=(), sequences=(), locks=(), cores=())
    ours = {"data memory", "bank-aware placement"}  # the test's buffers are larger than any memory
    return [limit for limit in limits(device) if limit not in ours]


# ---- the shim ---------------------------------------------------------------------------------


def test_shim_wraps_are_1023():
    assert on_shim((2, 4096), (1023, 1)) == []
    assert on_shim((2, 4096), (1024, 1)) == ["size of dimension 0"]
    assert on_shim((2, 1 << 18), (1023, 64), (8, 1)) == []
    assert on_shim((2, 1 << 18), (1024, 64), (8, 1)) == ["size of dimension 1"]


def test_the_innermost_wrap_is_counted_in_words():
    assert on_shim((2, 4096), (2046, 1), element_bytes=2) == []
    assert on_shim((2, 4096), (2048, 1), element_bytes=2) == ["size of dimension 0"]
    assert on_shim((2, 1 << 16), (1023, 64), (16, 1), element_bytes=2) == []  # dimension 1 is counted in steps


def test_the_third_dimension_of_a_shim_is_implied_by_the_length():
    assert on_shim((4000, 4096), (2, 64), (8, 1)) == []


def test_a_linear_transfer_may_be_longer_than_any_wrap():
    assert on_shim((1 << 20, 1)) == []
    assert on_shim((1, 0), (1, 0), (1 << 20, 1)) == []
    assert on_shim((1, 7), (1, 7), (1 << 20, 1)) == ["size of dimension 0"]  # the compiler does not see it as linear
    assert limits(with_task(transfer(1 << 20), arguments=(HUGE,))) == []


def test_shim_strides_reach_two_to_the_twenty_words():
    assert on_shim((2, 1 << 20), (8, 1)) == []
    assert on_shim((2, (1 << 20) + 1), (8, 1)) == ["stride of dimension 1"]
    assert on_shim((2, 1 << 21), (8, 1), element_bytes=2) == []
    assert on_shim((2, (1 << 21) + 2), (8, 1), element_bytes=2) == ["stride of dimension 1"]


def test_the_row_pitch_of_an_lm_head_in_fp32_is_within_the_step_and_a_panel_of_a_wide_one_is_not():
    assert on_shim((64, 49152), (64, 1)) == []
    assert on_shim((64, 49152 * 64), (64, 1)) == ["stride of dimension 1"]


def test_a_stride_of_a_single_step_is_not_encoded():
    assert on_shim((1, (1 << 20) + 1), (8, 1)) == []


def test_stride_zero_is_for_the_iteration_alone():
    assert on_shim((8, 1), iteration=Dim(4, 0)) == []
    assert on_shim((4, 0), (8, 1)) == ["stride of dimension 1"]
    (finding,) = findings(with_task(shim_dims((4, 0), (8, 1))))
    assert "iteration" in finding.change


def test_a_shim_takes_three_data_dimensions_and_the_iteration():
    assert on_shim((2, 512), (2, 64), (8, 1), iteration=Dim(4, 4096)) == []
    assert on_shim((2, 4096), (2, 512), (2, 64), (8, 1)) == ["dimensions"]


@pytest.mark.parametrize(("steps", "stride", "legal"), [(64, 8, True), (65, 8, False), (65, 0, True), (66, 0, False)])
def test_an_iteration_has_64_steps_and_a_pure_repeat_one_more(steps, stride, legal):
    expected = [] if legal else ["size of the iteration dimension"]
    assert on_shim((8, 1), iteration=Dim(steps, stride)) == expected


def test_the_iteration_stride_has_the_step_field_too():
    assert on_shim((8, 1), iteration=Dim(2, 1 << 20)) == []
    assert on_shim((8, 1), iteration=Dim(2, (1 << 20) + 1)) == ["stride of the iteration dimension"]


def test_everything_is_a_multiple_of_four_bytes():
    assert limits(with_task(transfer(2, element_bytes=2, offset=2), arguments=(HALF,))) == []
    assert limits(with_task(transfer(2, element_bytes=2, offset=1), arguments=(HALF,))) == ["4-byte granularity"]
    assert limits(with_task(transfer(3, element_bytes=2), arguments=(HALF,))) == ["4-byte granularity"]
    assert on_shim((2, 65), (8, 1), element_bytes=2) == ["4-byte granularity"]  # an odd row pitch
    assert on_shim((2, 66), (8, 1), element_bytes=2) == []
    assert on_shim((8, 1), element_bytes=2, iteration=Dim(4, 3)) == ["4-byte granularity"]
    assert on_shim((2, 64), (1, 1), element_bytes=2) == ["4-byte granularity"]  # one bf16 a row


def test_half_words_cannot_be_picked_apart():
    assert on_shim((4, 64), (8, 1), element_bytes=2) == []
    assert on_shim((4, 64), (8, 2), element_bytes=2) == ["innermost stride of elements that are not 32-bit"]
    assert on_shim((4, 64), (8, 2)) == []  # 32-bit elements may be strided


def test_the_length_of_a_task_is_the_product_of_its_dims():
    assert limits(with_task(transfer(16, dims=(Dim(2, 64), Dim(8, 1))))) == []
    assert limits(with_task(transfer(32, dims=(Dim(2, 64), Dim(8, 1))))) == ["dims that multiply to the length"]


def test_an_empty_transfer_is_refused():
    assert limits(with_task(transfer(0))) == ["length"]


# ---- cores and memtiles -----------------------------------------------------------------------


def test_core_wraps_are_255():
    assert in_array(into(CORE), (2, 300), (255, 1)) == []
    assert in_array(into(CORE), (2, 300), (256, 1)) == ["size of dimension 0"]
    assert in_array(into(CORE), (255, 64), (8, 1)) == []
    assert in_array(into(CORE), (256, 64), (8, 1)) == ["size of dimension 1"]
    assert in_array(into(CORE), (2, 600), (510, 1), element=MemRef((60000,), "bf16")) == []  # 255 words


def test_core_steps_are_two_to_the_thirteen_words():
    assert in_array(into(CORE), (2, 8192), (8, 1)) == []
    assert in_array(into(CORE), (2, 8193), (8, 1)) == ["stride of dimension 1"]


def test_core_length_has_fourteen_bits():
    assert in_array(into(CORE), length=16383) == []
    assert in_array(into(CORE), length=16384) == ["length of one transfer"]


def test_memtile_sizes_are_limited_by_the_verifier_before_the_field():
    assert in_array(into(MEMTILE), (2, 1000), (512, 1)) == []
    assert in_array(into(MEMTILE), (2, 1000), (513, 1)) == ["size of dimension 0 in aie.mem or aie.memtile_dma"]
    assert in_array(into(MEMTILE), (2, 2000), (1024, 1)) == ["size of dimension 0"]


def test_memtile_steps_and_length_have_seventeen_bits():
    big = MemRef((300000,), "i32")
    assert in_array(into(MEMTILE), (2, 1 << 17), (8, 1), element=big) == []
    assert in_array(into(MEMTILE), (2, (1 << 17) + 1), (8, 1), element=big) == ["stride of dimension 1"]
    assert in_array(into(MEMTILE), length=131071, element=big) == []
    assert in_array(into(MEMTILE), length=131072, element=big) == ["length of one transfer"]


def test_dimensions_in_the_array():
    four = ((2, 4096), (2, 512), (2, 64), (8, 1))
    assert in_array(into(MEMTILE), *four) == []
    assert in_array(into(CORE), *four) == ["dimensions"]
    assert in_array(into(MEMTILE), (2, 8192), *four) == ["dimensions"]


def test_no_zero_stride_in_the_array_at_all():
    assert in_array(into(CORE), (4, 0), (8, 1)) == ["stride of dimension 1"]


def test_gemm_tilings_of_the_published_design_are_legal():
    # mlir-aie's whole-array GEMM re-tiles A and B in the memtile with four dimensions, C on the way out.
    bf16 = MemRef((64 * 64,), "bf16")
    assert in_array(out_of(MEMTILE), (8, 512), (8, 8), (8, 64), (8, 1), element=bf16) == []
    assert in_array(out_of(MEMTILE), (8, 512), (8, 8), (8, 64), (8, 1), element=MemRef((64 * 64,), "f32")) == []


@pytest.mark.parametrize(("dimension", "most"), [(0, 63), (1, 31), (2, 15)])
def test_padding_per_dimension(dimension, most):
    dims = ((2, 64), (2, 8), (8, 1))

    def padded(amount, channel=MEMTILE_OUT):
        padding = [(0, 0)] * 3
        padding[2 - dimension] = (amount, 0)
        return in_array(channel, *dims, padding=tuple(padding), length=4096)

    assert padded(most) == []
    assert padded(most + 1) == [f"padding of dimension {dimension}"]
    assert padded(1, into(MEMTILE, 0)) == ["zero padding"]
    assert padded(1, out_of(CORE, 0)) == ["zero padding"]


def test_padding_of_half_words_is_refused():
    bf16 = MemRef((4096,), "bf16")
    pad = {"element": bf16, "length": 64}
    assert in_array(out_of(MEMTILE), (4, 16), (8, 1), padding=((0, 0), (2, 0)), **pad) == []
    assert in_array(out_of(MEMTILE), (4, 16), (8, 1), padding=((0, 0), (1, 0)), **pad) == ["padding of dimension 0"]


def test_a_descriptor_stays_in_its_buffer():
    small = MemRef((64,), "i32")
    assert in_array(into(CORE), length=32, offset=32, element=small) == []
    assert in_array(into(CORE), length=32, offset=33, element=small) == ["bounds of the buffer"]
    assert in_array(into(CORE), (4, 16), (16, 1), element=small) == []
    assert in_array(into(CORE), (4, 17), (16, 1), element=small) == ["bounds of the buffer"]


def test_the_address_counts_for_the_granularity():
    buffers = tuple(type(b)(b.name, b.tile, b.type, address=1026) for b in pool("p", CORE, 1, MemRef((64,), "bf16")))
    device = design(buffers=buffers, dmas=(ring(into(CORE), buffers),), routes=(), sequences=(), locks=())
    assert "4-byte granularity" in limits(device)


def test_the_shim_of_the_smallest_design_moves_whole_arguments():
    assert limits(with_task(transfer(4096), arguments=(ARGUMENT,))) == []


# ---- tasks on cores and memtiles --------------------------------------------------------------


def tile_task(tile, *dims, **bd):
    """Limits of a task that a sequence configures on the tile itself."""
    length = 1
    for size, _ in dims:
        length *= size
    big = MemRef((1 << 22,), "i32")
    given = BufferDescriptor(4, 0, length, buffer="p_buff_0", dims=tuple(Dim(*d) for d in dims), **bd)
    repeat = given.iteration.size - 1
    steps = sequence(task(0, out_of(tile, 0), given, repeat_count=repeat))
    found = limits(design(buffers=pool("p", tile, 1, big), dmas=(), routes=(), locks=(), cores=(), sequences=(steps,)))
    return [limit for limit in found if limit != "data memory"]


def test_a_memtile_task_has_three_wraps_and_a_core_task_two():
    assert tile_task(MEMTILE, (1023, 64), (2, 8), (8, 1)) == []
    assert tile_task(MEMTILE, (1024, 64), (2, 8), (8, 1)) == ["size of dimension 2"]
    assert tile_task(MEMTILE, (2, 2000), (1023, 1)) == []
    assert tile_task(MEMTILE, (2, 2000), (1024, 1)) == ["size of dimension 0"]
    assert tile_task(CORE, (300, 64), (255, 4), (4, 1)) == ["length of one transfer"]
    assert tile_task(CORE, (300, 64), (2, 8), (8, 1)) == []  # the third dimension is implied by the length
    assert tile_task(CORE, (2, 2048), (256, 8), (8, 1)) == ["size of dimension 1"]


@pytest.mark.parametrize("tile", [CORE, MEMTILE])
def test_tasks_on_tiles_iterate_64_steps_too(tile):
    assert tile_task(tile, (8, 1), iteration=Dim(64, 8)) == []
    assert tile_task(tile, (8, 1), iteration=Dim(65, 8)) == ["size of the iteration dimension"]


def test_an_innermost_size_below_a_word_is_legal_in_the_array_where_elements_are_in_a_row():
    halves = MemRef((512,), "bf16")
    in_a_row, apart = ((8, 8), (8, 1), (1, 1)), ((8, 16), (8, 2), (1, 1))
    assert in_array(MEMTILE_OUT, *in_a_row, element=halves, element_bytes=2) == []
    assert "4-byte granularity" in in_array(MEMTILE_OUT, *apart, element=halves, element_bytes=2)
