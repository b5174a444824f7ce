# SPDX-License-Identifier: Apache-2.0
"""Packet ids of 5 bits, types of 3, four ids into a channel."""

from npu.program import Route, TileId
from tests.npu.legality.programs import CORE, MEMTILE, design, into, limits, out_of, transfer, with_task


def flows(*ids, extra=()):
    routes = tuple(Route(out_of(TileId(n % 8, 1), n // 8), (into(CORE, 0),), packet_id=i) for n, i in enumerate(ids))
    return design(routes=(*routes, *extra), dmas=(), sequences=())


def test_ids_have_five_bits():
    assert limits(flows(31)) == []
    assert limits(flows(32)) == ["packet id"]


def test_types_have_three_bits():
    assert limits(with_task(transfer(packet=(7, 31)))) == []
    assert limits(with_task(transfer(packet=(8, 31)))) == ["packet type"]
    assert limits(with_task(transfer(packet=(7, 32)))) == ["packet id"]


def test_four_ids_end_in_one_channel():
    assert limits(flows(1, 2, 3, 4)) == []
    assert limits(flows(1, 2, 3, 4, 5)) == ["packet ids into one channel"]


def test_a_channel_takes_circuits_or_packets():
    circuit = Route(out_of(MEMTILE, 5), (into(CORE, 0),))
    assert limits(flows(1, extra=(circuit,))) == ["kinds of stream into one channel"]
