# SPDX-License-Identifier: Apache-2.0
"""Descriptors live at once, as the compiler assigns them over all sequences and runs of a device."""

from dataclasses import replace

import pytest

from npu.legality import Severity
from npu.program import ArgumentSlice, AwaitTask, BufferDescriptor, DeviceProgram, FreeTask, MemRef, Run, TileId
from tests.npu.legality.programs import (
    ARGUMENT,
    CORE,
    MEMTILE,
    SHIM,
    design,
    feed,
    findings,
    into,
    limits,
    one_round,
    out_of,
    pool,
    program,
    ring,
    sequence,
    task,
    transfer,
)

LIVE = "BDs live at once in the sequence"


def bds(*instructions, **more):
    """Findings about descriptors alone."""
    device = replace(design(), sequences=(sequence(*instructions),), **more)
    return [limit for limit in limits(device) if "BD" in limit]


def tasks(count, bds_each=1, first=0):
    return [task(first + n, out_of(SHIM), *(transfer(4),) * bds_each) for n in range(count)]


def test_sixteen_descriptors_of_a_shim_are_live():
    assert bds(*tasks(16)) == []
    assert bds(*tasks(17)) == [LIVE]
    assert bds(*tasks(4, bds_each=4)) == []
    assert bds(*tasks(4, bds_each=4), *tasks(1, first=4)) == [LIVE]


def test_both_directions_and_channels_of_a_tile_share_them_and_tiles_do_not():
    other = [task(100 + n, out_of(TileId(1, 0)), transfer(4)) for n in range(16)]
    assert bds(*tasks(8), *[task(50 + n, into(SHIM, 1), transfer(4)) for n in range(8)], *other) == []
    assert bds(*tasks(8), *[task(50 + n, into(SHIM, 1), transfer(4)) for n in range(9)]) == [LIVE]


def test_a_free_or_an_await_gives_them_back_and_a_start_does_not():
    assert bds(*tasks(16), FreeTask(3), *tasks(1, first=16)) == []
    awaited = (*feed(0, into(SHIM), transfer(4)), AwaitTask(0))
    assert bds(*awaited, *tasks(16, first=1)) == []
    assert bds(*feed(0, into(SHIM), transfer(4)), *tasks(16, first=1)) == [LIVE]


def test_the_finding_says_who_holds_them():
    device = replace(design(), sequences=(sequence(*tasks(17)),))
    (finding,) = [v for v in findings(device) if v.limit == LIVE]
    assert (finding.asked, finding.available) == (17, 16)
    assert finding.detail == "16 held by MM2S tasks"
    assert "task 16" in finding.where and "free" in finding.change


# ---- over runs and sequences ------------------------------------------------------------------

ARENA = (MemRef((8192,), "i32"),)


def alternating(count, inner):
    """An entry that runs `inner` of two devices in turn, as a deployment does."""
    first, second = replace(inner, name="one"), replace(inner, name="two")
    slices = (ArgumentSlice(0, 0, ARGUMENT), ArgumentSlice(0, 16384, ARGUMENT))
    runs = [Run(("one", "two")[n % 2], "sequence", slices) for n in range(count)]
    return program(first, second, DeviceProgram("entry", "npu2", sequences=(sequence(*runs, arguments=ARENA),)))


def test_a_hundred_and_twenty_alternations_are_legal_when_inputs_are_freed():
    # facts/designs-that-lower.md: lowers with the frees; without, it ends after about a dozen.
    assert limits(alternating(120, design())) == []


def test_without_the_frees_the_list_ends_after_sixteen():
    leaking = design(sequences=(sequence(*one_round()[:-1]),))
    # Each run needs two descriptors and leaves one behind: the fifteenth run fills the shim, the sixteenth overflows.
    assert limits(alternating(15, leaking), Severity.ERROR) == []
    assert limits(alternating(16, leaking), Severity.ERROR) == [LIVE]
    (finding,) = findings(alternating(16, leaking), Severity.ERROR)
    assert finding.where.startswith("@entry @sequence") and "run 16" in finding.where


def test_a_tidy_run_needs_room_beside_what_the_entry_itself_holds():
    def entry_holding(count):
        run = Run("main", "sequence", (ArgumentSlice(0, 0, ARGUMENT), ArgumentSlice(0, 16384, ARGUMENT)))
        own = sequence(*tasks(count), run, run, name="decode", arguments=ARENA)
        return program(design(), DeviceProgram("entry", "npu2", sequences=(own,)))

    assert limits(entry_holding(14), Severity.ERROR) == []
    assert limits(entry_holding(15), Severity.ERROR) == [LIVE]


def test_what_one_sequence_leaves_is_missing_in_the_next_of_the_device():
    full, one = sequence(*tasks(16), name="prefill"), sequence(*tasks(1), name="decode")
    both = replace(design(), sequences=(full, one))
    assert [v.where for v in findings(both) if v.limit == LIVE] == ["@main @decode, task 0 on shim(0,0) MM2S 0"]
    tidy = sequence(*tasks(16), *(FreeTask(n) for n in range(16)), name="prefill")
    assert [v for v in findings(replace(design(), sequences=(tidy, one))) if v.limit == LIVE] == []


# ---- fixed ids --------------------------------------------------------------------------------

MEMCPY = "module:7: aiex.npu.dma_memcpy_nd"


def test_a_task_with_a_fixed_id_that_is_live_is_refused():
    one, two = task(0, out_of(SHIM), transfer(4, bd_id=7)), task(1, out_of(SHIM), transfer(4, bd_id=7))
    assert bds(one, two) == ["BD id in use"]
    assert bds(one, FreeTask(0), two) == []
    (finding,) = findings(replace(design(), sequences=(sequence(one, two),)))
    assert finding.severity is Severity.ERROR


def test_the_allocator_does_not_count_memcpys():
    fixed = [task(100 + n, out_of(SHIM), transfer(4, bd_id=n), where=MEMCPY) for n in range(4)]
    assert bds(*fixed, *tasks(16)) == []


def test_a_fixed_id_is_reused_after_an_output_was_awaited():
    """The pattern of dma_memcpy_nd and dma_wait in mlir-aie's own examples."""

    def memcpy_round(first):
        return (
            *feed(first, into(SHIM), transfer(256, bd_id=1), where=MEMCPY),
            *feed(first + 1, out_of(SHIM), transfer(256, bd_id=0), issue_token=False, where=MEMCPY),
            AwaitTask(first),
        )

    assert bds(*memcpy_round(0), *memcpy_round(2), *memcpy_round(4)) == []


def test_a_fixed_id_that_may_be_in_flight_is_a_warning():
    one, two = (feed(n, out_of(SHIM), transfer(4, bd_id=0), where=MEMCPY) for n in range(2))
    twice = (*one, *two)
    assert bds(*twice) == ["BD id in use"]
    device = replace(design(), sequences=(sequence(*twice),))
    assert [v.severity for v in findings(device) if v.limit == "BD id in use"] == [Severity.WARNING]


@pytest.mark.parametrize(("bd_id", "expected"), [(0, 1), (1, 1), (2, 0)])
def test_a_core_task_that_takes_a_descriptor_of_the_cores_own_ring_is_a_warning(bd_id, expected):
    buffers = pool("p", CORE, 2)
    bd = BufferDescriptor(4, 0, 256, buffer="p_buff_0", bd_id=bd_id)
    device = design(
        buffers=buffers,
        dmas=(ring(into(CORE, 0), buffers),),
        routes=(),
        locks=(),
        sequences=(sequence(task(0, out_of(CORE, 1), bd)),),
    )
    assert len(findings(device)) == expected


def test_sequences_allocate_the_lower_half_of_a_memtile():
    bd = BufferDescriptor(4, 0, 256, buffer="a_mem_buff_0")

    def holding(count):
        given = [task(n, out_of(MEMTILE, 2), bd) for n in range(count)]
        return limits(design(dmas=(), routes=(), sequences=(sequence(*given),)))

    assert holding(24) == []
    assert holding(25) == [LIVE]
