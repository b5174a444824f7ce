# SPDX-License-Identifier: Apache-2.0
"""Findings in a refusal: one line for what is the same in many places, and never one line for different amounts."""

from __future__ import annotations

from npu.legality.listing import listing
from npu.legality.violation import Violation


def finding(where: str, asked: int | str = 70000, **more: str) -> Violation:
    fields = {"limit": "data memory", "available": 65536, "source": "somewhere", "change": "less"} | more
    return Violation(asked=asked, where=where, **fields)


def test_a_rectangle_of_tiles_is_one_line_with_its_ranges() -> None:
    tiles = [finding(f"@d, core({c},{r})", detail=f"buffer of {c}") for c in range(8) for r in range(2, 6)]
    (line,) = listing(tiles)
    assert line.startswith(
        "1. @d, 32 tiles core(0..7,2..5): data memory: asks 70000, there is 65536 (stated: somewhere)"
    )


def test_tiles_that_are_no_rectangle_are_named_one_by_one() -> None:
    (line,) = listing([finding(f"@d, core({c},2)") for c in (0, 3)])
    assert "2 tiles core(0,2) core(3,2):" in line


def test_another_amount_limit_or_device_has_a_line_of_its_own() -> None:
    same = finding("@d, core(0,2)")
    others = [finding("@d, core(1,2)", 70004), finding("@d, core(1,2)", limit="locks"), finding("@e, core(1,2)")]
    assert len(listing([same, *others])) == 4
    assert len(listing([finding("@d, core(0,2)", "17 of 16"), finding("@d, core(1,2)", "18 of 16")])) == 2


def test_places_in_the_text_are_counted_and_the_last_is_named() -> None:
    where = [f"module:{10 + n}: aie.objectfifo @w_c{n}r0x" for n in range(3)]
    (line,) = listing([finding(place, f"w_c{n}_buff_0 in memtile({n},1)") for n, place in enumerate(where)])
    assert line.startswith(f"1. {where[0]}: ")
    assert f"the same in 2 more place(s), the last {where[-1]}" in line


def test_one_finding_stays_as_it_is() -> None:
    assert listing([finding("@d, core(7,5)")]) == [f"1. {finding('@d, core(7,5)')} (stated: somewhere)"]
