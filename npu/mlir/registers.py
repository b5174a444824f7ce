# SPDX-License-Identifier: Apache-2.0
"""The register map of AIE2 and AIE2P tiles, as far as instruction streams write it: what an address is, what a BD says.

Offsets are bytes from the tile's base; an array address is column << 25 | row << 20 | offset. Facts from the AIE-ML
register database (the one that mlir-aie ships, which it uses for AIE2P too). Fields are (word, lowest bit, bits).
A size field of 0 leaves its dimension without end; step fields hold the step less one, in 32-bit words, and so do
iteration sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from npu.program import Direction, TileId, TileKind

COLUMN_SHIFT, ROW_SHIFT, OFFSET_MASK = 25, 20, 0xFFFFF

Field = tuple[int, int, int]

_LOCKS_BY_CORE = {
    "acquire_id": (5, 0, 4), "acquire_value": (5, 5, 7), "acquire": (5, 12, 1), "release_id": (5, 13, 4),
    "release_value": (5, 18, 7), "valid": (5, 25, 1), "use_next": (5, 26, 1), "next": (5, 27, 4),
    "suppress_tlast": (5, 31, 1),
}  # fmt: skip

FIELDS: dict[TileKind, dict[str, Field]] = {
    TileKind.CORE: {
        "address": (0, 14, 14), "length": (0, 0, 14), "compress": (1, 31, 1), "packet": (1, 30, 1),
        "packet_id": (1, 19, 5), "packet_type": (1, 16, 3), "step1": (2, 13, 13), "step0": (2, 0, 13),
        "size1": (3, 21, 8), "size0": (3, 13, 8), "step2": (3, 0, 13), "iteration": (4, 19, 6),
        "iterations": (4, 13, 6), "iteration_step": (4, 0, 13), **_LOCKS_BY_CORE,
    },
    TileKind.MEMTILE: {
        "packet": (0, 31, 1), "packet_type": (0, 28, 3), "packet_id": (0, 23, 5), "length": (0, 0, 17),
        "before0": (1, 26, 6), "next": (1, 20, 6), "use_next": (1, 19, 1), "address": (1, 0, 19),
        "suppress_tlast": (2, 31, 1), "size0": (2, 17, 10), "step0": (2, 0, 17), "before1": (3, 27, 5),
        "size1": (3, 17, 10), "step1": (3, 0, 17), "compress": (4, 31, 1), "before2": (4, 27, 4), "size2": (4, 17, 10),
        "step2": (4, 0, 17), "after2": (5, 28, 4), "after1": (5, 23, 5), "after0": (5, 17, 6), "step3": (5, 0, 17),
        "iteration": (6, 23, 6), "iterations": (6, 17, 6), "iteration_step": (6, 0, 17), "valid": (7, 31, 1),
        "release_value": (7, 24, 7), "release_id": (7, 16, 8), "acquire": (7, 15, 1), "acquire_value": (7, 8, 7),
        "acquire_id": (7, 0, 8),
    },
    TileKind.SHIM: {
        "length": (0, 0, 32), "packet": (2, 30, 1), "packet_id": (2, 19, 5), "packet_type": (2, 16, 3),
        "size0": (3, 20, 10), "step0": (3, 0, 20), "burst": (4, 30, 2), "size1": (4, 20, 10), "step1": (4, 0, 20),
        "step2": (5, 0, 20), "iteration": (6, 26, 6), "iterations": (6, 20, 6), "iteration_step": (6, 0, 20),
        **{name: (7, low, bits) for name, (_, low, bits) in _LOCKS_BY_CORE.items()},
    },
}  # fmt: skip

BURST_BYTES = (64, 128, 256, 512)


@dataclass(frozen=True)
class Register:
    """What stands at an offset. kind: "memory" (index: byte), "bd" (index, word), "queue" or "channel" (direction,
    index), "lock" (index), "core" (its control register), "watch" (name: what it watches; no value depends on it)."""

    kind: str
    index: int = 0
    word: int = 0
    direction: Direction = Direction.S2MM
    name: str = ""


@dataclass(frozen=True)
class _Map:
    memory_bytes: int
    bd_base: int
    bds: int
    bd_words: int
    channel_base: int
    channels: int
    lock_base: int
    locks: int
    watch: tuple[tuple[int, int, str], ...]  # (first offset, end, what)


def _module(base: int) -> tuple[tuple[int, int, str], ...]:
    """Timer, events, broadcasts and trace of one module; every module lays them out alike."""
    return (
        (base, base + 0x8, "timer"), (base + 0x8, base + 0xC, "events"), (base + 0x10, base + 0xD0, "event broadcast"),
        (base + 0xD0, base + 0xE8, "trace"), (base + 0xF0, base + 0x100, "timer"), (base + 0x100, base + 0x600, "events"),
    )  # fmt: skip


_MAPS = {
    TileKind.CORE: _Map(
        0x10000, 0x1D000, 16, 6, 0x1DE00, 2, 0x1F000, 16,
        (
            (0x11000, 0x11090, "performance counters"), *_module(0x14000), (0x1F100, 0x1F120, "events"),
            (0x31500, 0x31590, "performance counters"), (0x32020, 0x32030, "events"), *_module(0x34000),
            (0x3FF00, 0x3FF08, "events"),
        ),
    ),
    TileKind.MEMTILE: _Map(
        0x80000, 0xA0000, 48, 8, 0xA0600, 6, 0xC0000, 64,
        (
            (0x91000, 0x91090, "performance counters"), *_module(0x94000), (0xA06A0, 0xA06A8, "events"),
            (0xB0F00, 0xB0F08, "events"), (0xC0400, 0xC0420, "events"),
        ),
    ),
    TileKind.SHIM: _Map(
        0, 0x1D000, 16, 8, 0x1D200, 2, 0x14000, 16,
        (
            (0x14100, 0x14120, "events"), (0x31000, 0x31090, "performance counters"), *_module(0x34000),
            (0x3FF00, 0x3FF08, "events"),
        ),
    ),
}  # fmt: skip
CORE_CONTROL = 0x32000


def split(address: int) -> tuple[TileId, int]:
    """Tile and offset of an array address."""
    return TileId(address >> COLUMN_SHIFT & 0x7F, address >> ROW_SHIFT & 0x1F), address & OFFSET_MASK


def register_at(kind: TileKind, offset: int) -> Register | None:
    """The register of a tile at a byte offset (a multiple of 4); None where it is none that the twin knows."""
    map_ = _MAPS[kind]
    if offset < map_.memory_bytes:
        return Register("memory", offset)
    bd, byte = divmod(offset - map_.bd_base, 0x20)
    if 0 <= bd < map_.bds and byte < 4 * map_.bd_words:
        return Register("bd", bd, byte // 4)
    channel, byte = divmod(offset - map_.channel_base, 8)
    if 0 <= channel < 2 * map_.channels:
        direction = Direction.MM2S if channel >= map_.channels else Direction.S2MM
        return Register("queue" if byte else "channel", channel % map_.channels, direction=direction)
    lock, byte = divmod(offset - map_.lock_base, 0x10)
    if 0 <= lock < map_.locks and byte == 0:
        return Register("lock", lock)
    if kind is TileKind.CORE and offset == CORE_CONTROL:
        return Register("core")
    for first, end, name in map_.watch:
        if first <= offset < end:
            return Register("watch", name=name)
    return None


def bd_words(kind: TileKind) -> int:
    """32-bit words of one BD."""
    return _MAPS[kind].bd_words


def bd_offset(kind: TileKind, bd: int) -> int:
    """Where BD number `bd` begins."""
    return _MAPS[kind].bd_base + 0x20 * bd


def bd_count(kind: TileKind) -> int:
    """BDs of one tile."""
    return _MAPS[kind].bds


def decode(kind: TileKind, words: tuple[int, ...]) -> dict[str, int]:
    """The fields of a BD."""
    return {name: words[word] >> low & (1 << bits) - 1 for name, (word, low, bits) in FIELDS[kind].items()}


def encode(kind: TileKind, values: dict[str, int]) -> list[int]:
    """The words of a BD with those fields; what is not named is 0."""
    words = [0] * bd_words(kind)
    for name, value in values.items():
        word, low, bits = FIELDS[kind][name]
        words[word] |= (value & (1 << bits) - 1) << low
    return words


def signed(value: int, bits: int = 7) -> int:
    """A lock value as it stands in a BD."""
    return value - (1 << bits) if value >> bits - 1 else value
