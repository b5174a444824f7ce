# SPDX-License-Identifier: Apache-2.0
"""A cascade goes from a core to the core south or east of it, one in and one out."""

import pytest

from npu.program import TileId
from tests.npu.legality.programs import design, limits


@pytest.mark.parametrize(
    ("dest", "legal"),
    [
        (TileId(3, 2), True),  # south
        (TileId(4, 3), True),  # east
        (TileId(3, 4), False),  # north
        (TileId(2, 3), False),  # west
        (TileId(4, 2), False),  # diagonal
        (TileId(5, 3), False),  # two away
    ],
)
def test_a_cascade_goes_south_or_east(dest, legal):
    assert limits(design(cascades=((TileId(3, 3), dest),))) == ([] if legal else ["reach of a cascade"])


def test_memtiles_and_shims_have_none():
    assert limits(design(cascades=((TileId(3, 2), TileId(3, 1)),))) == ["reach of a cascade"]
    assert limits(design(cascades=((TileId(3, 1), TileId(3, 0)),))) == ["reach of a cascade"]


def test_a_core_has_one_input_and_one_output():
    here, south, east = TileId(3, 3), TileId(3, 2), TileId(4, 3)
    chain = ((TileId(2, 3), here), (here, east))
    assert limits(design(cascades=chain)) == []
    assert limits(design(cascades=((here, south), (here, east)))) == ["cascade outputs of a core"]
    assert limits(design(cascades=((TileId(2, 3), here), (TileId(3, 4), here)))) == ["cascade inputs of a core"]
