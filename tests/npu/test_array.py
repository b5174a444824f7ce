# SPDX-License-Identifier: Apache-2.0
"""The table of the array, against facts/npu2-hardware.md section 1 (numbers written out here by hand)."""

import pytest

from npu.array import ARRAYS, SOURCES, array_of, limit_fields, memtile_bd_range
from npu.program import TileId, TileKind
from refusal import Refusal


def test_the_devices_and_their_columns():
    expected = {"npu2": 8, "npu1": 4}
    expected |= {f"npu2_{n}col": n for n in range(1, 8)} | {f"npu1_{n}col": n for n in range(1, 4)}
    assert {name: array.columns for name, array in ARRAYS.items()} == expected
    assert {array.rows for array in ARRAYS.values()} == {6}


def test_npu2_has_32_cores_8_memtiles_and_8_shims():
    kinds = [tile.kind for tile in array_of("npu2").tiles()]
    assert [kinds.count(kind) for kind in (TileKind.CORE, TileKind.MEMTILE, TileKind.SHIM)] == [32, 8, 8]


@pytest.mark.parametrize(
    ("tile", "memory", "bank", "locks", "bds", "channels"),
    [
        (TileId(0, 2), 65536, 16384, 16, 16, 2),
        (TileId(0, 1), 524288, 65536, 64, 48, 6),
        (TileId(0, 0), 0, 0, 16, 16, 2),
    ],
)
def test_what_each_kind_of_tile_has(tile, memory, bank, locks, bds, channels):
    has = array_of("npu2").limits(tile)
    assert (has.data_memory_bytes, has.bank_bytes, has.locks, has.bds, has.channels) == (
        memory,
        bank,
        locks,
        bds,
        channels,
    )


@pytest.mark.parametrize(
    ("tile", "wrap", "step", "length"),
    [(TileId(0, 2), 255, 8192, 16383), (TileId(0, 1), 1023, 131072, 131071), (TileId(0, 0), 1023, 1048576, 4294967295)],
)
def test_descriptor_fields(tile, wrap, step, length):
    pattern = array_of("npu2").limits(tile).pattern
    assert (pattern.wrap_max, pattern.step_max, pattern.length_max_words) == (wrap, step, length)
    assert pattern.iteration_max == 64


def test_every_number_has_a_source():
    assert [name for name in limit_fields() if not SOURCES.get(name)] == []


def test_a_core_reaches_itself_and_its_north_south_and_west_neighbours():
    array = array_of("npu2")
    assert array.memory_reach(TileId(3, 3)) == {TileId(3, 3), TileId(3, 4), TileId(3, 2), TileId(2, 3)}
    assert array.memory_reach(TileId(0, 2)) == {TileId(0, 2), TileId(0, 3)}  # no memtile to the south, no west


def test_a_memtile_reaches_the_memtiles_beside_it():
    assert array_of("npu2").memory_reach(TileId(7, 1)) == {TileId(7, 1), TileId(6, 1)}


def test_a_cascade_goes_south_or_east():
    array = array_of("npu2")
    assert array.cascade_reach(TileId(3, 3)) == {TileId(3, 2), TileId(4, 3)}
    assert array.cascade_reach(TileId(7, 2)) == frozenset()
    assert array.cascade_reach(TileId(0, 1)) == frozenset()


def test_stream_ports_end_at_the_edge():
    array = array_of("npu2")
    inner, corner = array.ports(TileId(3, 3)), array.ports(TileId(7, 5))
    assert (inner.north, inner.south, inner.east, inner.west) == (6, 4, 4, 4)
    assert (corner.north, corner.south, corner.east, corner.west) == (0, 4, 0, 4)
    assert array.ports(TileId(3, 1)).east == 0


def test_memtile_descriptors_by_parity():
    array = array_of("npu2")
    assert memtile_bd_range(array, 4) == range(24)
    assert memtile_bd_range(array, 5) == range(24, 48)


def test_an_unknown_device_is_refused_with_the_known_ones():
    with pytest.raises(Refusal, match="npu2_7col"):
        array_of("npu4")
