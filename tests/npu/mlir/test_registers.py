# SPDX-License-Identifier: Apache-2.0
"""BDs as words: every field of each tile kind, by words put together here from the register map's bit positions."""

from __future__ import annotations

import pytest

from npu.mlir.load import load_program
from npu.mlir.registers import register_at, split
from npu.program import BufferDescriptor, ConfigureTask, Dim, Direction, LockUse, TileId, TileKind
from refusal import Refusal


def load(row: int, words: list[int], queue: int, declared: str = "", push: int = 0, column: int = 0) -> ConfigureTask:
    """The task of BD 0, whose words are given, pushed into a queue register."""
    base = {0: 0x1D000, 1: 0xA0000, 2: 0x1D000}[row]
    data = ", ".join(str(word - (1 << 32) if word >> 31 else word) for word in words)
    tile = column << 25 | row << 20
    patch = f"aiex.npu.address_patch {{addr = {tile | base + 4} : ui32, arg_idx = 1 : i32, arg_plus = 40 : i32}}"
    text = f"""
module {{
  aie.device(npu2) {{
    %t = aie.tile({column}, {row})
    {declared}
    memref.global "private" constant @bd : memref<{len(words)}xi32> = dense<[{data}]>
    aie.runtime_sequence(%a: memref<64xi32>, %b: memref<4096xi32>) {{
      %0 = memref.get_global @bd : memref<{len(words)}xi32>
      aiex.npu.blockwrite(%0) {{address = {tile | base} : ui32}} : memref<{len(words)}xi32>
      {patch if row == 0 else ""}
      aiex.npu.write32 {{address = {tile | queue} : ui32, value = {push} : ui32}}
    }}
  }}
}}
"""
    device = load_program(text).devices[0]
    (task,) = [i for i in device.sequences[0].instructions if isinstance(i, ConfigureTask)]
    return task


def fields(bd: BufferDescriptor) -> dict[str, object]:
    """What is not at its default, without location."""
    plain = BufferDescriptor(element_bytes=4, offset=0, length=0)
    return {k: v for k, v in vars(bd).items() if v != getattr(plain, k) and k not in ("where", "element_bytes")}


def test_every_field_of_a_shim_bd() -> None:
    words = [
        2 * 6 * 5,  # length
        0,  # address, patched
        1 << 30 | 9 << 19 | 5 << 16,  # packet, its id and type
        2 << 20 | 2,  # size0, step0 - 1
        2 << 30 | 6 << 20 | 6,  # burst of 256, size1, step1 - 1
        99,  # step2 - 1
        3 << 20 | 999,  # iterations - 1, step - 1
        1 << 25 | 2 << 18 | 7 << 13 | 1 << 12 | 0x7F << 5 | 3,  # valid, release 2 of lock 7, acquire -1 of lock 3
    ]
    task = load(0, words, 0x1D21C, push=1 << 31 | 3 << 16)
    assert (task.channel.direction, task.channel.index, task.issue_token, task.repeat_count) == (
        Direction.MM2S,
        1,
        True,
        3,
    )
    assert fields(task.bds[0]) == {
        "argument": 1, "offset": 10, "length": 60, "dims": (Dim(5, 100), Dim(6, 7), Dim(2, 3)), "iteration": Dim(4, 1000),
        "acquire": LockUse("lock 3 of shim(0,0)", 1), "release": LockUse("lock 7 of shim(0,0)", 2), "bd_id": 0,
        "packet": (5, 9), "burst_bytes": 256,
    }  # fmt: skip


def test_every_field_of_a_core_bd() -> None:
    words = [
        1500 << 14 | 24,  # address in words, length
        1 << 30 | 9 << 19 | 5 << 16,
        8 << 13 | 1,  # step1 - 1, step0 - 1
        3 << 21 | 2 << 13 | 19,  # size1, size0, step2 - 1
        1 << 13 | 499,  # iterations - 1, step - 1
        1 << 25 | 2 << 18 | 7 << 13 | 1 << 12 | 2 << 5 | 3,  # acquire 2 of lock 3: exactly
    ]
    declared = '%here = aie.buffer(%t) {address = 4096 : i32, sym_name = "here"} : memref<2048xi32>'
    task = load(2, words, 0x1DE0C, declared, push=2 << 16)
    assert (task.channel.direction, task.channel.index, task.issue_token, task.repeat_count) == (
        Direction.S2MM,
        1,
        False,
        2,
    )
    assert fields(task.bds[0]) == {
        "buffer": "here", "offset": 476, "length": 24, "dims": (Dim(4, 20), Dim(3, 9), Dim(2, 2)), "iteration": Dim(2, 500),
        "acquire": LockUse("lock 3 of core(0,2)", 2, equal=True), "release": LockUse("lock 7 of core(0,2)", 2), "bd_id": 0,
        "packet": (5, 9),
    }  # fmt: skip


def test_every_field_of_a_memtile_bd() -> None:
    """The address 0x40000 words on is the east neighbour's first; lock fields 64.. are the own tile's, 128.. east's."""
    words = [
        1 << 31 | 5 << 28 | 9 << 23 | (2 + 1 + 3) * (3 + 1 + 2) * (4 + 2 + 1) * 2,  # packet, type, id, length
        1 << 26 | 0x40000 + 25,  # before0, address
        2 << 17 | 1,  # size0, step0 - 1
        1 << 27 | 3 << 17 | 8,  # before1, size1, step1 - 1
        2 << 27 | 4 << 17 | 30,  # before2, size2, step2 - 1
        1 << 28 | 2 << 23 | 3 << 17 | 199,  # after2, after1, after0, step3 - 1
        2 << 17 | 999,  # iterations - 1, step - 1
        1 << 31 | 1 << 24 | 129 << 16 | 1 << 15 | 0x7E << 8 | 66,  # valid, release 1 of east's 1, acquire -2 of own 2
    ]
    task = load(1, words, 0xA0644, column=3)
    assert (task.channel.direction, task.channel.index) == (Direction.MM2S, 2)
    assert fields(task.bds[0]) == {
        "buffer": "memory at 0 of memtile(4,1)", "offset": 25, "length": 504,
        "dims": (Dim(2, 200), Dim(4, 31), Dim(3, 9), Dim(2, 2)), "padding": ((0, 0), (2, 1), (1, 2), (1, 3)),
        "iteration": Dim(3, 1000), "acquire": LockUse("lock 2 of memtile(3,1)", 2),
        "release": LockUse("lock 1 of memtile(4,1)", 1), "bd_id": 0, "packet": (5, 9),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("word", "bit", "found"),
    [(1, 31, "compression"), (5, 31, "suppressed TLAST"), (4, 19, "an iteration under way"), (5, 24, "releases -64")],
)
def test_what_the_twin_does_not_do_is_refused(word: int, bit: int, found: str) -> None:
    words = [16, 0, 0, 0, 0, 1 << 25]
    words[word] |= 1 << bit
    with pytest.raises(Refusal, match=found):
        load(2, words, 0x1DE04)


def test_a_bd_that_is_not_valid_is_refused() -> None:
    with pytest.raises(Refusal, match="not valid"):
        load(2, [16, 0, 0, 0, 0, 0], 0x1DE04)


def test_sizes_that_do_not_divide_the_length_are_refused() -> None:
    with pytest.raises(Refusal, match="16 words, which its sizes do not divide"):
        load(2, [16, 0, 0, 3 << 13, 0, 1 << 25], 0x1DE04)


def test_an_address_is_column_row_and_offset() -> None:
    assert split(5 << 25 | 3 << 20 | 0x1DE04) == (TileId(5, 3), 0x1DE04)


@pytest.mark.parametrize(
    ("kind", "offset", "expected"),
    [
        (TileKind.CORE, 0x1D1F4, ("bd", 15, 5)), (TileKind.CORE, 0x1D018, None), (TileKind.MEMTILE, 0xA05FC, ("bd", 47, 7)),
        (TileKind.MEMTILE, 0xA065C, ("queue", 5, 0)), (TileKind.MEMTILE, 0xC03F0, ("lock", 63, 0)),
        (TileKind.MEMTILE, 0x7FFFC, ("memory", 0x7FFFC, 0)), (TileKind.SHIM, 0x140F0, ("lock", 15, 0)),
        (TileKind.SHIM, 0x1D21C, ("queue", 1, 0)), (TileKind.SHIM, 0x1D220, None), (TileKind.CORE, 0x1F004, None),
        (TileKind.CORE, 0xFFFC, ("memory", 0xFFFC, 0)), (TileKind.CORE, 0x10000, None),
    ],
)  # fmt: skip
def test_the_ends_of_each_range(kind: TileKind, offset: int, expected: tuple[str, int, int] | None) -> None:
    found = register_at(kind, offset)
    assert (found and (found.kind, found.index, found.word)) == expected
