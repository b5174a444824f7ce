# SPDX-License-Identifier: Apache-2.0
"""The check as a whole: legal designs pass, refusals name every limit, explanations read well."""

from dataclasses import replace

import pytest

from npu.legality import Severity, check, explain, is_legal, require_legal
from npu.program import Buffer, Lock, MemRef, TileId
from refusal import Refusal
from tests.npu.legality.programs import CORE, MEMTILE, design, findings, limits, program


def too_much():
    """64 KiB of data beside the stack, and a lock value of 64."""
    return design(
        buffers=(*design().buffers, Buffer("weights", CORE, MemRef((16384,), "i32"))),
        locks=(*design().locks, Lock("wide", CORE, None, 64)),
    )


def test_the_smallest_complete_design_has_no_finding():
    assert check(program()) == []
    assert require_legal(program()) == []


def test_a_refusal_names_every_limit_with_both_numbers_and_what_to_change():
    with pytest.raises(Refusal) as refused:
        require_legal(program(too_much()))
    text = str(refused.value)
    assert "2 limits exceeded" in text
    assert "asks 70656 bytes, there is 65536 bytes" in text  # 65536 + 4 x 1024 + 1024 of stack
    assert "asks 64, there is 0..63" in text
    assert "core(0,2)" in text and "lock wide" in text
    assert "use smaller tiles" in refused.value.next_step


def test_errors_come_before_warnings():
    device = too_much()
    severities = [v.severity for v in findings(device)]
    assert severities == sorted(severities, key=list(Severity).index)


def test_an_explanation_tells_what_was_asked_the_limit_its_source_and_the_change():
    (memory,) = [v for v in findings(too_much()) if v.limit == "data memory"]
    assert explain(memory).splitlines() == [
        "Not legal: data memory, in @main, core(0,2).",
        "  asked:  70656 bytes (stack 1024, a_core 2 x 1024, c_core 2 x 1024, weights 65536)",
        "  limit:  65536 bytes",
        "  source: target model: getLocalMemorySize 64 KiB (core), getMemTileSize 512 KiB (memtile). The limit is stated.",
        "  change: use smaller tiles or fewer FIFO elements, or move data to another tile.",
    ]


def test_house_rules_bind_our_designs_and_not_those_of_others():
    wide = design(buffers=(*design().buffers, Buffer("wide", CORE, MemRef((5000,), "i32"))))  # 20,000 B, over a bank
    assert limits(wide, Severity.HOUSE) == ["bank-aware placement"]
    with pytest.raises(Refusal, match="bank-aware placement"):
        require_legal(program(wide))
    assert limits(wide, Severity.ERROR) == []
    assert require_legal(program(wide), house_rules=False)
    assert is_legal(program(wide), house_rules=False) and not is_legal(program(wide))


def test_a_device_nobody_knows_is_a_finding():
    assert limits(design(target="xcvc1902")) == ["device"]


def test_tiles_outside_the_named_device_are_found_before_anything_else():
    assert limits(design(target="npu2_1col")) == []
    assert limits(design(target="npu2_1col", tiles=(TileId(1, 0),))) == ["array size"]
    assert limits(design(target="npu2", tiles=(TileId(7, 5),))) == []
    assert limits(design(target="npu2", tiles=(TileId(8, 5),))) == ["array size"]
    assert limits(design(target="npu1", tiles=(TileId(4, 0),))) == ["array size"]


def test_a_core_stands_in_a_compute_row():
    core = design().cores[0]
    assert limits(design(cores=(replace(core, tile=MEMTILE),))) == ["place of a core"]
