# SPDX-License-Identifier: Apache-2.0
"""Designs by hand: explicit locks, BDs and flows, packets, cascades, and core bodies of every form that is lowered.

Each is one core between a shim's MM2S and S2MM unless it says otherwise; expected values follow from its text.
"""

from __future__ import annotations

import numpy as np
import pytest

from npu.device import DeviceFault
from npu.mlir.load import load_program
from npu.twin.device import TwinDevice
from refusal import Refusal
from tests.npu.others.bench import kernels, run

N = 16
X = np.arange(1, N + 1, dtype=np.int32)

DECLARED = """
%s = aie.tile(0, 0)
%t = aie.tile(0, 2)
%in = aie.buffer(%t) {sym_name = "in"} : memref<16xi32>
%out = aie.buffer(%t) {sym_name = "out"} : memref<16xi32>
%in_free = aie.lock(%t, 0) {init = 1 : i32, sym_name = "in_free"}
%in_full = aie.lock(%t, 1) {init = 0 : i32, sym_name = "in_full"}
%out_free = aie.lock(%t, 2) {init = 1 : i32, sym_name = "out_free"}
%out_full = aie.lock(%t, 3) {init = 0 : i32, sym_name = "out_full"}
aie.shim_dma_allocation @from_host(%s, MM2S, 0)
aie.shim_dma_allocation @to_host(%s, S2MM, 0)
"""
CIRCUITS = "aie.flow(%s, DMA : 0, %t, DMA : 0)\naie.flow(%t, DMA : 0, %s, DMA : 0)\n"
MEM = """
%m = aie.mem(%t) {
  %a = aie.dma_start(S2MM, 0, ^in, ^next)
^in:
  aie.use_lock(%in_free, AcquireGreaterEqual, 1)
  aie.dma_bd(%in : memref<16xi32>, 0, 16)
  aie.use_lock(%in_full, Release, 1)
  aie.next_bd ^in
^next:
  %b = aie.dma_start(MM2S, 0, ^out, ^end)
^out:
  aie.use_lock(%out_full, AcquireGreaterEqual, 1)
  aie.dma_bd(%out : memref<16xi32>, 0, 16)
  aie.use_lock(%out_free, Release, 1)
  aie.next_bd ^out
^end:
  aie.end
}
"""
COMPACT_MEM = """
%m = aie.mem(%t) {
  %a = aie.dma(S2MM, 0) [{
    aie.use_lock(%in_free, AcquireGreaterEqual, 1)
    aie.dma_bd(%in : memref<16xi32>)
    aie.use_lock(%in_full, Release, 1)
  }]
  %b = aie.dma(MM2S, 0) [{
    aie.use_lock(%out_full, AcquireGreaterEqual, 1)
    aie.dma_bd(%out : memref<16xi32>) {packet = #aie.packet_info<pkt_type = 0, pkt_id = 5>}
    aie.use_lock(%out_free, Release, 1)
  }]
  aie.end
}
"""
TAKE = "aie.use_lock(%in_full, AcquireGreaterEqual, 1)\naie.use_lock(%out_free, AcquireGreaterEqual, 1)\n"
GIVE = "aie.use_lock(%in_free, Release, 1)\naie.use_lock(%out_full, Release, 1)\n"
VALUES = """
%c0 = arith.constant 0 : index
%c1 = arith.constant 1 : index
%c4 = arith.constant 4 : index
%c16 = arith.constant 16 : index
%one = arith.constant 1 : i32
%zero = arith.constant 0 : i32
"""
SEQUENCE = """
aie.runtime_sequence(%a : memref<16xi32>, %b : memref<16xi32>) {
  aiex.npu.dma_memcpy_nd(%a[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1]) {id = 0 : i64, metadata = @from_host} : memref<16xi32>
  aiex.npu.dma_memcpy_nd(%b[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1]) {id = 1 : i64, metadata = @to_host} : memref<16xi32>
  aiex.npu.dma_wait {symbol = @to_host}
}
"""
EACH = "scf.for %i = %c0 to %c16 step %c1 {\n"


def design(body: str, before: str = "", *, mem: str = MEM, flows: str = CIRCUITS, sequence: str = SEQUENCE) -> str:
    """One core with `body` after both locks are taken; `before` stands in the device."""
    core = f"%core = aie.core(%t) {{\n{VALUES}{TAKE}{body}\n{GIVE}aie.end\n}}"
    return f"module {{\naie.device(npu2) {{\n{DECLARED}{flows}{before}{mem}{core}{sequence}\n}}\n}}\n"


def values(text: str, tmp_path, *arrays: np.ndarray) -> np.ndarray:
    (found,), _ = run(text, *(arrays or (X,)), cache_=tmp_path)
    return found


ADD = f"""{EACH}
  %v = memref.load %in[%i] : memref<16xi32>
  %w = arith.addi %v, %one : i32
  memref.store %w, %out[%i] : memref<16xi32>
}}"""

BODIES = {
    "an iteration argument carries a running sum": (
        """%sum = scf.for %i = %c0 to %c16 step %c1 iter_args(%acc = %zero) -> (i32) {
          %v = memref.load %in[%i] : memref<16xi32>
          %w = arith.addi %acc, %v : i32
          memref.store %w, %out[%i] : memref<16xi32>
          scf.yield %w : i32
        }
        memref.store %sum, %out[%c0] : memref<16xi32>""",
        np.concatenate([[X.sum()], np.cumsum(X)[1:]]),
    ),
    "a branch gives a value": (
        f"""{EACH}
          %v = memref.load %in[%i] : memref<16xi32>
          %small = arith.cmpi slt, %i, %c4 : index
          %w = scf.if %small -> (i32) {{
            scf.yield %zero : i32
          }} else {{
            %d = arith.addi %v, %v : i32
            scf.yield %d : i32
          }}
          memref.store %w, %out[%i] : memref<16xi32>
        }}""",
        np.where(np.arange(N) < 4, 0, 2 * X),
    ),
    "a while loop with values": (
        f"""{EACH}
          %v = memref.load %in[%i] : memref<16xi32>
          %r:2 = scf.while (%left = %v, %acc = %zero) : (i32, i32) -> (i32, i32) {{
            %more = arith.cmpi sgt, %left, %zero : i32
            scf.condition(%more) %left, %acc : i32, i32
          }} do {{
          ^bb0(%left2 : i32, %acc2 : i32):
            %next = arith.subi %left2, %one : i32
            %total = arith.addi %acc2, %left2 : i32
            scf.yield %next, %total : i32, i32
          }}
          memref.store %r#1, %out[%i] : memref<16xi32>
        }}""",
        X * (X + 1) // 2,
    ),
    "vectors in the core's own code": (
        """%pad = arith.constant 0 : i32
        %two = arith.constant dense<2> : vector<8xi32>
        %c8 = arith.constant 8 : index
        scf.for %i = %c0 to %c16 step %c8 {
          %v = vector.transfer_read %in[%i], %pad {in_bounds = [true]} : memref<16xi32>, vector<8xi32>
          %w = arith.muli %v, %two : vector<8xi32>
          %sv = vector.broadcast %one : i32 to vector<8xi32>
          %y = arith.addi %w, %sv : vector<8xi32>
          vector.store %y, %out[%i] : memref<16xi32>, vector<8xi32>
        }""",
        2 * X + 1,
    ),
    "a copy between buffers": ("memref.copy %in, %out : memref<16xi32> to memref<16xi32>", X),
    "views of a buffer": (
        """%rows = memref.expand_shape %in [[0, 1]] output_shape [4, 4] : memref<16xi32> into memref<4x4xi32>
        scf.for %i = %c0 to %c4 step %c1 {
          %row = memref.subview %rows[%i, 0] [1, 4] [1, 1] : memref<4x4xi32> to memref<1x4xi32, strided<[4, 1], offset: ?>>
          scf.for %j = %c0 to %c4 step %c1 {
            %v = memref.load %row[%c0, %j] : memref<1x4xi32, strided<[4, 1], offset: ?>>
            %a = arith.muli %j, %c4 : index
            %at = arith.addi %a, %i : index
            memref.store %v, %out[%at] : memref<16xi32>
          }
        }""",
        X.reshape(4, 4).T.reshape(-1),
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_core_bodies(name: str, tmp_path) -> None:
    body, expected = BODIES[name]
    assert (values(design(body), tmp_path) == expected).all()


def test_blocks_that_branch_run_as_the_loops_they_came_from(tmp_path) -> None:
    core = f"""%core = aie.core(%t) {{
      {VALUES}{TAKE}
      cf.br ^head(%c0 : index)
    ^head(%i : index):
      %more = arith.cmpi slt, %i, %c16 : index
      cf.cond_br %more, ^body, ^done
    ^body:
      %v = memref.load %in[%i] : memref<16xi32>
      %w = arith.addi %v, %one : i32
      memref.store %w, %out[%i] : memref<16xi32>
      %n = arith.addi %i, %c1 : index
      cf.br ^head(%n : index)
    ^done:
      {GIVE}aie.end
    }}"""
    text = f"module {{\naie.device(npu2) {{\n{DECLARED}{CIRCUITS}{MEM}{core}{SEQUENCE}\n}}\n}}\n"
    assert (values(text, tmp_path) == X + 1).all()


def test_a_function_with_a_body_and_a_global_table(tmp_path) -> None:
    table = 'memref.global "private" constant @table : memref<2xi32> = dense<[10, 20]>\n'
    function = """func.func private @scaled(%v : i32, %factor : i32) -> i32 {
      %r = arith.muli %v, %factor : i32
      return %r : i32
    }\n"""
    body = f"""%t0 = memref.get_global @table : memref<2xi32>
    {EACH}
      %v = memref.load %in[%i] : memref<16xi32>
      %f = memref.load %t0[%c1] : memref<2xi32>
      %w = func.call @scaled(%v, %f) : (i32, i32) -> i32
      memref.store %w, %out[%i] : memref<16xi32>
    }}"""
    assert (values(design(body, table + function), tmp_path) == 20 * X).all()


PACKETS = """
aie.packet_flow(3) { aie.packet_source<%s, DMA : 0> aie.packet_dest<%t, DMA : 0> }
aie.packet_flow(5) { aie.packet_source<%t, DMA : 0> aie.packet_dest<%s, DMA : 0> }KEEP
"""


def packet_design(keep: bool = False, identity: int = 3) -> str:
    sequence = SEQUENCE.replace(
        "[0, 0, 0, 1]) {id = 0", f"[0, 0, 0, 1], packet = <pkt_type = 0, pkt_id = {identity}>) {{id = 0"
    )
    if keep:
        sequence = sequence.replace("%b : memref<16xi32>)", "%b : memref<17xi32>)")
        sequence = sequence.replace("%b[0, 0, 0, 0][1, 1, 1, 16]", "%b[0, 0, 0, 0][1, 1, 1, 17]")
        sequence = sequence.replace("@to_host} : memref<16xi32>", "@to_host} : memref<17xi32>")
    flows = PACKETS.replace("KEEP", " {keep_pkt_header = true}" if keep else "")
    return design(ADD, mem=COMPACT_MEM, flows=flows, sequence=sequence)


def test_packets_are_sent_by_id_and_lose_their_header(tmp_path) -> None:
    assert (values(packet_design(), tmp_path) == X + 1).all()


def test_a_kept_header_has_id_type_and_odd_parity(tmp_path) -> None:
    found = values(packet_design(keep=True), tmp_path)
    assert found[0].view(np.uint32) == 0x80000005  # two bits are set in the id: the parity bit makes it odd
    assert (found[1:] == X + 1).all()


def test_a_packet_whose_id_no_flow_has_is_a_fault(tmp_path) -> None:
    with pytest.raises(DeviceFault, match=r"sends a packet with id 9; packet flows start there for ids \[3\]"):
        values(packet_design(identity=9), tmp_path)


def test_two_packet_sources_share_a_channel(tmp_path) -> None:
    text = f"""module {{
    aie.device(npu2) {{
      {DECLARED}
      aie.shim_dma_allocation @second(%s, MM2S, 1)
      aie.packet_flow(1) {{ aie.packet_source<%s, DMA : 0> aie.packet_dest<%t, DMA : 0> }}
      aie.packet_flow(2) {{ aie.packet_source<%s, DMA : 1> aie.packet_dest<%t, DMA : 0> }}
      aie.flow(%t, DMA : 0, %s, DMA : 0)
      {MEM.replace("^in:", "^in:").replace("init = 1", "init = 1")}
      %core = aie.core(%t) {{
        {VALUES}
        %c2 = arith.constant 2 : index
        scf.for %round = %c0 to %c2 step %c1 {{
          {TAKE}{ADD}{GIVE}
        }}
        aie.end
      }}
      aie.runtime_sequence(%a : memref<16xi32>, %c : memref<16xi32>, %b : memref<32xi32>) {{
        aiex.npu.dma_memcpy_nd(%a[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1], packet = <pkt_type = 0, pkt_id = 1>) {{id = 0 : i64, metadata = @from_host}} : memref<16xi32>
        aiex.npu.dma_memcpy_nd(%c[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1], packet = <pkt_type = 0, pkt_id = 2>) {{id = 1 : i64, metadata = @second}} : memref<16xi32>
        aiex.npu.dma_memcpy_nd(%b[0, 0, 0, 0][1, 1, 1, 32][0, 0, 0, 1]) {{id = 2 : i64, metadata = @to_host}} : memref<32xi32>
        aiex.npu.sync {{column = 0 : i32, row = 0 : i32, direction = 0 : i32, channel = 0 : i32, column_num = 1 : i32, row_num = 1 : i32}}
      }}
    }}
    }}"""  # noqa: E501
    found = values(text, tmp_path, X, 100 * X)
    assert sorted((found[:N].tolist(), found[N:].tolist())) == [(X + 1).tolist(), (100 * X + 1).tolist()]


def test_a_cascade_hands_vectors_from_core_to_core(tmp_path) -> None:
    first = f"""%core = aie.core(%t) {{
      {VALUES}
      aie.use_lock(%in_full, AcquireGreaterEqual, 1)
      %v = vector.load %in[%c0] : memref<16xi32>, vector<16xi32>
      aie.put_cascade(%v : vector<16xi32>)
      aie.use_lock(%in_free, Release, 1)
      aie.end
    }}"""
    second = """%core2 = aie.core(%u) {
      %c0 = arith.constant 0 : index
      aie.use_lock(%free2, AcquireGreaterEqual, 1)
      %v = aie.get_cascade() : vector<16xi32>
      %w = arith.addi %v, %v : vector<16xi32>
      vector.store %w, %out2[%c0] : memref<16xi32>, vector<16xi32>
      aie.use_lock(%full2, Release, 1)
      aie.end
    }"""
    text = f"""module {{
    aie.device(npu2) {{
      {DECLARED}
      %u = aie.tile(1, 2)
      %out2 = aie.buffer(%u) : memref<16xi32>
      %free2 = aie.lock(%u, 0) {{init = 1 : i32}}
      %full2 = aie.lock(%u, 1) {{init = 0 : i32}}
      aie.cascade_flow(%t, %u)
      aie.flow(%s, DMA : 0, %t, DMA : 0)
      aie.flow(%u, DMA : 0, %s, DMA : 0)
      {MEM}
      %m2 = aie.mem(%u) {{
        %b = aie.dma_start(MM2S, 0, ^out, ^end)
      ^out:
        aie.use_lock(%full2, AcquireGreaterEqual, 1)
        aie.dma_bd(%out2 : memref<16xi32>, 0, 16)
        aie.use_lock(%free2, Release, 1)
        aie.next_bd ^out
      ^end:
        aie.end
      }}
      {first}
      {second}
      {SEQUENCE}
    }}
    }}"""
    assert (values(text, tmp_path) == 2 * X).all()


def test_a_channel_runs_its_programs_in_turn(tmp_path) -> None:
    """The first program takes 4 words into one place, the ring after it the other 12 in three parts."""
    mem = MEM.replace(
        "%a = aie.dma_start(S2MM, 0, ^in, ^next)\n^in:\n  aie.use_lock(%in_free, AcquireGreaterEqual, 1)\n"
        "  aie.dma_bd(%in : memref<16xi32>, 0, 16)\n  aie.use_lock(%in_full, Release, 1)\n  aie.next_bd ^in\n",
        "%a = aie.dma_start(S2MM, 0, ^in, ^more)\n^in:\n  aie.dma_bd(%in : memref<16xi32>, 12, 4)\n  aie.next_bd ^end\n"
        "^more:\n  %c = aie.dma_start(S2MM, 0, ^rest, ^next)\n^rest:\n"
        "  aie.use_lock(%in_free, AcquireGreaterEqual, 1)\n  aie.dma_bd(%in : memref<16xi32>, 0, 12)\n"
        "  aie.use_lock(%in_full, Release, 1)\n  aie.next_bd ^end\n",
    )
    assert (values(design(ADD, mem=mem), tmp_path) == np.concatenate([X[4:], X[:4]]) + 1).all()


def test_old_spelling_means_the_same(tmp_path) -> None:
    old = design(ADD).replace("aie.runtime_sequence", "aiex.runtime_sequence")
    old = old.replace("dma_memcpy_nd(%a", "dma_memcpy_nd(0, 0, %a").replace(
        "dma_memcpy_nd(%b", "dma_memcpy_nd(0, 0, %b"
    )
    assert (values(old, tmp_path) == X + 1).all()


def test_a_missing_release_is_a_wait_graph_not_a_hang(tmp_path) -> None:
    text = design(ADD).replace("aie.use_lock(%out_full, Release, 1)\naie.end", "aie.end")
    with pytest.raises(DeviceFault, match="deadlock") as fault:
        values(text, tmp_path)
    assert "core(0,2) MM2S 0 waits for lock 'out_full' of core(0,2) >= 1, it is 0" in str(fault.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("arith.addi %v, %one : i32", "math.ctpop %v : i32", r"math\.ctpop"),
        (TAKE, TAKE + "%z = memref.get_global @nothing : memref<2xi32>\n", "a memref.global of this device"),
        ("aie.dma_bd(%in", "aie.use_lock(%in_free, AcquireGreaterEqual, 1)\n  aie.dma_bd(%in", "a second acquire"),
        ("aie.dma_bd(%in : memref<16xi32>, 0, 16)", "aie.dma_bd(%in : memref<16xi32>, 0, 16, "
         "[<size = 16, stride = 1>], [<const_pad_before = 1, const_pad_after = 0>, <const_pad_before = 1, "
         "const_pad_after = 0>])", "2 pads of 1 data dimensions"),
        ("aiex.npu.dma_wait {symbol = @to_host}", "aiex.npu.write32 {address = 1 : ui32, value = 1 : ui32}",
         r"aiex\.npu\.write32"),
    ],
)  # fmt: skip
def test_what_is_outside_the_subset_is_refused_by_operation_and_line(old: str, new: str, message: str) -> None:
    text = design(ADD).replace(old, new)
    assert text != design(ADD)
    with pytest.raises(Refusal, match=message) as refusal:
        load_program(text)
    assert refusal.value.where.startswith("module:")


def test_packets_replay_bit_for_bit(tmp_path) -> None:
    body = """%n = arith.constant 16 : i32
    func.call @add_one(%in, %out, %n) : (memref<16xi32>, memref<16xi32>, i32) -> ()"""
    declared = 'func.func private @add_one(memref<16xi32>, memref<16xi32>, i32) attributes {link_with = "foreign.o"}\n'
    text = packet_design().replace(ADD, body).replace("%m = aie.mem", declared + "%m = aie.mem")
    session = TwinDevice(tmp_path, tier="replay").open_program(load_program(text), "main", {"foreign.o": kernels()})
    session.bind("sequence", {0: "a", 1: "b"})
    for name in "ab":
        session.allocate(name, X.nbytes)
    for factor in (1, 7, -3):
        session.write("a", 0, factor * X)
        session.run("sequence")
        assert (session.read("b", 0, (N,), np.int32) == factor * X + 1).all()
    assert [record.tier for record in session.log()] == ["event", "replay", "replay"]


def test_a_buffer_that_stands_inside_the_core_is_memory_of_its_tile(tmp_path) -> None:
    body = (
        '%scratch = aie.buffer(%t) {sym_name = "scratch"} : memref<16xi32>\n'
        + EACH
        + """
%v = memref.load %in[%i] : memref<16xi32>
%w = arith.addi %v, %one : i32
memref.store %w, %scratch[%i] : memref<16xi32>
%x = memref.load %scratch[%i] : memref<16xi32>
%y = arith.muli %x, %x : i32
memref.store %y, %out[%i] : memref<16xi32>
}"""
    )
    text = design(body)
    assert {b.name: b.tile.row for b in load_program(text).devices[0].buffers}["scratch"] == 2
    (out,), _ = run(text, X, cache_=tmp_path)
    assert (out == (X + 1) ** 2).all()


@pytest.mark.parametrize("address", [-559038737, 65536])
def test_an_address_outside_the_tile_is_found(address: int) -> None:
    from npu.legality import check

    text = design(ADD).replace('{sym_name = "in"}', f'{{address = {address} : i32, sym_name = "in"}}')
    assert {"data memory", "overlap in data memory"} & {v.limit for v in check(load_program(text))}
