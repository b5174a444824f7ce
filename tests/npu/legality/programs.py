# SPDX-License-Identifier: Apache-2.0
"""Small programs for the legality tests: a legal design, and parts to build illegal ones from.

The legal design is the smallest that has everything: shim -> memtile -> core -> memtile -> shim, FIFOs
of two elements of 256 x i32 (1024 bytes), one sequence that moves four elements in and out.
"""

from __future__ import annotations

from dataclasses import replace

from npu.legality import Severity, Violation, check
from npu.program import (
    AwaitTask,
    Buffer,
    BufferDescriptor,
    Channel,
    ConfigureTask,
    Core,
    DeviceProgram,
    Dim,
    Direction,
    DmaProgram,
    FreeTask,
    Instruction,
    Lock,
    MemRef,
    Program,
    Route,
    Sequence,
    StartTask,
    TileId,
)

SHIM, MEMTILE, CORE = TileId(0, 0), TileId(0, 1), TileId(0, 2)
S2MM, MM2S = Direction.S2MM, Direction.MM2S
ELEMENT = MemRef((256,), "i32")
ARGUMENT = MemRef((4096,), "i32")


def into(tile: TileId, index: int = 0) -> Channel:
    return Channel(tile, S2MM, index)


def out_of(tile: TileId, index: int = 0) -> Channel:
    return Channel(tile, MM2S, index)


def pool(name: str, tile: TileId, depth: int = 2, type: MemRef = ELEMENT) -> tuple[Buffer, ...]:
    return tuple(Buffer(f"{name}_buff_{n}", tile, type, fifo=name) for n in range(depth))


def ring(channel: Channel, buffers: tuple[Buffer, ...], **bd: object) -> DmaProgram:
    """An endless ring, one whole-element descriptor per buffer."""
    count = len(buffers)
    bds = tuple(
        BufferDescriptor(
            **{
                "element_bytes": b.type.element_bytes,
                "offset": 0,
                "length": b.type.elements,
                "buffer": b.name,
                "next": (n + 1) % count,
                **bd,
            }  # type: ignore[arg-type]
        )
        for n, b in enumerate(buffers)
    )
    return DmaProgram(channel, bds)


def transfer(length: int = 1024, argument: int = 0, element_bytes: int = 4, **bd: object) -> BufferDescriptor:
    """A shim descriptor of `length` elements."""
    return BufferDescriptor(
        **{"element_bytes": element_bytes, "offset": 0, "length": length, "argument": argument, **bd}
    )  # type: ignore[arg-type]


def task(number: int, channel: Channel, *bds: BufferDescriptor, **more: object) -> ConfigureTask:
    """A task with a token; `issue_token=False` in `more` takes it away."""
    return ConfigureTask(**{"task": number, "channel": channel, "bds": bds, "issue_token": True, **more})  # type: ignore[arg-type]


def feed(number: int, channel: Channel, *bds: BufferDescriptor, **more: object) -> tuple[Instruction, ...]:
    """Configure and start."""
    return task(number, channel, *bds, **more), StartTask(number)


def design(**parts: object) -> DeviceProgram:
    """The legal design, with `parts` of it replaced."""
    a_mem, a_core = pool("a_mem", MEMTILE), pool("a_core", CORE)
    c_core, c_mem = pool("c_core", CORE), pool("c_mem", MEMTILE)
    whole = DeviceProgram(
        name="main",
        target="npu2",
        tiles=(SHIM, MEMTILE, CORE),
        buffers=(*a_mem, *a_core, *c_core, *c_mem),
        locks=tuple(
            Lock(f"{p}_{end}", tile, None, init)
            for p, tile in (("a_mem", MEMTILE), ("a_core", CORE), ("c_core", CORE), ("c_mem", MEMTILE))
            for end, init in (("prod", 2), ("cons", 0))
        ),
        dmas=(
            ring(into(MEMTILE, 0), a_mem),
            ring(out_of(MEMTILE, 0), a_mem),
            ring(into(CORE, 0), a_core),
            ring(out_of(CORE, 0), c_core),
            ring(into(MEMTILE, 1), c_mem),
            ring(out_of(MEMTILE, 1), c_mem),
        ),
        routes=(
            Route(out_of(SHIM), (into(MEMTILE, 0),), name="a"),
            Route(out_of(MEMTILE, 0), (into(CORE, 0),), name="a_core"),
            Route(out_of(CORE, 0), (into(MEMTILE, 1),), name="c_core"),
            Route(out_of(MEMTILE, 1), (into(SHIM),), name="c"),
        ),
        cores=(Core(CORE, body=()),),
        sequences=(sequence(*one_round()),),
    )
    return replace(whole, **parts)  # type: ignore[arg-type]


def one_round(first: int = 0, elements: int = 1024, output: int = 1) -> tuple[Instruction, ...]:
    """In, out, await out, free in; tasks `first` and `first` + 1."""
    return (
        *feed(first, out_of(SHIM), transfer(elements), issue_token=False),
        *feed(first + 1, into(SHIM), transfer(elements, argument=output)),
        AwaitTask(first + 1),
        FreeTask(first),
    )


def sequence(
    *instructions: Instruction, name: str = "sequence", arguments: tuple[MemRef, ...] | None = None
) -> Sequence:
    return Sequence(name, arguments or (ARGUMENT, ARGUMENT), instructions)


def program(*devices: DeviceProgram, spelling: str = "2026-03") -> Program:
    return Program(devices or (design(),), text_sha256="0" * 64, spelling=spelling)


def findings(device: DeviceProgram | Program, severity: Severity | None = None) -> list[Violation]:
    """What check says of a device or a program, of one severity if asked."""
    whole = device if isinstance(device, Program) else program(device)
    return [v for v in check(whole) if severity in (None, v.severity)]


def limits(device: DeviceProgram | Program, severity: Severity | None = None) -> list[str]:
    """Names of the limits found, in order, each once."""
    return list(dict.fromkeys(v.limit for v in findings(device, severity)))


def with_task(*bds: BufferDescriptor, arguments: tuple[MemRef, ...] | None = None, **more: object) -> DeviceProgram:
    """The legal design with its sequence replaced by one that configures, but does not start, one input task."""
    return design(sequences=(sequence(task(0, out_of(SHIM), *bds, **more), arguments=arguments),))


def shim_dims(*dims: tuple[int, int], element_bytes: int = 4, **bd: object) -> BufferDescriptor:
    """A shim descriptor with (size, stride) dims, outermost first, and the length they multiply to."""
    length = 1
    for size, _ in dims:
        length *= size
    return transfer(length, element_bytes=element_bytes, dims=tuple(Dim(*d) for d in dims), **bd)
