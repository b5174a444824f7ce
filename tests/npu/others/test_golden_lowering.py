# SPDX-License-Identifier: Apache-2.0
"""Our object-FIFO lowering against modules lowered by hand from the documented rules, and against aie-opt itself.

The golden modules state BDs, locks, channels and buffer bytes as AIEOps.td and the documentation of the pass describe
them; names differ, so what is compared is the structure. With `aie-opt` on the PATH its output is loaded and compared
and run the same way; without it those tests are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter

import numpy as np
import pytest

from npu.mlir.load import load_program
from npu.program import DeviceProgram
from tests.npu.others.bench import run
from tests.npu.others.test_kernel_designs import ROWWISE, SIZE, matmul, rows, rowwise

PASSES = (
    "builtin.module(aie.device(aie-assign-lock-ids,aie-register-objectFifos,aie-objectFifo-stateful-transform,"
    "aie-assign-bd-ids,aie-assign-buffer-addresses,aie-assign-core-link-files),convert-scf-to-cf)"
)


def structure(device: DeviceProgram) -> dict[str, object]:
    """What the hardware gets, without names: bytes, initial locks, and per channel the ring in terms of both."""
    index = {lock.name: (lock.tile, lock.id) for lock in device.locks}
    size = {buffer.name: (buffer.tile, buffer.type.nbytes) for buffer in device.buffers}

    def use(lock_use):
        return None if lock_use is None else (index[lock_use.lock], lock_use.value)

    def bd(each):
        moved = (each.offset * each.element_bytes, each.length * each.element_bytes, each.dims)
        return (size[each.buffer], moved, use(each.acquire), use(each.release), each.next, each.bd_id)

    return {
        "buffers": Counter(size.values()),
        "locks": {index[lock.name]: lock.init for lock in device.locks if lock.tile.row},
        "channels": {dma.channel: (tuple(bd(each) for each in dma.bds), dma.repeat_count) for dma in device.dmas},
        "routes": {(route.source, frozenset(route.dests)) for route in device.routes},
    }


FIFO = "!aie.objectfifo<memref<16xi32>>"
VIEW = "!aie.objectfifosubview<memref<16xi32>>"
TILES = "%s = aie.tile(0, 0)\n%m = aie.tile(0, 1)\n%t = aie.tile(0, 2)\n"


def core(*acquires: tuple[str, str, int]) -> str:
    held = "".join(
        f"%v{i} = aie.objectfifo.acquire @{fifo}({port}, {count}) : {VIEW}\n"
        f"aie.objectfifo.release @{fifo}({port}, {count})\n"
        for i, (fifo, port, count) in enumerate(acquires)
    )
    return f"%core = aie.core(%t) {{\n{held}aie.end\n}}\n"


def buffers(tile: str, name: str, count: int, elements: int = 16) -> str:
    return "".join(f'%{name}{i} = aie.buffer(%{tile}) {{sym_name = "{name}{i}"}} : memref<{elements}xi32>\n'
                   for i in range(count))  # fmt: skip


def locks(tile: str, name: str, first: int, free: int) -> str:
    return (f'%{name}f = aie.lock(%{tile}, {first}) {{init = {free} : i32, sym_name = "{name}f"}}\n'
            f'%{name}c = aie.lock(%{tile}, {first + 1}) {{init = 0 : i32, sym_name = "{name}c"}}\n')  # fmt: skip


def bd(label: str, after: str, name: str, number: int, lock: tuple[str, str], count: int = 1, elements: int = 16,
       where: str = "0, 16", dims: str = "") -> str:  # fmt: skip
    return (f"^{label}:\naie.use_lock(%{lock[0]}, AcquireGreaterEqual, {count})\n"
            f"aie.dma_bd(%{name}{number} : memref<{elements}xi32>, {where}{dims})\n"
            f"aie.use_lock(%{lock[1]}, Release, {count})\naie.next_bd ^{after}\n")  # fmt: skip


GOLDEN = {
    "shim to core, two elements": (
        f"aie.objectfifo @f(%s, {{%t}}, 2 : i32) : {FIFO}\n" + core(("f", "Consume", 1)),
        buffers("t", "b", 2) + locks("t", "b", 0, 2) + "aie.flow(%s, DMA : 0, %t, DMA : 0)\n%mem = aie.mem(%t) {\n"
        "%a = aie.dma_start(S2MM, 0, ^x, ^end)\n" + bd("x", "y", "b", 0, ("bf", "bc")) + bd("y", "x", "b", 1, ("bf", "bc"))
        + "^end:\naie.end\n}\n",
    ),
    "core to shim with a layout and a core that holds two": (
        f"aie.objectfifo @f(%t dimensionsToStream [<size = 4, stride = 1>, <size = 4, stride = 4>], {{%s}}, 2 : i32) : {FIFO}\n"
        + core(("f", "Produce", 2)),
        buffers("t", "b", 3) + locks("t", "b", 0, 3) + "aie.flow(%t, DMA : 0, %s, DMA : 0)\n%mem = aie.mem(%t) {\n"
        "%a = aie.dma_start(MM2S, 0, ^x, ^end)\n"
        + "".join(bd(label, after, "b", i, ("bc", "bf"), dims=", [<size = 4, stride = 1>, <size = 4, stride = 4>]")
                  for i, (label, after) in enumerate((("x", "y"), ("y", "z"), ("z", "x"))))
        + "^end:\naie.end\n}\n",
    ),
    "a distribute through a memtile": (
        "aie.objectfifo @w(%s, {%m}, 2 : i32) : !aie.objectfifo<memref<32xi32>>\n"
        f"aie.objectfifo @p(%m, {{%t}}, 2 : i32) : {FIFO}\naie.objectfifo @q(%m, {{%t}}, 2 : i32) : {FIFO}\n"
        "aie.objectfifo.link [@w] -> [@p, @q]([] [0, 16])\n" + core(("p", "Consume", 1), ("q", "Consume", 1)),
        buffers("m", "w", 2, 32) + locks("m", "wp", 0, 2) + locks("m", "wq", 2, 2) + buffers("t", "p", 2)
        + buffers("t", "q", 2) + locks("t", "p", 0, 2) + locks("t", "q", 2, 2)
        + "aie.flow(%s, DMA : 0, %m, DMA : 0)\naie.flow(%m, DMA : 0, %t, DMA : 0)\naie.flow(%m, DMA : 1, %t, DMA : 1)\n"
        "%md = aie.memtile_dma(%m) {\n%a = aie.dma_start(S2MM, 0, ^i0, ^s1)\n"
        + "".join(bd(f"i{2 * e + h}", f"i{(2 * e + h + 1) % 4}", "w", e, (f"w{'pq'[h]}f", f"w{'pq'[h]}c"), elements=32,
                     where=f"{16 * h}, 16") for e in range(2) for h in range(2))
        + "^s1:\n%b = aie.dma_start(MM2S, 0, ^p0, ^s2)\n"
        + "".join(bd(f"p{e}", f"p{1 - e}", "w", e, ("wpc", "wpf"), elements=32) for e in range(2))
        + "^s2:\n%c = aie.dma_start(MM2S, 1, ^q0, ^end)\n"
        + "".join(bd(f"q{e}", f"q{1 - e}", "w", e, ("wqc", "wqf"), elements=32, where="16, 16") for e in range(2))
        + "^end:\naie.end\n}\n%mem = aie.mem(%t) {\n%a = aie.dma_start(S2MM, 0, ^x0, ^s1)\n"
        + "".join(bd(f"x{e}", f"x{1 - e}", "p", e, ("pf", "pc")) for e in range(2))
        + "^s1:\n%b = aie.dma_start(S2MM, 1, ^y0, ^end)\n"
        + "".join(bd(f"y{e}", f"y{1 - e}", "q", e, ("qf", "qc")) for e in range(2))
        + "^end:\naie.end\n}\n",
    ),
    "a link that repeats each element three times": (
        f"aie.objectfifo @i(%s, {{%m}}, 1 : i32) : {FIFO}\n"
        f"aie.objectfifo @o(%m, {{%t}}, [1, 2]) {{repeat_count = 3 : i32}} : {FIFO}\n"
        "aie.objectfifo.link [@i] -> [@o]([] [])\n" + core(("o", "Consume", 1)),
        buffers("m", "i", 1) + locks("m", "i", 0, 3) + buffers("t", "o", 2) + locks("t", "o", 0, 2)
        + "aie.flow(%s, DMA : 0, %m, DMA : 0)\naie.flow(%m, DMA : 0, %t, DMA : 0)\n"
        "%md = aie.memtile_dma(%m) {\n%a = aie.dma_start(S2MM, 0, ^i0, ^s1)\n" + bd("i0", "i0", "i", 0, ("if", "ic"), 3)
        + "^s1:\n%b = aie.dma_start(MM2S, 0, ^o0, ^end)\n"
        + "".join(bd(f"o{n}", f"o{(n + 1) % 3}", "i", 0, ("ic", "if")) for n in range(3))
        + "^end:\naie.end\n}\n%mem = aie.mem(%t) {\n%a = aie.dma_start(S2MM, 0, ^x0, ^end)\n"
        + "".join(bd(f"x{e}", f"x{1 - e}", "o", e, ("of", "oc")) for e in range(2))
        + "^end:\naie.end\n}\n",
    ),
}  # fmt: skip


def module(body: str) -> str:
    return f"module {{\naie.device(npu2) {{\n{TILES}{body}}}\n}}\n"


@pytest.mark.parametrize("name", GOLDEN)
def test_lowering_gives_the_golden_structure(name: str) -> None:
    fifos, golden = GOLDEN[name]
    ours, by_hand = (structure(load_program(module(body)).devices[0]) for body in (fifos, golden))
    assert ours == by_hand


def test_a_changed_golden_is_seen() -> None:
    fifos, golden = GOLDEN["shim to core, two elements"]
    wrong = golden.replace("init = 2", "init = 1")
    assert structure(load_program(module(fifos)).devices[0]) != structure(load_program(module(wrong)).devices[0])


def lowered_by_aie_opt(text: str) -> str:
    tool = shutil.which("aie-opt")
    if tool is None:
        pytest.skip("aie-opt is not on the PATH")
    done = subprocess.run([tool, f"--pass-pipeline={PASSES}"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", GOLDEN)
def test_aie_opt_gives_the_golden_structure_too(name: str) -> None:
    fifos, golden = GOLDEN[name]
    by_tool = structure(load_program(lowered_by_aie_opt(module(fifos))).devices[0])
    assert by_tool == structure(load_program(module(golden)).devices[0])


@pytest.mark.parametrize("kernel", ["silu_bf16", "rope_bf16"])
def test_a_module_lowered_by_aie_opt_gives_the_same_values(kernel: str, tmp_path) -> None:
    count = ROWWISE[kernel][0]
    text = rowwise(kernel, [(SIZE, "bf16")] * count, (SIZE, "bf16"))
    lowered = lowered_by_aie_opt(text)
    inputs = [rows(seed) for seed in range(count)]
    (ours,), _ = run(text, *inputs, cache_=tmp_path)
    (theirs,), _ = run(lowered, *inputs, cache_=tmp_path)
    assert (ours == theirs).all()


def test_a_matrix_multiply_lowered_by_aie_opt_gives_the_same_values(tmp_path) -> None:
    text = matmul("i8", "i32", "zero_i32", "matmul_i8", 32, 64, 32, (16, 32, 16))
    lowered = lowered_by_aie_opt(text)
    assert (
        structure(load_program(text).devices[0])["channels"] == structure(load_program(lowered).devices[0])["channels"]
    )
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((32, 64), (64, 32)))
    tiles = (("DIM_M", "16"), ("DIM_K", "32"), ("DIM_N", "16"))
    (ours,), _ = run(text, a, b, cache_=tmp_path, defines=tiles)
    (theirs,), _ = run(lowered, a, b, cache_=tmp_path, defines=tiles)
    assert (ours == theirs).all()
