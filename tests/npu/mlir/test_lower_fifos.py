# SPDX-License-Identifier: Apache-2.0
"""The object-FIFO lowering, case by case: expected values are worked out by hand from the rules of mlir-aie 2026-03."""

from __future__ import annotations

import pytest

from npu.array import array_of
from npu.mlir.fifo_spec import AcquireSpec, FifoSpec, LinkSpec
from npu.mlir.lower_fifos import lower_fifos
from npu.program import Channel, Dim, Direction, FifoEnd, LockUse, MemRef, TileId
from refusal import Refusal

NPU2 = array_of("npu2")
SHIM, MEM, CORE, NORTH, EAST, FAR = (TileId(*p) for p in ((0, 0), (0, 1), (0, 2), (0, 3), (1, 2), (3, 4)))
E16 = MemRef((16,), "i32")
E8 = MemRef((8,), "i32")
E32 = MemRef((32,), "i32")


def fifo(name, producer, *consumers, depths=2, element=E16, **rest):
    return FifoSpec(name, producer, consumers, depths, element, **rest)


def s2mm(tile, index=0):
    return Channel(tile, Direction.S2MM, index)


def mm2s(tile, index=0):
    return Channel(tile, Direction.MM2S, index)


def lowered(*fifos, links=(), acquires=()):
    return lower_fifos(fifos, links, [AcquireSpec(*a) for a in acquires], NPU2)


def pools(result):
    """(name, tile) of every buffer, sorted."""
    return sorted((b.name, b.tile) for b in result.buffers)


def locks(result, tile):
    return {lock.name: (lock.id, lock.init) for lock in result.locks if lock.tile == tile}


def bds(result, channel):
    """(buffer, offset, length, acquire, release, next) of a channel's ring."""
    (dma,) = [dma for dma in result.dmas if dma.channel == channel]
    return [(bd.buffer, bd.offset, bd.length, bd.acquire, bd.release, bd.next) for bd in dma.bds]


def test_shim_to_core_is_a_ring_in_the_core_and_nothing_in_the_shim():
    result = lowered(fifo("f", SHIM, CORE), acquires=[(CORE, "f", "Consume", 1)])
    assert pools(result) == [("f_cons_buff_0", CORE), ("f_cons_buff_1", CORE)]
    assert locks(result, CORE) == {"f_cons_prod_lock_0": (0, 2), "f_cons_cons_lock_0": (1, 0)}
    free, full = LockUse("f_cons_prod_lock_0", 1), LockUse("f_cons_cons_lock_0", 1)
    assert bds(result, s2mm(CORE)) == [
        ("f_cons_buff_0", 0, 16, free, full, 1),
        ("f_cons_buff_1", 0, 16, free, full, 0),
    ]
    assert [(r.source, r.dests) for r in result.routes] == [(mm2s(SHIM), (s2mm(CORE),))]
    assert result.shims == {"f": mm2s(SHIM)}
    assert result.ends[(CORE, "f", "Consume")] == FifoEnd(
        "f", "Consume", ("f_cons_buff_0", "f_cons_buff_1"), "f_cons_cons_lock_0", "f_cons_prod_lock_0"
    )


def test_a_core_that_produces_for_the_shim_reads_its_filled_elements():
    result = lowered(fifo("f", CORE, SHIM, depths=(1, 2)))
    assert pools(result) == [("f_buff_0", CORE)]
    assert bds(result, mm2s(CORE)) == [("f_buff_0", 0, 16, LockUse("f_cons_lock_0", 1), LockUse("f_prod_lock_0", 1), 0)]
    assert result.shims == {"f": s2mm(SHIM)}
    assert result.ends[(CORE, "f", "Produce")].acquire_lock == "f_prod_lock_0"


@pytest.mark.parametrize(
    ("written", "acquired", "pool"),
    [(4, 1, 2), (4, 2, 3), (1, 1, 1), (4, 0, 4), ((1, 3), 1, 3)],
    ids=["scalar shrinks", "one more than acquired", "both one", "nobody acquires", "explicit stays"],
)
def test_pool_size_of_a_core(written, acquired, pool):
    acquires = [(CORE, "f", "Consume", acquired)] if acquired else []
    result = lowered(fifo("f", SHIM, CORE, depths=written), acquires=acquires)
    assert len(result.buffers) == pool


def test_an_explicit_depth_gives_way_where_the_consumer_has_a_layout():
    # The compiler asks the core again for a half that needs DMAs by itself.
    dims = ((Dim(4, 1), Dim(4, 4)),)
    result = lowered(fifo("f", MEM, CORE, depths=(2, 4), from_stream=dims), acquires=[(CORE, "f", "Consume", 1)])
    assert sum(b.tile == CORE for b in result.buffers) == 2


def test_neighbouring_cores_share_one_pool_without_dma():
    result = lowered(fifo("f", CORE, NORTH, depths=3), acquires=[(CORE, "f", "Produce", 1)])
    assert pools(result) == [(f"f_buff_{i}", CORE) for i in range(3)]
    assert not result.dmas and not result.routes
    produce, consume = result.ends[(CORE, "f", "Produce")], result.ends[(NORTH, "f", "Consume")]
    assert produce.pool == consume.pool
    assert (produce.acquire_lock, produce.release_lock) == (consume.release_lock, consume.acquire_lock)


@pytest.mark.parametrize(
    ("producer", "consumer", "home"),
    [(CORE, NORTH, CORE), (NORTH, CORE, NORTH), (CORE, EAST, CORE), (EAST, CORE, CORE)],
    ids=["up", "down", "east: it sees its west", "west: only the consumer's is seen by both"],
)
def test_where_a_shared_pool_lies(producer, consumer, home):
    assert {b.tile for b in lowered(fifo("f", producer, consumer)).buffers} == {home}


def test_allocate_moves_a_shared_pool_to_a_third_core():
    # Both (0,2) and (0,4) see the memory of (0,3).
    assert {b.tile for b in lowered(fifo("f", CORE, NORTH, allocate=NORTH)).buffers} == {NORTH}
    with pytest.raises(Refusal, match="allocate"):
        lowered(fifo("f", CORE, NORTH, allocate=FAR))


@pytest.mark.parametrize(
    "forced",
    [{"via_dma": True}, {"to_stream": (Dim(16, 1),)}, {"from_stream": ((Dim(16, 1),),)}, {"repeat_count": 1}],
    ids=["via_DMA", "to_stream", "from_stream", "repeat_count"],
)
def test_neighbours_use_dma_when_something_needs_it(forced):
    result = lowered(fifo("f", CORE, NORTH, **forced))
    assert {dma.channel for dma in result.dmas} == {mm2s(CORE), s2mm(NORTH)}


def test_broadcast_has_a_pool_per_consumer_and_one_route():
    result = lowered(fifo("f", MEM, CORE, FAR))
    assert pools(result) == [
        ("f_0_cons_buff_0", CORE), ("f_0_cons_buff_1", CORE), ("f_1_cons_buff_0", FAR), ("f_1_cons_buff_1", FAR),
        ("f_buff_0", MEM), ("f_buff_1", MEM),
    ]  # fmt: skip
    assert [(r.source, r.dests) for r in result.routes] == [(mm2s(MEM), (s2mm(CORE), s2mm(FAR)))]


def test_distribute_uses_the_input_pool_and_a_lock_pair_per_part():
    result = lowered(
        fifo("i", SHIM, MEM),
        fifo("a", MEM, CORE, element=E8),
        fifo("b", MEM, FAR, element=E8),
        links=[LinkSpec(("i",), ("a", "b"), (), (0, 8))],
    )
    assert [b.name for b in result.buffers if b.tile == MEM] == ["i_cons_buff_0", "i_cons_buff_1"]
    assert locks(result, MEM) == {
        "i_cons_prod_lock_0": (0, 2), "i_cons_cons_lock_0": (1, 0),
        "i_cons_prod_lock_1": (2, 2), "i_cons_cons_lock_1": (3, 0),
    }  # fmt: skip

    def use(side, part):
        return LockUse(f"i_cons_{side}_lock_{part}", 1)

    assert bds(result, s2mm(MEM)) == [
        ("i_cons_buff_0", 0, 8, use("prod", 0), use("cons", 0), 1),
        ("i_cons_buff_0", 8, 8, use("prod", 1), use("cons", 1), 2),
        ("i_cons_buff_1", 0, 8, use("prod", 0), use("cons", 0), 3),
        ("i_cons_buff_1", 8, 8, use("prod", 1), use("cons", 1), 0),
    ]
    assert bds(result, mm2s(MEM, 1)) == [
        ("i_cons_buff_0", 8, 8, use("cons", 1), use("prod", 1), 1),
        ("i_cons_buff_1", 8, 8, use("cons", 1), use("prod", 1), 0),
    ]


def test_join_uses_the_output_pool_and_reads_its_parts_in_order():
    result = lowered(
        fifo("a", CORE, MEM, element=E8, depths=(1, 2)),
        fifo("b", FAR, MEM, element=E8, depths=(1, 2)),
        fifo("o", MEM, SHIM),
        links=[LinkSpec(("a", "b"), ("o",), (0, 8), ())],
    )
    assert sorted(b.name for b in result.buffers if b.tile == MEM) == ["o_buff_0", "o_buff_1"]
    assert [bd[:3] for bd in bds(result, mm2s(MEM))] == [
        ("o_buff_0", 0, 8), ("o_buff_0", 8, 8), ("o_buff_1", 0, 8), ("o_buff_1", 8, 8),
    ]  # fmt: skip
    second = bds(result, s2mm(MEM, 1))
    assert [bd[:3] for bd in second] == [("o_buff_0", 8, 8), ("o_buff_1", 8, 8)]
    assert second[0][3:5] == (LockUse("o_prod_lock_1", 1), LockUse("o_cons_lock_1", 1))


def test_one_to_one_link_uses_the_larger_element_for_both_sides():
    result = lowered(fifo("i", SHIM, MEM), fifo("o", MEM, CORE, element=E8), links=[LinkSpec(("i",), ("o",))])
    assert [b.name for b in result.buffers if b.tile == MEM] == ["i_cons_buff_0", "i_cons_buff_1"]
    assert [bd[2] for bd in bds(result, mm2s(MEM))] == [16, 16]
    assert [bd[2] for bd in bds(result, s2mm(CORE))] == [8, 8]


def test_repeat_count_on_a_link_counts_at_the_locks_and_repeats_the_bds():
    result = lowered(fifo("i", SHIM, MEM), fifo("o", MEM, CORE, repeat_count=3), links=[LinkSpec(("i",), ("o",))])
    assert locks(result, MEM) == {"i_cons_prod_lock_0": (0, 6), "i_cons_cons_lock_0": (1, 0)}
    assert bds(result, s2mm(MEM))[0][3:5] == (LockUse("i_cons_prod_lock_0", 3), LockUse("i_cons_cons_lock_0", 3))
    assert [bd[0] for bd in bds(result, mm2s(MEM))] == ["i_cons_buff_0"] * 3 + ["i_cons_buff_1"] * 3
    assert bds(result, mm2s(MEM))[0][3] == LockUse("i_cons_cons_lock_0", 1)


def test_layouts_reach_the_bds_of_their_side():
    out, back = (Dim(4, 1), Dim(4, 4)), (Dim(2, 8), Dim(8, 1))
    result = lowered(fifo("f", MEM, CORE, to_stream=out, from_stream=(back,)))
    by_channel = {dma.channel: dma.bds[0].dims for dma in result.dmas}
    assert by_channel == {mm2s(MEM): out, s2mm(CORE): back}


def test_iter_count_ends_the_chain_in_the_memtile():
    result = lowered(fifo("f", MEM, CORE, iter_count=5))
    (memtile,) = [dma for dma in result.dmas if dma.channel.tile == MEM]
    assert memtile.repeat_count == 4
    assert [bd.next for bd in memtile.bds] == [1, None]


def test_channels_are_given_in_text_order():
    result = lowered(fifo("f", SHIM, CORE), fifo("g", SHIM, FAR), fifo("h", MEM, CORE))
    assert result.shims == {"f": mm2s(SHIM, 0), "g": mm2s(SHIM, 1)}
    assert [r.dests for r in result.routes] == [(s2mm(CORE, 0),), (s2mm(FAR, 0),), (s2mm(CORE, 1),)]


@pytest.mark.parametrize(
    ("link", "found"),
    [
        (LinkSpec(("i",), ("a", "b"), (), (0, 4)), "offsets"),
        (LinkSpec(("i",), ("a", "b"), (), (0,)), "offsets"),
        (LinkSpec(("i",), ("a", "b"), (0, 8), ()), "offsets"),
        (LinkSpec(("i",), ("a", "x"), (), (0, 8)), "@x"),
        (LinkSpec(("a",), ("b",)), "do not meet"),
    ],
    ids=["wrong offset", "missing offset", "wrong side", "unknown FIFO", "no tile between"],
)
def test_a_wrong_link_is_refused(link, found):
    fifos = [fifo("i", SHIM, MEM), fifo("a", MEM, CORE, element=E8), fifo("b", MEM, FAR, element=E8)]
    with pytest.raises(Refusal) as refusal:
        lowered(*fifos, links=[link])
    assert found in str(refusal.value)


def test_a_fifo_in_two_links_is_refused():
    fifos = [fifo("i", SHIM, MEM), fifo("a", MEM, CORE), fifo("b", MEM, FAR)]
    with pytest.raises(Refusal, match="more than one link"):
        lowered(*fifos, links=[LinkSpec(("i",), ("a",)), LinkSpec(("i",), ("b",))])


def test_a_layout_that_moves_less_than_an_element_is_refused():
    with pytest.raises(Refusal, match="product of 16"):
        lowered(fifo("f", MEM, CORE, to_stream=(Dim(4, 1), Dim(2, 4))))


def test_a_pool_that_does_not_fit_its_memtile_spills_west_then_east():
    """Elements of 256 KiB: two fit the memtile at column 1, two its west neighbour, two its east one; a seventh none."""
    here, west, east = TileId(1, 1), TileId(0, 1), TileId(2, 1)
    large = MemRef((65536,), "i32")
    small = fifo("small", SHIM, here, depths=[2, 1])
    result = lowered(small, fifo("big", TileId(1, 0), here, depths=[2, 7], element=large))
    tiles = dict(pools(result))
    assert [tiles[f"big_cons_buff_{i}"] for i in range(7)] == [here, west, west, east, east, here, here]
    assert tiles["small_cons_buff_0"] == here  # it came first: one large element less fits here
    assert {lock.tile for lock in result.locks if lock.name in ("big_cons_prod_lock_0", "big_cons_cons_lock_0")} == {
        here
    }
    # The spilled pool gets its channel first, for only low ones reach a neighbour's memory.
    assert [dma.channel for dma in result.dmas if dma.bds[0].buffer == "big_cons_buff_0"] == [s2mm(here, 0)]
    assert [dma.channel for dma in result.dmas if dma.bds[0].buffer == "small_cons_buff_0"] == [s2mm(here, 1)]


def test_a_pool_that_fits_to_the_byte_does_not_spill():
    full = lowered(fifo("f", SHIM, MEM, depths=[2, 2], element=MemRef((65536,), "i32")))
    assert {b.tile for b in full.buffers} == {MEM}
    over = lowered(fifo("f", SHIM, MEM, depths=[2, 2], element=MemRef((65537,), "i32")))
    assert [b.tile for b in over.buffers] == [MEM, TileId(1, 1)]  # column 0 has no west neighbour


def test_the_outermost_size_of_a_full_pattern_is_what_the_length_implies():
    """A core's BD has wrap fields for two dimensions: of three sizes, the outermost is not written anywhere."""
    layout = (Dim(1, 8), Dim(2, 1), Dim(4, 2))  # the sizes say 8 elements, the transfer moves 16
    result = lowered(fifo("f", MEM, CORE, from_stream=(layout,)))
    (core,) = [dma for dma in result.dmas if dma.channel == s2mm(CORE)]
    assert core.bds[0].dims == (Dim(2, 8), Dim(2, 1), Dim(4, 2))


def test_sizes_of_one_are_elements_in_a_row():
    result = lowered(fifo("f", MEM, CORE, from_stream=((Dim(1, 1), Dim(1, 1)),)))
    (core,) = [dma for dma in result.dmas if dma.channel == s2mm(CORE)]
    assert (core.bds[0].dims, core.bds[0].length) == ((), 16)


@pytest.mark.parametrize(
    "layout",
    [(Dim(1, 8), Dim(3, 1), Dim(2, 2)), (Dim(2, 1), Dim(4, 2)), (Dim(2, 8), Dim(0, 1), Dim(4, 2))],
    ids=["rest", "two of three", "size 0"],
)
def test_a_length_that_implies_no_size_is_refused(layout):
    with pytest.raises(Refusal, match="product of 16"):
        lowered(fifo("f", MEM, CORE, from_stream=(layout,)))


def test_a_part_may_be_several_elements_of_its_fifo():
    """Core elements of 8, parts of 16 and 16: the memtile's BDs move 16, the core's 8."""
    fifos = [fifo("i", SHIM, MEM, element=E32), fifo("a", MEM, CORE, element=E8), fifo("b", MEM, FAR)]
    result = lowered(*fifos, links=[LinkSpec(("i",), ("a", "b"), (), (0, 16))])
    by_channel = {dma.channel: dma.bds[0].length for dma in result.dmas}
    assert by_channel[mm2s(MEM, 0)] == 16 and by_channel[s2mm(CORE)] == 8
