# SPDX-License-Identifier: Apache-2.0
"""Kernels that use the cascade: calls wait for one another in the middle, and a missing partner is told as who waits for whom."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from npu.device import DeviceFault
from npu.mlir.load import load_program
from npu.twin.hostcc import KernelLibrary, compile_kernel
from pipeline.simulation import choose, simulate, to_argument
from pipeline.verbs.simulate import PRELUDE
from tests.npu.others.bench import kernels
from tests.npu.twin.compiled_cases import CACHE

SOURCE = Path(__file__).parent / "cascades.cc"
N = 16  # eight times as many values as the cascade holds
X = np.arange(1, N + 1, dtype=np.int32)
DESIGN = """
module {
aie.device(npu2) {
func.func private @FIRST(memref<16xi32>, i32)
func.func private @add_and_send(i32)
func.func private @LAST(memref<16xi32>, i32)
%s = aie.tile(0, 0)
%a = aie.tile(0, 4)
%b = aie.tile(0, 3)
%c = aie.tile(0, 2)
FLOWS
aie.objectfifo @in(%s, {%a}, 2 : i32) : !aie.objectfifo<memref<16xi32>>
aie.objectfifo @out(%c, {%s}, 2 : i32) : !aie.objectfifo<memref<16xi32>>
%first = aie.core(%a) {
  %n = arith.constant SENT : i32
  %v = aie.objectfifo.acquire @in(Consume, 1) : !aie.objectfifosubview<memref<16xi32>>
  %e = aie.objectfifo.subview.access %v[0] : !aie.objectfifosubview<memref<16xi32>> -> memref<16xi32>
  func.call @FIRST(%e, %n) : (memref<16xi32>, i32) -> ()
  aie.objectfifo.release @in(Consume, 1)
  aie.end
} {link_with = "k.o"}
MIDDLE
%last = aie.core(%c) {
  %n = arith.constant 16 : i32
  %v = aie.objectfifo.acquire @out(Produce, 1) : !aie.objectfifosubview<memref<16xi32>>
  %e = aie.objectfifo.subview.access %v[0] : !aie.objectfifosubview<memref<16xi32>> -> memref<16xi32>
  func.call @LAST(%e, %n) : (memref<16xi32>, i32) -> ()
  aie.objectfifo.release @out(Produce, 1)
  aie.end
} {link_with = "k.o"}
aie.runtime_sequence(%x : memref<16xi32>, %y : memref<16xi32>) {
  aiex.npu.dma_memcpy_nd(%x[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1]) {id = 0 : i64, metadata = @in} : memref<16xi32>
  aiex.npu.dma_memcpy_nd(%y[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1]) {id = 1 : i64, metadata = @out} : memref<16xi32>
  aiex.npu.dma_wait {symbol = @out}
}
}
}
"""
MIDDLE = """%middle = aie.core(%b) {
  %n = arith.constant 16 : i32
  func.call @add_and_send(%n) : (i32) -> ()
  aie.end
} {link_with = "k.o"}"""
THREE = "aie.cascade_flow(%a, %b)\naie.cascade_flow(%b, %c)"


def ran(tmp_path: Path, **parts: str) -> np.ndarray:
    text = DESIGN
    for name, value in (
        {"FIRST": "send_sums", "LAST": "take_sums", "SENT": "16", "FLOWS": THREE, "MIDDLE": MIDDLE} | parts
    ).items():
        text = text.replace(name, value)
    program = load_program(text)
    device, sequence = choose(program, None, None)
    library = KernelLibrary(compile_kernel(SOURCE, {}, cache=CACHE, flags=("-O1",), prelude=PRELUDE))
    inputs = {0: to_argument(X, sequence.arguments[0], "test")[0]}
    return simulate(program, device, sequence, {"k.o": library}, inputs, [1], tmp_path).outputs[1].view(np.int32)


def test_sums_go_through_three_cores_in_order(tmp_path: Path) -> None:
    assert (ran(tmp_path) == X * X + 1000).all()


def test_a_register_of_1024_bits_is_two_values(tmp_path: Path) -> None:
    # core (0,4) writes to the south, (0,3): the last core stands there
    parts = {
        "FIRST": "send_wide", "LAST": "take_wide", "FLOWS": "aie.cascade_flow(%a, %c)", "MIDDLE": "",
        "aie.tile(0, 4)": "aie.tile(0, 3)", "%b = aie.tile(0, 3)\n": "",
    }  # fmt: skip
    assert (ran(tmp_path, **parts) == X).all()


def test_a_partner_that_sends_too_little_is_a_wait_graph_and_no_thread_stays(tmp_path: Path) -> None:
    before = threading.enumerate()
    with pytest.raises(DeviceFault, match=r"waits for a value of the cascade core\(0,3\) -> core\(0,2\)") as caught:
        ran(tmp_path, SENT="15")
    assert "core(0,3) waits for a value of the cascade core(0,4) -> core(0,3)" in str(caught.value)
    assert threading.enumerate() == before


def test_a_cascade_that_is_not_connected_is_a_fault_of_the_kernel(tmp_path: Path) -> None:
    with pytest.raises(DeviceFault, match=r"core\(0,2\), kernel take_sums: .*no aie\.cascade_flow leads into its core"):
        ran(tmp_path, FLOWS="aie.cascade_flow(%a, %b)")


def test_without_any_cascade_flow_each_core_sends_to_its_southern_neighbour(tmp_path: Path) -> None:
    """What the array does after a reset, and what designs rely on that say nothing of it."""
    assert (ran(tmp_path, FLOWS="") == X * X + 1000).all()


def test_a_core_without_a_northern_neighbour_has_nothing_to_take(tmp_path: Path) -> None:
    parts = {"FLOWS": "", "aie.tile(0, 4)": "aie.tile(1, 4)", "MIDDLE": ""}
    with pytest.raises(DeviceFault, match=r"core\(0,2\), kernel take_sums: .*no aie\.cascade_flow leads into its core"):
        ran(tmp_path, **parts)


def test_a_library_says_whether_it_uses_the_cascade() -> None:
    assert KernelLibrary(compile_kernel(SOURCE, {}, cache=CACHE, flags=("-O1",), prelude=PRELUDE)).uses_cascade
    assert not kernels().uses_cascade
