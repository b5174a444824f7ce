# SPDX-License-Identifier: Apache-2.0
"""Buffer addresses and BD ids; expected values by hand from the compiler's rule."""

from __future__ import annotations

from npu.array import array_of
from npu.mlir.place import assign_bd_ids, place
from npu.program import Buffer, BufferDescriptor, Channel, Direction, DmaProgram, MemRef, TileId

NPU2 = array_of("npu2")
CORE, MEM = TileId(0, 2), TileId(0, 1)
KIB = 1024


def buffer(name, nbytes, **rest):
    return Buffer(name, CORE, MemRef((nbytes,), "i8"), **rest)


def placed(*buffers, stack=1024, scheme=None):
    result = place(buffers, stack, NPU2.limits(CORE), scheme)
    return {b.name: (b.address, b.bank) for b in result.buffers}, result.fallback


def test_largest_first_each_in_the_next_bank():
    found, fallback = placed(buffer("s", 64), buffer("l", 8 * KIB), buffer("m", 4 * KIB))
    assert found == {"l": (1024, 0), "m": (16 * KIB, 1), "s": (32 * KIB, 2)}
    assert not fallback


def test_a_buffer_of_a_whole_bank_avoids_the_stack():
    found, _ = placed(buffer("acc", 16 * KIB))
    assert found == {"acc": (16 * KIB, 1)}


def test_addresses_and_banks_that_the_text_gives_stay():
    found, _ = placed(buffer("a", 64, address=20 * KIB), buffer("b", 64, bank=3), buffer("c", 32))
    assert found == {"a": (20 * KIB, 1), "b": (48 * KIB, 3), "c": (1024, 0)}


def test_fallback_is_sequential_and_says_why():
    # Three banks of room for four 12 KiB buffers and a 16 KiB one: no bank is left whole.
    found, fallback = placed(*[buffer(f"b{i}", 12 * KIB) for i in range(4)], buffer("x", 8 * KIB))
    assert "x of 8192 bytes fits no bank" in fallback
    assert found["b0"] == (1024, None)
    assert found["x"] == (1024 + 48 * KIB, None)


def test_sequential_on_request_is_reported_too():
    found, fallback = placed(buffer("a", 64), scheme="basic-sequential")
    assert found == {"a": (1024, None)}
    assert "basic-sequential" in fallback


def chain(channel, count):
    return DmaProgram(channel, tuple(BufferDescriptor(4, 0, 4, buffer="b") for _ in range(count)))


def test_memtile_bd_ids_follow_channel_parity():
    dmas = [chain(Channel(MEM, Direction.S2MM, 0), 2), chain(Channel(MEM, Direction.MM2S, 1), 2)]
    dmas.append(chain(Channel(MEM, Direction.MM2S, 2), 1))
    numbered = assign_bd_ids(dmas, NPU2.limits(MEM))
    assert [[bd.bd_id for bd in dma.bds] for dma in numbered] == [[0, 1], [24, 25], [2]]


def test_a_full_even_half_shows_as_an_id_that_does_not_exist():
    (numbered,) = assign_bd_ids([chain(Channel(MEM, Direction.S2MM, 0), 25)], NPU2.limits(MEM))
    assert numbered.bds[23].bd_id == 23
    assert numbered.bds[24].bd_id >= 48
