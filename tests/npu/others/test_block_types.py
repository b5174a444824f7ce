# SPDX-License-Identifier: Apache-2.0
"""Texts whose elements are blocks of bfp16ebs8, before and after mlir-aie has made integers of 72 bits of them; and shuffles."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from npu.legality import check
from npu.mlir.load import load_program
from npu.twin.hostcc import CoreState, KernelLibrary, compile_kernel
from pipeline.simulation import choose, simulate, to_argument
from pipeline.verbs.simulate import PRELUDE
from refusal import Refusal
from tests.npu.twin.compiled_cases import CACHE

SOURCE = Path(__file__).parent / "blocks.cc"
RNG = np.random.default_rng(3)
BLOCK = '!aiex.bfp<"v8bfp16ebs8">'


def library() -> KernelLibrary:
    return KernelLibrary(compile_kernel(SOURCE, {}, cache=CACHE, flags=("-O1",), prelude=PRELUDE))


def text(kernel: str, inputs: list[str], output: str, per_call: int) -> str:
    """shim -> core -> shim, one kernel call: one FIFO for each operand."""
    kinds = [*inputs, output]
    names = [f"of{i}" for i in range(len(kinds))]
    fifos, takes, gives, moves = [], [], [], []
    for number, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        ends = "%c, {%s}" if kind is kinds[-1] and number == len(inputs) else "%s, {%c}"
        port = "Produce" if number == len(inputs) else "Consume"
        fifos.append(f"aie.objectfifo @{name}({ends}, 2 : i32) : !aie.objectfifo<{kind}>")
        takes.append(
            f"%v{number} = aie.objectfifo.acquire @{name}({port}, 1) : !aie.objectfifosubview<{kind}>\n"
            f"%e{number} = aie.objectfifo.subview.access %v{number}[0] : !aie.objectfifosubview<{kind}> -> {kind}"
        )
        gives.append(f"aie.objectfifo.release @{name}({port}, 1)")
        count = re.match(r"memref<(\d+)x", kind)[1]
        moves.append(
            f"aiex.npu.dma_memcpy_nd(%a{number}[0, 0, 0, 0][1, 1, 1, {count}][0, 0, 0, 1]) "
            f"{{id = {number} : i64, metadata = @{name}}} : {kind}"
        )
    declared = ", ".join(kinds)
    values = ", ".join(f"%e{i}" for i in range(len(kinds)))
    arguments = ", ".join(f"%a{i} : {kind}" for i, kind in enumerate(kinds))
    return "\n".join([
        "module {\naie.device(npu2) {", f"func.func private @{kernel}({declared})", "%s = aie.tile(0, 0)\n%c = aie.tile(0, 2)",
        *fifos, "%core = aie.core(%c) {", *takes, f"func.call @{kernel}({values}) : ({declared}) -> ()", *gives,
        'aie.end\n} {link_with = "k.o"}', f"aie.runtime_sequence({arguments}) {{", *moves,
        f"aiex.npu.dma_wait {{symbol = @{names[-1]}}}\n}}\n}}\n}}",
    ])  # fmt: skip


def ran(module: str, tmp_path: Path, *arrays: np.ndarray) -> np.ndarray:
    program = load_program(module)
    assert check(program) == []
    device, sequence = choose(program, None, None)
    inputs = {i: to_argument(a, sequence.arguments[i], "test")[0] for i, a in enumerate(arrays)}
    outcome = simulate(program, device, sequence, {"k.o": library()}, inputs, [len(arrays)], tmp_path)
    return outcome.outputs[len(arrays)]


@pytest.mark.parametrize("element", [BLOCK, "i72"])
def test_blocks_pass_through_byte_for_byte(element: str, tmp_path: Path) -> None:
    kind = f"memref<16x{element}>"
    blocks = RNG.integers(0, 256, (16, 9), np.uint8)
    assert (ran(text("pass_blocks", [kind], kind, 16), tmp_path, blocks) == blocks.reshape(-1)).all()


def test_a_product_of_blocks_is_what_their_values_give(tmp_path: Path) -> None:
    """A block is an exponent and eight significands: value i is significand[i] * 2 ** (exponent - 127) / 64."""
    kind = f"memref<8x{BLOCK}>"
    significands = RNG.integers(-127, 128, (2, 8, 8)).astype(np.int8)
    exponents = RNG.integers(125, 131, (2, 8), np.uint8)
    blocks = np.concatenate([exponents[..., None], significands.view(np.uint8)], axis=2)
    values = significands * np.exp2(exponents.astype(float) - 127)[..., None] / 64
    out = ran(text("multiply_blocks", [kind, kind], "memref<64xf32>", 8), tmp_path, *blocks)
    # sums of eight products of 7-bit numbers within 2**10 of one another are exact in fp32
    assert (out.view(np.float32).reshape(8, 8) == values[0] @ values[1].T).all()


@pytest.mark.parametrize(("element", "nbytes"), [(BLOCK, 9), ('!aiex.bfp<"v16bfp16ebs16">', 17), ("i136", 17)])
def test_a_block_has_a_byte_for_each_significand_and_one_for_the_exponent(element: str, nbytes: int) -> None:
    program = load_program(text("pass_blocks", [f"memref<16x{element}>"], f"memref<16x{element}>", 16))
    assert {buffer.type.nbytes for buffer in program.devices[0].buffers} == {16 * nbytes}


def test_a_transfer_that_ends_within_a_word_is_found() -> None:
    kind = f"memref<7x{BLOCK}>"
    assert "4-byte granularity" in {v.limit for v in check(load_program(text("pass_blocks", [kind], kind, 7)))}


def test_another_kind_of_block_is_refused_by_name() -> None:
    kind = 'memref<16x!aiex.bfp<"v32bfp16ebz8">>'
    with pytest.raises(Refusal, match="v32bfp16ebz8"):
        load_program(text("pass_blocks", [kind], kind, 16))


def test_an_array_of_another_size_is_refused_with_what_a_block_is() -> None:
    declared = load_program(text("pass_blocks", [f"memref<16x{BLOCK}>"] * 1, f"memref<16x{BLOCK}>", 16))
    with pytest.raises(Refusal, match="as uint8: blocks of an exponent and 8 significands"):
        to_argument(np.zeros(128, np.float32), declared.devices[0].sequences[0].arguments[0], "test")


def test_every_shuffle_is_the_transpose_that_its_name_says() -> None:
    names = re.findall(r"T(\d+)_(\d+)x(\d+)(_lo|_hi)?", SOURCE.read_text())
    data = np.arange(128, dtype=np.uint8)
    raw = np.zeros(64 * (len(names) + 1) + 64, np.uint8)
    source = np.zeros(128 + 64, np.uint8)
    given, out = (array[-array.ctypes.data % 64 :] for array in (source, raw))
    given[:128] = data
    library().call("shuffle_modes", CoreState(), given.ctypes.data, out.ctypes.data)
    for number, (bits, rows, columns, half) in enumerate(names):
        size = int(bits) // 8
        register = data if half else data[:64]
        transposed = register.reshape(int(rows), int(columns), size).transpose(1, 0, 2).reshape(-1)
        expected = transposed[64:128] if half == "_hi" else transposed[:64]
        assert (out[64 * number : 64 * number + 64] == expected).all(), names[number]
    assert len(names) == 40
