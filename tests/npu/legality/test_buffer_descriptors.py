# SPDX-License-Identifier: Apache-2.0
"""16 descriptors a core, 48 a memtile in halves by channel parity; ids and chains."""

import pytest

from npu.program import DmaProgram, MemRef
from tests.npu.legality.programs import CORE, MEMTILE, design, findings, into, limits, out_of, pool, ring

SMALL = MemRef((16,), "i32")


def device(*depths, tile=MEMTILE):
    """One ring of `depth` descriptors per (channel, depth)."""
    pools = [pool(f"p{n}", tile, depth, SMALL) for n, (_, depth) in enumerate(depths)]
    dmas = tuple(ring(channel, buffers) for (channel, _), buffers in zip(depths, pools, strict=True))
    return design(buffers=sum(pools, ()), dmas=dmas, routes=(), sequences=(), locks=())


def test_all_channels_of_a_core_share_sixteen():
    assert limits(device((into(CORE, 0), 8), (out_of(CORE, 0), 8), tile=CORE)) == []
    over = device((into(CORE, 0), 8), (out_of(CORE, 0), 9), tile=CORE)
    assert limits(over) == ["buffer descriptors"]
    assert findings(over)[0].detail == "S2MM 0: 8, MM2S 0: 9"


@pytest.mark.parametrize("parity", [0, 1])
def test_memtile_channels_of_one_parity_share_twenty_four(parity):
    assert limits(device((into(MEMTILE, parity), 12), (out_of(MEMTILE, 2 + parity), 12))) == []
    over = limits(device((into(MEMTILE, parity), 12), (out_of(MEMTILE, 2 + parity), 13)))
    assert over == [f"buffer descriptors of {'odd' if parity else 'even'} memtile channels"]


def test_a_memtile_has_forty_eight_in_all():
    assert limits(device((into(MEMTILE, 0), 24), (into(MEMTILE, 1), 24))) == []
    assert "buffer descriptors" in limits(device((into(MEMTILE, 0), 24), (into(MEMTILE, 1), 25)))


@pytest.mark.parametrize(
    ("channel", "bd_id", "legal"),
    [
        (into(CORE, 1), 15, True),
        (into(CORE, 1), 16, False),
        (into(MEMTILE, 0), 23, True),
        (into(MEMTILE, 0), 24, False),
        (into(MEMTILE, 1), 24, True),
        (into(MEMTILE, 1), 23, False),
        (out_of(MEMTILE, 5), 47, True),
        (out_of(MEMTILE, 5), 48, False),
    ],
)
def test_fixed_ids_are_ones_that_the_channel_reaches(channel, bd_id, legal):
    buffers = pool("p", channel.tile, 1, SMALL)
    device = design(buffers=buffers, dmas=(ring(channel, buffers, bd_id=bd_id),), routes=(), sequences=(), locks=())
    assert limits(device) == ([] if legal else ["BD id"])


def test_an_id_is_given_once_but_two_starts_may_share_a_descriptor():
    one, two = pool("a", CORE, 1, SMALL), pool("b", CORE, 1, SMALL)
    first, second = ring(into(CORE, 0), one, bd_id=3), ring(into(CORE, 1), two, bd_id=3)
    shared = DmaProgram(into(CORE, 1), first.bds)
    base = {"buffers": one + two, "routes": (), "sequences": (), "locks": ()}
    assert limits(design(dmas=(first, second), **base)) == ["BDs with one id"]
    assert limits(design(dmas=(first, shared), **base)) == []


def test_next_names_a_descriptor_of_the_chain():
    buffers = pool("p", CORE, 1, SMALL)
    assert limits(
        design(buffers=buffers, dmas=(ring(into(CORE), buffers, next=1),), routes=(), sequences=(), locks=())
    ) == ["chain of BDs"]
