# SPDX-License-Identifier: Apache-2.0
"""Designs that ask for what an array does not have or leaves undefined: refused or a fault, by place, and never a traceback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npu.device import DeviceFault
from npu.legality.check import check
from npu.mlir.load import load_program
from refusal import Refusal
from tests.npu.others.bench import run
from tests.npu.others.test_explicit_designs import ADD, EACH, X, design

STORE = "%v = memref.load %in[%i] : memref<16xi32>\n{}\nmemref.store %w, %out[%i] : memref<16xi32>\n}}"


def computed(operation: str) -> str:
    """Each element is what the operation gives for %v."""
    return design(EACH + STORE.format(operation))


def vectors(operation: str) -> str:
    return design(
        "%zeros = arith.constant dense<0> : vector<16xi32>\n%many = arith.constant dense<32> : vector<16xi32>\n"
        "%v = vector.load %in[%c0] : memref<16xi32>, vector<16xi32>\n"
        f"{operation}\nvector.store %w, %out[%c0] : memref<16xi32>, vector<16xi32>"
    )


UNDEFINED = {
    "quotient by zero": (computed("%w = arith.divsi %v, %zero : i32"), "divides by zero"),
    "unsigned remainder by zero": (computed("%w = arith.remui %v, %zero : i32"), "divides by zero"),
    "ceiling of a quotient by zero": (computed("%w = arith.ceildivsi %v, %zero : i32"), "divides by zero"),
    "quotient that does not fit": (
        computed(
            "%a1 = arith.constant -2147483648 : i32\n%b1 = arith.constant -1 : i32\n%w = arith.divsi %a1, %b1 : i32"
        ),
        "divides -2147483648 by -1",
    ),
    "shift by the width": (
        computed("%k = arith.constant 32 : i32\n%w = arith.shli %v, %k : i32"),
        "shifts 32 bits by 32",
    ),
    "shift backwards": (
        computed("%k = arith.constant -1 : i32\n%w = arith.shrsi %v, %k : i32"),
        "shifts 32 bits by -1",
    ),
    "shift of a vector": (vectors("%w = arith.shli %v, %many : vector<16xi32>"), "shifts a vector of 32 bits by 32"),
    "vector by zero": (vectors("%w = arith.divsi %v, %zeros : vector<16xi32>"), "divides a vector by zero"),
    "loop that does not move": (design(ADD).replace("step %c1", "step %c0"), "has step 0"),
}


@pytest.mark.parametrize("name", UNDEFINED)
def test_an_undefined_result_is_a_fault_of_its_core(name: str, tmp_path: Path) -> None:
    text, message = UNDEFINED[name]
    with pytest.raises(DeviceFault, match=rf"core\(0,2\).*{message}"):
        run(text, X, cache_=tmp_path)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("%k = arith.constant 31 : i32\n%w = arith.shrui %v, %k : i32", X >> 31),
        ("%k = arith.constant -3 : i32\n%w = arith.ceildivsi %v, %k : i32", -(X // 3)),
        ("%k = arith.constant -3 : i32\n%w = arith.floordivsi %v, %k : i32", X // -3),
        ("%k = arith.constant 5 : i32\n%w = arith.remui %v, %k : i32", X % 5),
    ],
)
def test_the_same_operations_are_right_where_they_are_defined(
    operation: str, expected: np.ndarray, tmp_path: Path
) -> None:
    (out,), _ = run(computed(operation), X, cache_=tmp_path)
    assert (out == expected).all()


def test_an_output_that_nobody_awaits_is_a_fault_that_names_the_argument(tmp_path: Path) -> None:
    text = design(ADD).replace("aiex.npu.dma_wait {symbol = @to_host}", "")
    with pytest.raises(DeviceFault, match=r"never awaited: the host may read argument 1 before it is written"):
        run(text, X, cache_=tmp_path)


@pytest.mark.parametrize("number", [16, -3])
def test_a_bd_id_that_the_shim_does_not_have_is_found(number: int) -> None:
    text = design(ADD).replace("{id = 0 : i64", f"{{id = {number} : i64")
    found = [(v.limit, v.asked, v.available) for v in check(load_program(text))]
    assert ("BD id", number, "0..15") in found


def test_the_highest_bd_id_is_legal() -> None:
    assert check(load_program(design(ADD).replace("{id = 0 : i64", "{id = 15 : i64"))) == []


def switch(connection: str, tile: str = "t") -> str:
    """A switchbox beside the design's flows."""
    return design(ADD, f"%sb = aie.switchbox(%{tile}) {{\n{connection}\n}}\n")


RULES = (
    "%q = aie.amsel<0> (0)\n%r = aie.masterset(DMA : 1, %q)\naie.packet_rules(South : 1) {{\naie.rule({}, {}, %q)\n}}"
)


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        ("aie.connect<South : 6, DMA : 1>", r"South : 6 as source in core\(0,2\); expected South : 0\.\.5"),
        ("aie.connect<South : -1, DMA : 1>", "South : -1"),
        ("aie.connect<South : 1, DMA : 2>", r"DMA : 2 as destination.*DMA : 0\.\.1"),
        ("aie.connect<West : 0, DMA : 1>", r"West : 0 as source.*expected none"),  # column 0 has no neighbour there
        ("aie.connect<DMA : 1, North : 6>", r"North : 6 as destination"),
        (RULES.format(32, 0), r"mask 32; expected 0\.\.31"),
        (RULES.format(31, -1), r"value -1"),
        ("%q = aie.amsel<6> (0)", r"arbiter 6; expected 0\.\.5"),
        ("%q = aie.amsel<0> (4)", r"master select 4; expected 0\.\.3"),
    ],
)
def test_a_port_or_mask_that_no_switch_has_is_refused(connection: str, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        load_program(switch(connection))


@pytest.mark.parametrize(
    "connection", ["aie.connect<South : 5, DMA : 1>", "aie.connect<East : 3, North : 5>", RULES.format(31, 31)]
)
def test_the_last_port_and_the_largest_mask_are_read(connection: str) -> None:
    load_program(switch(connection))


@pytest.mark.parametrize("text", ["", "\x00 module {", "(" * 5000, "module { aie.device(npu2) { %x = "])
def test_what_is_no_module_is_refused_with_a_line(text: str) -> None:
    with pytest.raises(Refusal, match="module:1"):
        load_program(text)


FIFO_DESIGN = """
module { aie.device(npu2) {
  %s = aie.tile(0, 0)
  %t = aie.tile(0, 2)
  aie.objectfifo @in(%s, {%t}, 2 : i32) : !aie.objectfifo<memref<16xi32>>
  aie.objectfifo @out(%t, {%s}, 2 : i32) : !aie.objectfifo<memref<16xi32>>
  %core = aie.core(%t) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c16 = arith.constant 16 : index
    %a = aie.objectfifo.acquire @in(Consume, 1) : !aie.objectfifosubview<memref<16xi32>>
    %x = aie.objectfifo.subview.access %a[0] : !aie.objectfifosubview<memref<16xi32>> -> memref<16xi32>
    %b = aie.objectfifo.acquire @out(Produce, 1) : !aie.objectfifosubview<memref<16xi32>>
    %y = aie.objectfifo.subview.access %b[0] : !aie.objectfifosubview<memref<16xi32>> -> memref<16xi32>
    scf.for %i = %c0 to %c16 step %c1 {
      %v = memref.load %x[%i] : memref<16xi32>
      memref.store %v, %y[%i] : memref<16xi32>
    }
    aie.objectfifo.release @out(Produce, 1)
    aie.objectfifo.release @in(Consume, 1)
    aie.objectfifo.release @in(Consume, 1)
    aie.end
  }
  aie.runtime_sequence(%x : memref<16xi32>, %y : memref<16xi32>) {
    aiex.npu.dma_memcpy_nd(%x[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1]) {id = 0 : i64, metadata = @in} : memref<16xi32>
    aiex.npu.dma_memcpy_nd(%y[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1]) {id = 1 : i64, metadata = @out} : memref<16xi32>
    aiex.npu.dma_wait {symbol = @out}
  }
} }
"""


def test_an_element_released_twice_is_noted_and_the_lock_counts_on(tmp_path: Path) -> None:
    (out,), outcome = run(FIFO_DESIGN, X, cache_=tmp_path)
    assert (out == X).all()
    assert [note for note in outcome.notes if "releases 1 elements of 'in' and holds 0" in note]
