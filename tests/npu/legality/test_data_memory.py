# SPDX-License-Identifier: Apache-2.0
"""L1 of 64 KiB with the stack, memtile of 512 KiB, and placement in banks."""

from dataclasses import replace

import pytest

from npu.legality import Severity
from npu.program import Buffer, Core, MemRef
from tests.npu.legality.programs import CORE, MEMTILE, design, findings, limits, pool


def device(*buffers: Buffer, stack: int = 1024):
    return design(
        buffers=buffers, dmas=(), routes=(), locks=(), sequences=(), cores=(Core(CORE, (), stack_bytes=stack),)
    )


def plain(name: str, nbytes: int, tile=CORE, **more) -> Buffer:
    return Buffer(name, tile, MemRef((nbytes,), "i8"), **more)


def test_stack_and_pools_fill_l1_to_the_last_byte():
    fits = [plain(f"b{n}", 16384) for n in range(3)] + [plain("last", 15360)]
    assert limits(device(*fits)) == []
    assert limits(device(*fits, plain("more", 4))) == ["data memory"]


def test_a_larger_stack_takes_from_the_buffers():
    buffers = [plain(f"b{n}", 16384) for n in range(3)] + [plain("last", 15360)]
    assert limits(device(*buffers, stack=1024 + 4)) == ["data memory"]


def test_a_pool_counts_with_its_depth():
    big = MemRef((4096,), "bf16")  # 8 KiB
    assert limits(device(*pool("q", CORE, depth=6, type=big), stack=1024)) == []
    assert limits(device(*pool("q", CORE, depth=8, type=big), stack=1024)) == ["data memory"]
    (finding,) = findings(device(*pool("q", CORE, depth=8, type=big), stack=1024))
    assert (finding.asked, finding.available) == (66560, 65536)
    assert "q 8 x 8192" in finding.detail


def test_memtile_of_512_kib():
    banks = [plain(f"b{n}", 65536, MEMTILE) for n in range(8)]
    assert limits(device(*banks)) == []
    assert limits(device(*banks, plain("more", 4, MEMTILE))) == ["data memory"]


def test_a_buffer_as_large_as_a_bank_is_placed_in_one_beside_the_stack():
    assert limits(device(plain("bank", 16384))) == []
    over = device(plain("bank", 16388))
    assert limits(over) == ["bank-aware placement"]
    assert findings(over)[0].severity is Severity.HOUSE
    assert "falls back from bank-aware placement" in findings(over)[0].detail


def test_four_elements_of_a_bank_each_do_not_fit_beside_the_stack_bank_wise():
    # 3 x 16 KiB fill banks 1..3; 15 KiB + 1 KiB of stack fill bank 0.
    assert limits(device(*(plain(f"b{n}", 16000) for n in range(3)), plain("c", 15360))) == []
    # 5 x 12 KiB are 60 KiB and fit, but no two share a bank of 16 KiB.
    assert limits(device(*(plain(f"b{n}", 12288) for n in range(5)))) == ["bank-aware placement"]


def test_key_block_64_with_four_slots_does_not_fit_and_32_does():
    # facts/designs-that-lower.md, prefill attention of 512 tokens: the real compiler's verdicts.
    def attention(key_block: int):
        fixed = [plain("acc", 16384), plain("stats", 512)]
        queries, keys, outputs = (
            pool("q", CORE, 2, MemRef((8192,), "i8")),
            [],
            pool("o", CORE, 2, MemRef((1024,), "i8")),
        )
        keys = pool("kv", CORE, 4, MemRef((key_block * 64,), "bf16"))
        return device(*fixed, *queries, *keys, *outputs, stack=2048)

    assert limits(attention(32)) == []
    assert limits(attention(64)) == ["data memory"]


def test_gemm_64_cubed_with_a_local_accumulator_places_by_banks():
    # The real compiler accepts: fp32 accumulator 16 KiB, A and B of depth 2 in bf16, C of depth 1.
    tile = MemRef((64, 64), "bf16")
    buffers = [plain("acc", 16384), *pool("a", CORE, 2, tile), *pool("b", CORE, 2, tile)]
    assert limits(device(*buffers, *pool("c", CORE, 1, tile))) == []
    # With fp32 C in the FIFO, no local accumulator: 64 x 64 does not fit at depth 2.
    wide = pool("c", CORE, 2, MemRef((64, 64), "f32"))
    assert limits(device(*buffers[1:], *wide)) == ["data memory"]


def test_placed_buffers_do_not_overlap_one_another_or_the_stack():
    assert limits(device(plain("a", 64, address=1024), plain("b", 64, address=1088))) == []
    assert limits(device(plain("a", 64, address=1024), plain("b", 64, address=1084))) == ["overlap in data memory"]
    assert limits(device(plain("a", 64, address=1020))) == ["overlap in data memory"]


def test_a_placed_buffer_ends_within_the_memory():
    assert limits(device(plain("a", 1024, address=64512))) == []
    assert limits(device(plain("a", 1024, address=64516))) == ["data memory"]


def test_a_placed_buffer_across_banks_is_what_the_fallback_makes():
    assert limits(device(plain("a", 1024, address=16384 - 1024))) == []
    assert limits(device(plain("a", 1024, address=16384 - 512))) == ["bank-aware placement"]


def test_a_fallback_that_the_loader_met_is_reported_with_its_reason():
    fell_back = replace(device(plain("a", 1024)), placement_fallbacks=((CORE, "no bank has room for a"),))
    (finding,) = findings(fell_back)
    assert (finding.limit, finding.asked) == ("bank-aware placement", "no bank has room for a")


def test_a_named_bank_must_have_room():
    assert limits(device(plain("a", 15360, bank=0))) == []
    assert limits(device(plain("a", 15364, bank=0))) == ["bank-aware placement"]


@pytest.mark.parametrize("stack", [16384, 16388])
def test_a_stack_is_at_most_a_bank(stack):
    expected = [] if stack == 16384 else ["bank-aware placement"]
    assert limits(device(stack=stack)) == expected


def test_the_smallest_design_with_addresses_from_the_loader_is_legal():
    base = design()
    placed = tuple(
        replace(b, address=1024 + 1024 * n) if b.tile == CORE else replace(b, address=65536 * n % 524288)
        for n, b in enumerate(base.buffers)
    )
    assert limits(replace(base, buffers=placed)) == []
