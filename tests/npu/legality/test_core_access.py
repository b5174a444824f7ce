# SPDX-License-Identifier: Apache-2.0
"""Which memory and locks cores and DMAs reach."""

from dataclasses import replace

import pytest

from npu.program import Buffer, Call, Core, FifoEnd, KernelFunction, Lock, LockUse, MemRef, TileId, UseLock
from tests.npu.legality.programs import (
    MEMTILE,
    SHIM,
    design,
    findings,
    into,
    limits,
    out_of,
    ring,
    sequence,
    task,
    transfer,
)

DATA = MemRef((16,), "i32")
HERE = TileId(3, 3)


def using(tile: TileId):
    return design(
        buffers=(Buffer("x", tile, DATA),),
        functions=(KernelFunction("k", (DATA,), "k.o"),),
        cores=(Core(HERE, (Call("k", ("x",)),)),),
        dmas=(),
        routes=(),
        locks=(),
        sequences=(),
    )


@pytest.mark.parametrize("tile", [HERE, TileId(3, 4), TileId(3, 2), TileId(2, 3)])
def test_a_core_uses_its_own_memory_and_its_north_south_and_west_neighbours(tile):
    assert limits(using(tile)) == []


@pytest.mark.parametrize("tile", [TileId(4, 3), TileId(3, 5), TileId(2, 2), TileId(3, 1)])
def test_a_core_does_not_reach_east_further_or_a_memtile(tile):
    assert limits(using(tile)) == ["memory that a core reaches"]


def test_the_finding_names_buffer_and_reach():
    (finding,) = findings(using(TileId(4, 3)))
    assert finding.asked == "x in core(4,3)"
    assert finding.available == "core(2,3), core(3,2), core(3,3), core(3,4)"


def test_pools_and_locks_of_a_fifo_end_count_too():
    end = FifoEnd("f", "Consume", ("x",), "l", None)
    base = replace(using(HERE), cores=(Core(HERE, (), ends=(end,)),))
    near, far = Lock("l", HERE, None, 0), Lock("l", TileId(4, 3), None, 0)
    assert limits(replace(base, locks=(near,))) == []
    assert limits(replace(base, locks=(far,))) == ["memory that a core reaches"]
    explicit = Core(HERE, (UseLock(LockUse("l", 1), acquire=True),))
    assert limits(replace(base, locks=(far,), cores=(explicit,))) == ["memory that a core reaches"]


def moved(channel, tile, **bd):
    buffers = (Buffer("x", tile, DATA),)
    return design(buffers=buffers, dmas=(ring(channel, buffers, **bd),), routes=(), locks=(), sequences=(), cores=())


def test_the_dma_of_a_core_moves_its_own_memory_alone():
    assert limits(moved(into(HERE), HERE)) == []
    assert limits(moved(into(HERE), TileId(3, 4))) == ["memory that a DMA reaches"]


@pytest.mark.parametrize(("channel", "legal"), [(0, True), (3, True), (4, False), (5, False)])
def test_a_memtile_moves_its_neighbours_memory_on_four_channels(channel, legal):
    here = TileId(3, 1)
    for neighbour in (TileId(2, 1), TileId(4, 1)):
        assert limits(moved(into(here, channel), neighbour)) == ([] if legal else ["memory that a DMA reaches"])
    assert limits(moved(into(here, channel), here)) == []
    assert limits(moved(into(here, channel), TileId(5, 1))) == ["memory that a DMA reaches"]


def test_arguments_are_moved_by_shims():
    assert limits(design(sequences=(sequence(task(0, out_of(SHIM), transfer())),))) == []
    on_memtile = design(sequences=(sequence(task(0, out_of(MEMTILE, 2), transfer())),))
    assert "memory that a DMA reaches" in limits(on_memtile)
