# SPDX-License-Identifier: Apache-2.0
"""2, 6 and 2 channels per direction; one circuit into a channel."""

import pytest

from npu.program import Route, TileId
from tests.npu.legality.programs import (
    CORE,
    MEMTILE,
    SHIM,
    design,
    feed,
    findings,
    into,
    limits,
    out_of,
    sequence,
    transfer,
)


@pytest.mark.parametrize(("tile", "available"), [(CORE, 2), (MEMTILE, 6), (SHIM, 2)])
def test_channels_of_a_tile(tile, available):
    def feeding(count):
        sources = [TileId(col, 1) for col in range(1, 8)]
        routes = tuple(Route(out_of(sources[n]), (into(tile, n),), name=f"r{n}") for n in range(count))
        return design(routes=routes, dmas=(), sequences=())

    assert limits(feeding(available)) == []
    assert limits(feeding(available + 1)) == ["DMA channels"]
    (finding,) = findings(feeding(available + 1))
    assert (finding.asked, finding.available, finding.unit) == (available + 1, available, "S2MM channels")


def test_a_task_counts_its_channel_too():
    third = feed(0, out_of(SHIM, 2), transfer())
    assert "DMA channels" in limits(design(sequences=(sequence(*third),)))


def test_two_circuits_do_not_end_in_one_channel():
    one = Route(out_of(MEMTILE, 0), (into(CORE, 0),), name="x")
    two = Route(out_of(MEMTILE, 2), (into(CORE, 0),), name="y")
    assert limits(design(routes=(one, Route(out_of(MEMTILE, 2), (into(CORE, 1),))), dmas=(), sequences=())) == []
    assert limits(design(routes=(one, two), dmas=(), sequences=())) == ["circuit streams into one channel"]


def test_a_broadcast_takes_one_channel_however_many_listen():
    cores = [TileId(col, row) for col in range(8) for row in range(2, 6)]
    everyone = Route(out_of(MEMTILE, 0), tuple(into(core, 0) for core in cores), name="kv")
    assert limits(design(tiles=(MEMTILE, *cores), routes=(everyone,), dmas=(), sequences=())) == []


def test_two_routes_of_one_source_are_a_broadcast():
    routes = tuple(Route(out_of(MEMTILE, 0), (into(TileId(0, row), 0),)) for row in (2, 3))
    assert limits(design(routes=routes, dmas=(), sequences=())) == []


def test_a_route_goes_from_mm2s_to_s2mm():
    assert limits(design(routes=(Route(into(CORE), (into(MEMTILE),)),), dmas=(), sequences=())) == [
        "direction of a route"
    ]
