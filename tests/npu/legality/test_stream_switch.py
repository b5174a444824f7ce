# SPDX-License-Identifier: Apache-2.0
"""Routing: what cannot be routed is refused, what the real compiler routes is not."""

import pytest

from npu.array import array_of
from npu.legality.stream_switch import Rectangle, border_ports
from npu.program import Route, TileId
from tests.npu.legality.programs import design, findings, into, limits, out_of


def routed(*routes):
    return design(routes=routes, dmas=(), sequences=(), tiles=(), buffers=(), locks=(), cores=())


def across(count: int):
    """`count` streams from memtiles of columns 0..3 to cores of columns 4..7."""
    sources = [out_of(TileId(col, 1), n) for col in range(4) for n in range(6)]
    sinks = [into(TileId(col, row), n) for col in range(4, 8) for row in range(2, 6) for n in range(2)]
    return routed(*(Route(s, (d,), name="x") for s, d in zip(sources[:count], sinks[:count], strict=True)))


def test_twenty_streams_cross_between_two_columns():
    # Five rows have sideways ports (not the memtile row), four each.
    assert limits(across(20)) == []
    assert limits(across(21)) == ["stream switch ports"]
    (finding,) = findings(across(21))
    assert (finding.asked, finding.available) == (21, 20)
    assert "columns 0..3, rows 0..5" in finding.where or "columns 4..7, rows 0..5" in finding.where


@pytest.mark.parametrize(
    ("rectangle", "outwards", "inwards"),
    [
        (Rectangle(0, 3, 0, 5), 20, 20),  # the left half: 5 rows x 4 ports
        (Rectangle(3, 3, 1, 1), 10, 10),  # a memtile: 6 north + 4 south; in, 4 from the north + 6 from the south
        (Rectangle(0, 0, 0, 0), 6 + 4, 4 + 4),  # the corner shim: north and east
        (Rectangle(2, 2, 3, 3), 6 + 4 + 4 + 4, 4 + 6 + 4 + 4),  # an inner core
        (Rectangle(0, 7, 0, 5), 0, 0),
    ],
)
def test_ports_of_a_border(rectangle, outwards, inwards):
    array = array_of("npu2")
    assert border_ports(rectangle, array, outward=True) == outwards
    assert border_ports(rectangle, array, outward=False) == inwards


def test_a_broadcast_crosses_once():
    cores = tuple(into(TileId(col, row), n) for col in range(4, 8) for row in range(2, 6) for n in range(2))
    assert limits(routed(Route(out_of(TileId(0, 1), 0), cores))) == []


def test_prefill_attention_routes():
    """One K/V broadcast to 24 cores, Q distributed and output joined in each column: the real router accepts."""
    rows = range(2, 5)
    everyone = tuple(into(TileId(col, row), 0) for col in range(8) for row in rows)
    routes = [Route(out_of(TileId(0, 0), 0), (into(TileId(0, 1), 0),)), Route(out_of(TileId(0, 1), 0), everyone)]
    for col in range(8):
        memtile, shim = TileId(col, 1), TileId(col, 0)
        routes.append(Route(out_of(shim, 1), (into(memtile, 1),)))
        routes += [Route(out_of(memtile, 1 + n), (into(TileId(col, row), 1),)) for n, row in enumerate(rows)]
        routes += [Route(out_of(TileId(col, row), 0), (into(memtile, 2 + n),)) for n, row in enumerate(rows)]
        routes.append(Route(out_of(memtile, 5), (into(shim, 0),)))
    assert limits(routed(*routes)) == []


def test_decode_gemv_on_sixteen_shim_channels_routes():
    """Two weight channels a column, each to two cores by broadcast of its memtile, outputs joined: memtile full."""
    routes = []
    for col in range(8):
        memtile, shim = TileId(col, 1), TileId(col, 0)
        for n in range(2):
            routes.append(Route(out_of(shim, n), (into(memtile, n),)))
            for m in range(2):
                routes.append(Route(out_of(memtile, 2 * n + m), (into(TileId(col, 2 + 2 * n + m), 0),)))
        routes += [Route(out_of(TileId(col, row), 0), (into(memtile, row),)) for row in range(2, 6)]
        routes.append(Route(out_of(memtile, 4), (into(shim, 0),)))
    assert limits(routed(*routes)) == []
    seventeenth = Route(out_of(TileId(0, 0), 2), (into(TileId(0, 2), 1),))
    assert limits(routed(*routes, seventeenth)) == ["DMA channels"]


def test_gemm_on_the_whole_array_routes():
    """Four A feeds broadcast along rows, eight B feeds down columns, C joined down columns."""
    routes = []
    for row in range(4):
        feeder = TileId(2 * row, 1)
        routes.append(Route(out_of(TileId(2 * row, 0), 0), (into(feeder, 0),)))
        routes.append(Route(out_of(feeder, 0), tuple(into(TileId(col, 2 + row), 0) for col in range(8))))
    for col in range(8):
        memtile = TileId(col, 1)
        routes.append(Route(out_of(TileId(col, 0), 1), (into(memtile, 1),)))
        routes.append(Route(out_of(memtile, 1), tuple(into(TileId(col, row), 1) for row in range(2, 6))))
        routes += [Route(out_of(TileId(col, row), 0), (into(memtile, row),)) for row in range(2, 6)]
        routes.append(Route(out_of(memtile, 2), (into(TileId(col, 0), 0),)))
    assert limits(routed(*routes)) == []


def test_packet_streams_are_not_counted():
    sources = [out_of(TileId(col, 1), n) for col in range(4) for n in range(6)]
    sinks = [into(TileId(col, row), n) for col in range(4, 8) for row in range(2, 6) for n in range(2)]
    flows = [Route(s, (d,), packet_id=n) for n, (s, d) in enumerate(zip(sources, sinks[:24], strict=True))]
    assert limits(routed(*flows)) == []
