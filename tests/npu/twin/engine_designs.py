# SPDX-License-Identifier: Apache-2.0
"""Small designs as MLIR-AIE text, and the kernels that they call, for the tests of the twin's engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from npu.mlir.load import load_program
from npu.program import Program
from npu.twin.device import TwinDevice, TwinSession
from npu.twin.hostcc import KernelLibrary, compile_kernel
from tests.npu.twin.compiled_cases import CACHE, CASES

KERNELS = CASES / "engine.cc"


def library(**defines: str) -> KernelLibrary:
    """The kernels of cases/engine.cc: add_one, sum_two, scale_by, overrun, ..."""
    return KernelLibrary(compile_kernel(KERNELS, defines, cache=CACHE, flags=("-O1",)))


def session(
    text: str | Program, cache: Path, *, tier: str = "event", threads: int = 2, entry: str = "main", **defines: str
) -> TwinSession:
    """A session of `text` whose functions link with "k.o"."""
    program = load_program(text) if isinstance(text, str) else text
    kernels = cache / "kernels"
    if not kernels.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        kernels.symlink_to(CACHE)  # the replayer is compiled once for all tests
    device = TwinDevice(cache, tier=tier, threads=threads)
    return device.open_program(program, entry, {"k.o": library(**defines)})


def run(opened: TwinSession, inputs: list[np.ndarray], output: np.ndarray, entry: str = "seq") -> np.ndarray:
    """Write the inputs, run once, read an output shaped like `output`."""
    names = [f"in{i}" for i in range(len(inputs))] + ["out"]
    opened.bind(entry, dict(enumerate(names)))
    for name, array in zip(names, [*inputs, output], strict=True):
        opened.allocate(name, array.nbytes)
    for name, array in zip(names, inputs, strict=False):
        opened.write(name, 0, array)
    opened.run(entry)
    return opened.read("out", 0, output.shape, output.dtype)


def module(*parts: str) -> str:
    """One device @main for npu2."""
    return "module {\n aie.device(npu2) @main {\n" + "\n".join(parts) + "\n }\n}\n"


TILES = "%s = aie.tile(0, 0)\n%m = aie.tile(0, 1)\n%c = aie.tile(0, 2)"


def fifo(name: str, source: str, dests: str, elements: int, depth: int = 2, dims: str = "", after: str = "") -> str:
    """aie.objectfifo of i32 elements."""
    ends = ", ".join(f"%{dest}{after}" for dest in dests.split())
    dims = f" {dims}" if dims else ""
    return (
        f"aie.objectfifo @{name}(%{source}{dims}, {{{ends}}}, {depth} : i32) : !aie.objectfifo<memref<{elements}xi32>>"
    )


def task(value: str, on: str, argument: str, total: int, bd: str = "", attributes: str = "") -> str:
    """dma_configure_task_for @on with one BD on %argument (memref<total x i32>)."""
    bd = bd or f"0, {total}"
    attributes = f" {{{attributes}}}" if attributes else ""
    return (
        f"%{value} = aiex.dma_configure_task_for @{on} {{\n aie.dma_bd(%{argument} : memref<{total}xi32>, {bd})\n"
        f" aie.end\n}}{attributes}"
    )


TOKEN = "issue_token = true"


def start(*values: str) -> str:
    return "\n".join(f"aiex.dma_start_task(%{value})" for value in values)


def wait(*values: str) -> str:
    return "\n".join(f"aiex.dma_await_task(%{value})" for value in values)


def free(*values: str) -> str:
    return "\n".join(f"aiex.dma_free_task(%{value})" for value in values)


def sequence(arguments: list[int], *body: str, name: str = "seq") -> str:
    """aie.runtime_sequence over i32 arguments %a, %b, %c, ..."""
    types = ", ".join(f"%{'abcdefgh'[i]} : memref<{n}xi32>" for i, n in enumerate(arguments))
    return f"aie.runtime_sequence @{name}({types}) {{\n" + "\n".join(body) + "\n}"


def function(name: str, *types: str) -> str:
    return f'func.func private @{name}({", ".join(types)}) attributes {{link_with = "k.o"}}'


CONSTANTS = (
    "%c0 = arith.constant 0 : index\n%c1 = arith.constant 1 : index\n%c4 = arith.constant 4 : index\n"
    "%big = arith.constant 9223372036854775807 : index"
)


def acquire(value: str, name: str, port: str, elements: int, count: int = 1) -> str:
    """Acquire `count` elements; element i is %value<letter i>, the first also without a letter."""
    view = f"!aie.objectfifosubview<memref<{elements}xi32>>"
    lines = [f"%view_{value} = aie.objectfifo.acquire @{name}({port}, {count}) : {view}"]
    for i in range(count):
        suffix = "" if i == 0 else "abcdefgh"[i]
        lines.append(
            f"%{value}{suffix} = aie.objectfifo.subview.access %view_{value}[{i}] : {view} -> memref<{elements}xi32>"
        )
    return "\n".join(lines)


def release(name: str, port: str, count: int = 1) -> str:
    return f"aie.objectfifo.release @{name}({port}, {count})"


def core(tile: str, *body: str, endless: bool = True) -> str:
    """aie.core; the body is looped without end unless told otherwise."""
    inner = "\n".join(body)
    if endless:
        inner = f"scf.for %round = %c0 to %big step %c1 {{\n{inner}\n}}"
    return f"%core_{tile} = aie.core(%{tile}) {{\n{CONSTANTS}\n{inner}\naie.end\n}}"


def map_core(tile: str, kernel: str, source: str, dest: str, elements: int) -> str:
    """A core that calls kernel(in, out, elements) for each element of `source`."""
    kind = f"memref<{elements}xi32>"
    return core(
        tile,
        f"%n = arith.constant {elements} : i32",
        acquire("x", source, "Consume", elements),
        acquire("y", dest, "Produce", elements),
        f"func.call @{kernel}(%x, %y, %n) : ({kind}, {kind}, i32) -> ()",
        release(source, "Consume"),
        release(dest, "Produce"),
    )


def map_design(kernel: str = "add_one", elements: int = 16, total: int = 128, declared: int | None = None) -> str:
    """shim -> core -> shim: out = kernel(in), `elements` at a time."""
    kind = f"memref<{declared or elements}xi32>"
    return module(
        function(kernel, kind, kind, "i32"),
        TILES,
        fifo("of_in", "s", "c", elements),
        fifo("of_out", "c", "s", elements),
        map_core("c", kernel, "of_in", "of_out", elements),
        sequence(
            [total, total],
            task("t", "of_in", "a", total),
            task("u", "of_out", "b", total, attributes=TOKEN),
            start("t", "u"),
            wait("u"),
            free("t"),
        ),
    )
