# SPDX-License-Identifier: Apache-2.0
"""Forms that designs of others have, run on the twin with values worked by hand: affine bodies, instructions inside
configure and after load_pdi, trace configurations, channels that share a lock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npu.device import DeviceFault
from npu.mlir.load import load_program
from npu.mlir.text import parse_module, print_module
from npu.program import Run
from npu.twin.device import TwinDevice, TwinSession
from refusal import Refusal


def run(
    text: str, cache: Path, inputs: dict[int, list[int]], output: int, device: str = "main"
) -> tuple[list[int], TwinSession]:
    """Argument `output` (i32) after the first sequence of `device`."""
    program = load_program(text)
    sequence = program.device(device).sequences[0]
    session = TwinDevice(cache, tier="event", foreign=True).open_program(program, device, {})
    session.bind(sequence.name, {i: f"a{i}" for i in range(len(sequence.arguments))})
    for i, argument in enumerate(sequence.arguments):
        session.allocate(f"a{i}", argument.nbytes)
        if i in inputs:
            session.write(f"a{i}", 0, np.array(inputs[i], np.int32))
    session.run(sequence.name)
    return session.read(f"a{output}", 0, (sequence.arguments[output].elements,), "int32").tolist(), session


def on_core(body: str, declared: str = "") -> str:
    """One core between two FIFOs of 16 words, whose body works on %in and %out."""
    return f"""
module {{
  aie.device(npu2) {{
    %shim = aie.tile(0, 0)
    %tile = aie.tile(0, 2)
    {declared}
    aie.objectfifo @in(%shim, {{%tile}}, 1 : i32) : !aie.objectfifo<memref<16xi32>>
    aie.objectfifo @out(%tile, {{%shim}}, 1 : i32) : !aie.objectfifo<memref<16xi32>>
    %core = aie.core(%tile) {{
      %view = aie.objectfifo.acquire @in(Consume, 1) : !aie.objectfifosubview<memref<16xi32>>
      %in = aie.objectfifo.subview.access %view[0] : !aie.objectfifosubview<memref<16xi32>> -> memref<16xi32>
      %room = aie.objectfifo.acquire @out(Produce, 1) : !aie.objectfifosubview<memref<16xi32>>
      %out = aie.objectfifo.subview.access %room[0] : !aie.objectfifosubview<memref<16xi32>> -> memref<16xi32>
{body}
      aie.objectfifo.release @in(Consume, 1)
      aie.objectfifo.release @out(Produce, 1)
      aie.end
    }}
    aie.runtime_sequence(%a: memref<16xi32>, %b: memref<16xi32>) {{
      aiex.npu.dma_memcpy_nd(%b[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1]) {{id = 0 : i64, metadata = @out}} : memref<16xi32>
      aiex.npu.dma_memcpy_nd(%a[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1]) {{id = 1 : i64, metadata = @in}} : memref<16xi32>
      aiex.npu.dma_wait {{symbol = @out}}
    }}
  }}
}}
"""


COUNT = list(range(1, 17))
TRANSPOSE = """
      affine.for %i = 0 to 4 {
        affine.for %j = 0 to 4 {
          %x = affine.load %in[%i * 4 + %j] : memref<16xi32>
          affine.store %x, %out[%j * 4 + %i] : memref<16xi32>
        }
      }
"""
STEPS = """
      %c0 = arith.constant 0 : i32
      affine.for %i = 0 to 16 {
        affine.store %c0, %out[%i] : memref<16xi32>
      }
      affine.for %i = 1 to 16 step 3 {
        %x = affine.load %in[%i] : memref<16xi32>
        affine.store %x, %out[%i] : memref<16xi32>
      }
"""
SUMS = """
      affine.for %i = 0 to 16 {
        %zero = arith.constant 0 : i32
        %sum = affine.for %j = 0 to affine_map<(d0) -> (d0 + 1)>(%i) iter_args(%acc = %zero) -> (i32) {
          %x = affine.load %in[%j] : memref<16xi32>
          %more = arith.addi %acc, %x : i32
          affine.yield %more : i32
        }
        affine.store %sum, %out[%i] : memref<16xi32>
      }
"""
DIVIDE = """
      affine.for %i = 0 to 16 {
        %k = affine.apply affine_map<(d0) -> ((d0 - 3) mod 16)>(%i)
        %x = affine.load %in[%k] : memref<16xi32>
        affine.store %x, %out[%i] : memref<16xi32>
      }
"""
BOUNDS = """
      affine.for %i = 0 to 16 step 6 {
        affine.for %j = affine_map<(d0) -> (d0)>(%i) to min affine_map<(d0) -> (d0 + 6, 16)>(%i) {
          %k = affine.apply affine_map<(d0)[s0] -> (d0 floordiv 2 + s0 ceildiv 6)>(%j)[%i]
          %x = affine.load %in[%k] : memref<16xi32>
          affine.store %x, %out[%j] : memref<16xi32>
        }
      }
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (TRANSPOSE, [1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 4, 8, 12, 16]),
        (STEPS, [0, 2, 0, 0, 5, 0, 0, 8, 0, 0, 11, 0, 0, 14, 0, 0]),
        (SUMS, [1, 3, 6, 10, 15, 21, 28, 36, 45, 55, 66, 78, 91, 105, 120, 136]),
        (DIVIDE, [14, 15, 16, *range(1, 14)]),  # -3 mod 16 is 13
        (BOUNDS, [1, 1, 2, 2, 3, 3, 5, 5, 6, 6, 7, 7, 9, 9, 10, 10]),  # j // 2 + 0, 1, 2 for i = 0, 6, 12
    ],
    ids=["transpose", "steps", "sums", "mod", "bounds"],
)
def test_affine_bodies(tmp_path: Path, body: str, expected: list[int]) -> None:
    assert run(on_core(body), tmp_path, {0: COUNT}, 1)[0] == expected


def test_an_affine_form_that_is_not_read_is_refused() -> None:
    body = "affine.parallel (%i) = (0) to (16) { affine.yield }"
    with pytest.raises(Refusal):
        load_program(on_core(body))


COPY = """
      affine.for %i = 0 to 16 {
        %x = affine.load %in[%i] : memref<16xi32>
        affine.store %x, %out[%i] : memref<16xi32>
      }
"""


def test_a_trace_configuration_has_no_effect_and_is_told(tmp_path: Path) -> None:
    trace = """aie.trace @watch(%tile) {
      aie.trace.mode "Event-Time }"
      aie.trace.packet id=1 type=core
      aie.trace.event<"INSTR_EVENT_0">  // a brace: }
      aie.trace.port<0> port=DMA channel=0 direction=S2MM
      aie.trace.start event=<"BROADCAST_15">
    }"""
    text = on_core(COPY, trace).replace("(%a: memref<16xi32>, %b: memref<16xi32>) {",
                                        "(%a: memref<16xi32>, %b: memref<16xi32>) {\n aie.trace.start_config @watch")  # fmt: skip
    result, session = run(text, tmp_path, {0: COUNT}, 1)
    assert result == COUNT
    assert session.notes() == ["@main: aie.trace @watch: no trace is written"]
    printed = print_module(parse_module(text).module)
    assert run(printed, tmp_path, {0: COUNT}, 1)[0] == COUNT


ADDER = """
  aie.device(npu2) @%NAME% {
    %shim = aie.tile(0, 0)
    %tile = aie.tile(0, 2)
    aie.objectfifo @in(%shim, {%tile}, 1 : i32) : !aie.objectfifo<memref<16xi32>>
    aie.objectfifo @out(%tile, {%shim}, 1 : i32) : !aie.objectfifo<memref<16xi32>>
    %core = aie.core(%tile) {
      %c = arith.constant %ADD% : i32
      %view = aie.objectfifo.acquire @in(Consume, 1) : !aie.objectfifosubview<memref<16xi32>>
      %in = aie.objectfifo.subview.access %view[0] : !aie.objectfifosubview<memref<16xi32>> -> memref<16xi32>
      %room = aie.objectfifo.acquire @out(Produce, 1) : !aie.objectfifosubview<memref<16xi32>>
      %out = aie.objectfifo.subview.access %room[0] : !aie.objectfifosubview<memref<16xi32>> -> memref<16xi32>
      affine.for %i = 0 to 16 {
        %x = affine.load %in[%i] : memref<16xi32>
        %y = arith.addi %x, %c : i32
        affine.store %y, %out[%i] : memref<16xi32>
      }
      aie.objectfifo.release @in(Consume, 1)
      aie.objectfifo.release @out(Produce, 1)
      aie.end
    }
%SEQUENCE%
  }
"""
MOVE = """
      aiex.npu.dma_memcpy_nd(%b[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1]) {id = 0 : i64, metadata = @out} : memref<16xi32>
      aiex.npu.dma_memcpy_nd(%a[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1]) {id = 1 : i64, metadata = @in} : memref<16xi32>
      aiex.npu.dma_wait {symbol = @out}
"""
AGAIN = MOVE.replace("(%a", "(%t").replace("(%b", "(%a").replace("(%t", "(%b")
HEAD = "aie.runtime_sequence @run(%a: memref<16xi32>, %b: memref<16xi32>) {"


def adder(name: str, add: int, sequence: str = "") -> str:
    return ADDER.replace("%NAME%", name).replace("%ADD%", str(add)).replace("%SEQUENCE%", sequence)


@pytest.mark.parametrize("first", ["aiex.npu.load_pdi {device_ref = @one}", "aiex.configure @one {"])
def test_a_sequence_may_load_its_own_device(tmp_path: Path, first: str) -> None:
    text = f"module {{ {adder('one', 1, f'{HEAD} {first} {MOVE} }}' + ('}' if first.endswith('{') else ''))} }}"
    assert run(text, tmp_path, {0: COUNT}, 1, "one")[0] == [n + 1 for n in COUNT]
    assert [s.name for s in load_program(text).device("one").sequences] == ["run"]


@pytest.mark.parametrize(
    "body",
    [
        f"aiex.configure @one {{ {MOVE} }} aiex.configure @ten {{ {AGAIN} }}",
        f"aiex.npu.load_pdi {{device_ref = @one}} {MOVE} aiex.npu.load_pdi {{device_ref = @ten}} {AGAIN}",
    ],
    ids=["configure", "load_pdi"],
)
def test_instructions_for_other_devices_run_where_they_stand(tmp_path: Path, body: str) -> None:
    """a + 1 goes to b, then b + 10 back to a; each device starts anew."""
    outer = f"aie.device(npu2) @main {{ {HEAD} {body} }} }}"
    text = f"module {{ {adder('one', 1)} {adder('ten', 10)} {outer} }}"
    assert run(text, tmp_path, {0: COUNT}, 0)[0] == [n + 11 for n in COUNT]
    runs = load_program(text).device("main").sequences[0].instructions
    assert [(r.device, r.sequence) for r in runs if isinstance(r, Run)] == [
        ("one", "main:run:0"),
        ("ten", "main:run:1"),
    ]
    printed = print_module(parse_module(text).module)
    assert run(printed, tmp_path, {0: COUNT}, 0)[0] == [n + 11 for n in COUNT]


def test_a_pdi_that_has_only_a_number_is_refused() -> None:
    body = f"{HEAD} aiex.npu.load_pdi {{id = 1 : i32}} {MOVE} }}"
    with pytest.raises(Refusal, match="a load_pdi by number"):
        load_program(f"module {{ {adder('one', 1, body)} }}")


SHARED = """
module {
  aie.device(npu2) {
    %shim = aie.tile(0, 0)
    %mem = aie.tile(0, 1)
    %near = aie.tile(0, 2)
    %far = aie.tile(0, 3)
    %whole = aie.buffer(%mem) {sym_name = "whole"} : memref<16xi32>
    %free = aie.lock(%mem, 0) {init = 2 : i32}
    %full = aie.lock(%mem, 1) {init = 0 : i32}
    aie.flow(%shim, DMA : 0, %mem, DMA : 0)
    aie.flow(%mem, DMA : 0, %shim, DMA : 0)
    aie.flow(%mem, DMA : 1, %shim, DMA : 1)
    aie.memtile_dma(%mem) {
      %0 = aie.dma_start(S2MM, 0, ^in, ^first)
    ^in:
      aie.use_lock(%free, AcquireGreaterEqual, 2)
      aie.dma_bd(%whole : memref<16xi32>, 0, 16)
      aie.use_lock(%full, Release, 2)
      aie.next_bd ^in
    ^first:
      %1 = aie.dma_start(MM2S, 0, ^low, ^second)
    ^low:
      aie.use_lock(%full, AcquireGreaterEqual, 1)
      aie.dma_bd(%whole : memref<16xi32>, 0, 8)
      aie.use_lock(%free, Release, 1)
      aie.next_bd ^low
    ^second:
      %2 = aie.dma_start(MM2S, 1, ^high, ^end)
    ^high:
      aie.use_lock(%full, AcquireGreaterEqual, 1)
      aie.dma_bd(%whole : memref<16xi32>, 8, 8)
      aie.use_lock(%free, Release, 1)
      aie.next_bd ^high
    ^end:
      aie.end
    }
    aie.shim_dma_allocation @in(%shim, MM2S, 0)
    aie.shim_dma_allocation @low(%shim, S2MM, 0)
    aie.shim_dma_allocation @high(%shim, S2MM, 1)
    aie.runtime_sequence(%a: memref<16xi32>, %b: memref<16xi32>) {
      aiex.npu.dma_memcpy_nd(%b[0, 0, 0, 0][1, 1, 1, 8][0, 0, 0, 1]) {id = 0 : i64, metadata = @low} : memref<16xi32>
      aiex.npu.dma_memcpy_nd(%b[0, 0, 0, 8][1, 1, 1, 8][0, 0, 0, 1]) {id = 1 : i64, metadata = @high} : memref<16xi32>
      aiex.npu.dma_memcpy_nd(%a[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1]) {id = 2 : i64, metadata = @in} : memref<16xi32>
      aiex.npu.dma_wait {symbol = @low}
      aiex.npu.dma_wait {symbol = @high}
    }
  }
}
"""


def test_channels_that_wait_for_one_lock_are_served_in_turn(tmp_path: Path) -> None:
    """One release of 2 for two channels: the first must not take both and leave the second waiting."""
    assert run(SHARED, tmp_path, {0: COUNT}, 1)[0] == COUNT


def test_a_shared_lock_with_too_little_is_a_deadlock(tmp_path: Path) -> None:
    with pytest.raises(DeviceFault, match="deadlock"):
        run(SHARED.replace("%full, Release, 2", "%full, Release, 1"), tmp_path, {0: COUNT}, 1)


SPILL = """
module {
  aie.device(npu2) {
    %s = aie.tile(1, 0)
    %m = aie.tile(1, 1)
    aie.objectfifo @in(%s, {%m}, 3 : i32) : !aie.objectfifo<memref<65536xi32>>
    aie.objectfifo @out(%m, {%s}, 3 : i32) : !aie.objectfifo<memref<65536xi32>>
    aie.objectfifo.link [@in] -> [@out]([] [])
    aie.runtime_sequence(%a: memref<196608xi32>, %b: memref<196608xi32>) {
      aiex.npu.dma_memcpy_nd(%b[0, 0, 0, 0][1, 1, 1, 196608][0, 0, 0, 1]) {id = 0 : i64, metadata = @out} : memref<196608xi32>
      aiex.npu.dma_memcpy_nd(%a[0, 0, 0, 0][1, 1, 1, 196608][0, 0, 0, 1]) {id = 1 : i64, metadata = @in} : memref<196608xi32>
      aiex.npu.dma_wait {symbol = @out}
    }
  }
}
"""


def test_a_spilled_pool_moves_its_data_through_the_neighbour(tmp_path: Path) -> None:
    """Three elements of 256 KiB: the third lies in the west neighbour."""
    data = list(range(196608))
    assert run(SPILL, tmp_path, {0: data}, 1)[0] == data
    device = load_program(SPILL).devices[0]
    assert [str(b.tile) for b in device.buffers] == ["memtile(1,1)", "memtile(1,1)", "memtile(0,1)"]


WRITER = """
  aie.device(npu2) @writer {
    %s = aie.tile(0, 0)
    %m = aie.tile(0, 1)
    %kept = aie.buffer(%m) {address = 4096 : i32, mem_bank = 0 : i32, sym_name = "kept"} : memref<16xi32>
    aie.flow(%s, DMA : 0, %m, DMA : 0)
    aie.memtile_dma(%m) {
      %0 = aie.dma_start(S2MM, 0, ^bd, ^end)
    ^bd:
      aie.dma_bd(%kept : memref<16xi32>, 0, 16)
      aie.next_bd ^end
    ^end:
      aie.end
    }
    aie.shim_dma_allocation @in(%s, MM2S, 0)
    aie.runtime_sequence @run(%a: memref<16xi32>) {
      aiex.npu.dma_memcpy_nd(%a[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1]) {id = 1 : i64, issue_token = true, metadata = @in} : memref<16xi32>
      aiex.npu.dma_wait {symbol = @in}
    }
  }
"""
READER = """
  aie.device(npu2) @reader {
    %s = aie.tile(0, 0)
    %m = aie.tile(0, 1)
    %other = aie.buffer(%m) {address = 4112 : i32, mem_bank = 0 : i32, sym_name = "other"} : memref<8xi32>
    aie.flow(%m, DMA : 0, %s, DMA : 0)
    aie.memtile_dma(%m) {
      %0 = aie.dma_start(MM2S, 0, ^bd, ^end)
    ^bd:
      aie.dma_bd(%other : memref<8xi32>, 0, 8)
      aie.next_bd ^end
    ^end:
      aie.end
    }
    aie.shim_dma_allocation @out(%s, S2MM, 0)
    aie.runtime_sequence @run(%b: memref<8xi32>) {
      aiex.npu.dma_memcpy_nd(%b[0, 0, 0, 0][1, 1, 1, 8][0, 0, 0, 1]) {id = 0 : i64, metadata = @out} : memref<8xi32>
      aiex.npu.dma_wait {symbol = @out}
    }
  }
"""
BOTH = """
  aie.device(npu2) @main {
    aie.runtime_sequence @run(%a: memref<16xi32>, %b: memref<8xi32>) {
      aiex.configure @writer { aiex.run @run(%a) : (memref<16xi32>) }
      aiex.configure @reader { aiex.run @run(%b) : (memref<8xi32>) }
    }
  }
"""


def test_a_memtile_keeps_its_words_when_another_design_is_loaded(tmp_path: Path) -> None:
    """The second design's buffer begins 16 bytes into the first one's: words 4..11. Beyond it nobody wrote."""
    result, _ = run(f"module {{ {WRITER} {READER} {BOTH} }}", tmp_path, {0: COUNT}, 1)
    assert result == COUNT[4:12]
    beyond = READER.replace("address = 4112", "address = 4144")
    with pytest.raises(DeviceFault, match=r"reads byte 16 of buffer 'other' of memtile\(0,1\), which nobody wrote"):
        run(f"module {{ {WRITER} {beyond} {BOTH} }}", tmp_path, {0: COUNT}, 1)


def test_our_own_designs_start_on_poisoned_memtiles(tmp_path: Path) -> None:
    session = TwinDevice(tmp_path).open_program(load_program(f"module {{ {WRITER} {READER} {BOTH} }}"), "main", {})
    session.bind("run", {0: "a", 1: "b"})
    for name in "ab":
        session.allocate(name, 64)
    session.write("a", 0, np.array(COUNT, np.int32))
    with pytest.raises(DeviceFault, match="nobody wrote"):
        session.run("run")


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        ("Acquire, 1", "Acquire, 1", 1),  # equal: waits and leaves the lock as it is
        ("Acquire, 1", "AcquireGreaterEqual, 1", 1),
        ("AcquireGreaterEqual, 1", "AcquireGreaterEqual, 1", 2),
    ],
)
def test_an_equal_acquire_leaves_the_lock(tmp_path: Path, first: str, second: str, value: int) -> None:
    body = f"""
      aie.use_lock(%lock, {first})
      aie.use_lock(%lock, {second})
      %c0 = arith.constant 0 : index
      %seven = arith.constant 7 : i32
      memref.store %seven, %out[%c0] : memref<16xi32>
      %c1 = arith.constant 1 : index
      %c16 = arith.constant 16 : index
      scf.for %i = %c1 to %c16 step %c1 {{
        memref.store %seven, %out[%i] : memref<16xi32>
      }}"""
    declared = f"%lock = aie.lock(%tile, 5) {{init = {value} : i32}}"
    assert run(on_core(body, declared), tmp_path, {0: list(range(16))}, 1)[0] == [7] * 16


def test_a_greater_equal_acquire_takes_from_the_lock(tmp_path: Path) -> None:
    body = "      aie.use_lock(%lock, AcquireGreaterEqual, 1)\n      aie.use_lock(%lock, AcquireGreaterEqual, 1)\n"
    with pytest.raises(DeviceFault, match="lock"):
        run(on_core(body, "%lock = aie.lock(%tile, 5) {init = 1 : i32}"), tmp_path, {0: list(range(16))}, 1)


@pytest.mark.parametrize("rounds", [1000, 2000000, 9223372036854775807])
def test_a_loop_without_effect_is_passed_over_or_rests(tmp_path: Path, rounds: int) -> None:
    """Behind a loop that has no end in practice nothing runs: the output that was stored before it is never given away."""
    fill = """
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c16 = arith.constant 16 : index
      %seven = arith.constant 7 : i32
      scf.for %i = %c0 to %c16 step %c1 {
        memref.store %seven, %out[%i] : memref<16xi32>
      }"""
    idle = f"""
      %many = arith.constant {rounds} : index
      scf.for %j = %c0 to %many step %c1 {{
      }}"""
    if rounds < 1 << 31:
        assert run(on_core(fill + idle), tmp_path, {0: list(range(16))}, 1)[0] == [7] * 16
    else:
        with pytest.raises(DeviceFault) as fault:
            run(on_core(fill + idle), tmp_path, {0: list(range(16))}, 1)
        assert "loops on" not in str(fault.value), "it rests, and the transfer waits for it"


def test_a_core_that_idles_for_good_does_not_keep_the_others(tmp_path: Path) -> None:
    """A core that only has to exist: the data pass through its memory."""
    text = """
module {
  aie.device(npu2) {
    %shim = aie.tile(0, 0)
    %tile = aie.tile(0, 2)
    aie.objectfifo @in(%shim, {%tile}, 2 : i32) : !aie.objectfifo<memref<4xi32>>
    aie.objectfifo @out(%tile, {%shim}, 2 : i32) : !aie.objectfifo<memref<4xi32>>
    aie.objectfifo.link [@in] -> [@out]([] [])
    %core = aie.core(%tile) {
      %c0 = arith.constant 0 : index
      %n = arith.constant 9223372036854775807 : index
      %c1 = arith.constant 1 : index
      scf.for %i = %c0 to %n step %c1 {
      }
      aie.end
    }
    aie.runtime_sequence(%a: memref<8xi32>, %b: memref<8xi32>) {
      aiex.npu.dma_memcpy_nd(%b[0, 0, 0, 0][1, 1, 1, 8][0, 0, 0, 1]) {id = 0 : i64, metadata = @out} : memref<8xi32>
      aiex.npu.dma_memcpy_nd(%a[0, 0, 0, 0][1, 1, 1, 8][0, 0, 0, 1]) {id = 1 : i64, metadata = @in} : memref<8xi32>
      aiex.npu.dma_wait {symbol = @out}
    }
  }
}
"""
    assert run(text, tmp_path, {0: list(range(8))}, 1)[0] == list(range(8))
