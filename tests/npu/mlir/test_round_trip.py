# SPDX-License-Identifier: Apache-2.0
"""Each operation's text is read and written back unchanged; what no schema knows is refused with its line."""

from __future__ import annotations

import pytest

from npu.mlir.text import parse_module, print_module
from refusal import Refusal

# One line each, as mlir-aie's own tests write them (whitespace as its printer does); %t.. are tiles, %l a lock.
IN_DEVICE = [
    "%x = aie.tile(3, 4)",
    '%x = aie.tile(3, 4) {allocation_scheme = "bank-aware"}',
    '%x = aie.buffer(%core) {sym_name = "acc"} : memref<16x8xbf16>',
    '%x = aie.buffer(%core) {sym_name = "acc", address = 1024 : i32, mem_bank = 0 : i32} : memref<4xi32>',
    '%x = aie.buffer(%core) {sym_name = "acc"} : memref<4xi32> = dense<[1, 2, 3, 4]>',
    '%x = aie.lock(%core, 3) {init = 1 : i32, sym_name = "l"}',
    "%x = aie.lock(%core) {init = 1 : i32}",
    "aie.flow(%shim, DMA : 0, %mem, DMA : 1)",
    "aie.cascade_flow(%core, %peer)",
    "aie.shim_dma_allocation @a(%shim, MM2S, 1)",
    "aie.shim_dma_allocation @a(%shim, S2MM, 0, <pkt_type = 1, pkt_id = 2>)",
    "aie.objectfifo @f(%shim, {%core}, 2 : i32) : !aie.objectfifo<memref<16xi32>>",
    "aie.objectfifo @f(%mem, {%core, %peer}, [2, 3, 4]) : !aie.objectfifo<memref<16x16xbf16>>",
    "aie.objectfifo @f(%mem dimensionsToStream [<size = 16, stride = 1>, <size = 4, stride = 16>], "
    "{%core dimensionsFromStream [<size = 64, stride = 1>], %peer}, 2 : i32) : !aie.objectfifo<memref<64xi32>>",
    "aie.objectfifo @f(%mem, {%core}, 2 : i32) {via_DMA = true, disable_synchronization = true, "
    "repeat_count = 3 : i32, iter_count = 5 : i32} : !aie.objectfifo<memref<16xi32>>",
    "aie.objectfifo @f(%core, {%peer}, 2 : i32) : !aie.objectfifo<memref<2xi32>> = "
    "[dense<[0, 1]> : memref<2xi32>, dense<[2, 3]> : memref<2xi32>]",
    "aie.objectfifo.link [@a, @b] -> [@c]([0, 128] [])",
    "aie.objectfifo.link [@a] -> [@b, @c]([] [0, 128])",
    "aie.objectfifo.allocate @f(%core)",
    'func.func private @k(memref<4xi32>, i32) -> () attributes {link_with = "k.o"}',
]

BLOCKS = {
    "packet_flow": """\
    aie.packet_flow(3) {
      aie.packet_source<%shim, DMA : 0>
      aie.packet_dest<%core, DMA : 1>
    } {keep_pkt_header = true}""",
    "mem": """\
    %x = aie.memtile_dma(%mem) {
      %start = aie.dma_start(S2MM, 0, ^bb1, ^bb3)
    ^bb1:
      aie.use_lock(%lock, AcquireGreaterEqual, 1)
      aie.dma_bd(%buffer : memref<8xi32>, 0, 4)
      aie.use_lock(%lock, Release, 1)
      aie.next_bd ^bb2
    ^bb2:
      aie.dma_bd(%buffer : memref<8xi32>, 4, 4, [<size = 2, stride = 2>, <size = 2, stride = 1>]) {bd_id = 3 : i32}
      aie.next_bd ^bb1
    ^bb3:
      %start_1 = aie.dma_start(MM2S, 1, ^bb4, ^bb5, repeat_count = 2)
    ^bb4:
      aie.dma_bd_packet(0, 3)
      aie.dma_bd(%buffer : memref<8xi32>, 0, 8, [<size = 4, stride = 1>], \
[<const_pad_before = 2, const_pad_after = 2>])
      aie.next_bd ^bb5
    ^bb5:
      aie.end
    }""",
    "core": """\
    func.func private @k(memref<16xi32>, i32) -> ()
    %x = aie.core(%core) {
      %c0 = arith.constant 0 : index
      %c4 = arith.constant 4 : index
      %c1 = arith.constant 1 : index
      scf.for %i = %c0 to %c4 step %c1 {
        %held = aie.objectfifo.acquire @f(Consume, 2) : !aie.objectfifosubview<memref<16xi32>>
        %elem = aie.objectfifo.subview.access %held[1] : !aie.objectfifosubview<memref<16xi32>> -> memref<16xi32>
        %v = memref.load %elem[%i] : memref<16xi32>
        %big = arith.cmpi sgt, %v, %v : i32
        scf.if %big {
          func.call @k(%elem, %v) : (memref<16xi32>, i32) -> ()
        }
        aie.objectfifo.release @f(Consume, 2)
      }
      aie.end
    } {stack_size = 2048 : i32, dynamic_objfifo_lowering = true}""",
    "sequence": """\
    aie.runtime_sequence @run(%a: memref<64xi32>, %b: memref<64xi32>) {
      %task = aiex.dma_configure_task_for @f {
        aie.dma_bd(%a : memref<64xi32>, 0, 16, [<size = 4, stride = 16>, <size = 1, stride = 0>, \
<size = 4, stride = 4>, <size = 4, stride = 1>])
        aie.next_bd ^bb1
      ^bb1:
        aie.dma_bd(%b : memref<64xi32>, 8, 8)
        aie.end
      } {issue_token = true, repeat_count = 3 : i32}
      %other = aiex.dma_configure_task(%shim, MM2S, 1) {
        aie.dma_bd(%a : memref<64xi32>, 0, 8) {bd_id = 2 : i32}
        aie.end
      }
      aiex.dma_start_task(%task)
      aiex.dma_await_task(%task)
      aiex.dma_free_task(%other)
      aiex.npu.dma_memcpy_nd(%a[0, 0, 0, 8][1, 1, 1, 16][0, 0, 0, 1]) {metadata = @f, id = 1 : i64, \
issue_token = true} : memref<64xi32>
      aiex.npu.dma_wait {symbol = @f}
      aiex.npu.rtp_write(@rtp, 2, -3)
      aiex.set_lock(%lock, 1)
    }""",
    "configure": """\
    aie.runtime_sequence @run(%a: memref<64xi32>) {
      aiex.configure @other {
        %slice = memref.subview %a[16] [8] [1] : memref<64xi32> to memref<8xi32, strided<[1], offset: 16>>
        %view = memref.reinterpret_cast %slice to offset: [0], sizes: [8], strides: [1] : \
memref<8xi32, strided<[1], offset: 16>> to memref<8xi32>
        aiex.run @go(%view) : (memref<8xi32>)
      }
    }""",
}

HEAD = """builtin.module {
  aie.device(npu2) @d {
    %shim = aie.tile(0, 0)
    %mem = aie.tile(0, 1)
    %core = aie.tile(0, 2)
    %peer = aie.tile(1, 2)
    %lock = aie.lock(%mem, 0) {init = 0 : i32}
    %buffer = aie.buffer(%mem) {sym_name = "buffer"} : memref<8xi32>
"""
TAIL = "\n  }\n}\n"


def printed(text: str) -> str:
    return print_module(parse_module(text).module)


@pytest.mark.parametrize("line", IN_DEVICE, ids=lambda line: line[:40])
def test_an_operation_in_a_device_prints_as_it_was_written(line):
    text = f"{HEAD}    {line}{TAIL}"
    assert printed(text) == text


@pytest.mark.parametrize("name", BLOCKS)
def test_an_operation_with_a_body_prints_as_it_was_written(name):
    text = HEAD + BLOCKS[name] + TAIL
    assert printed(text) == text


def test_older_spellings_are_read():
    text = """module {
      aie.device(npu1_1col) {
        %shim = aie.tile(0, 0)
        %core = aie.tile(0, 2)
        aie.objectfifo @f(%shim, {%core}, 2 : i32) : !aie.objectfifo<memref<16xi32>>
        aiex.runtime_sequence(%a : memref<64xi32>) {
          aiex.npu.dma_memcpy_nd (0, 0, %a[0, 0, 0, 0][1, 1, 1, 64][0, 0, 0, 1]) {id = 0 : i64, metadata = @f} \
: memref<64xi32>
        }
      }
    }"""
    again = printed(text)
    assert "aie.device(npu1_1col) {" in again
    assert "aiex.npu.dma_memcpy_nd(%a[0, 0, 0, 0][1, 1, 1, 64][0, 0, 0, 1])" in again
    assert printed(again) == again


def test_value_names_that_xdsl_would_print_twice_stay_distinct():
    # xdsl strips one `_<digits>` and then numbers equal names: a_0_1, a_0_1_1, a_0_2 came out as a_0, a_0_1, a_0_1.
    tiles = "".join(f"    %{name} = aie.tile({col}, 2)\n" for col, name in enumerate(("a_0_1", "a_0_1_1", "a_0_2")))
    again = printed("builtin.module {\n  aie.device(npu2) @d {\n" + tiles + "  }\n}\n")
    names = [line.split("=")[0].strip() for line in again.splitlines() if "aie.tile" in line]
    assert len(set(names)) == 3
    assert printed(again) == again


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('%x = aie.buffer(%core) {sym_name = "a", mem_bnk = 1 : i32} : memref<4xi32>', "mem_bnk"),
        ("aie.objectfifo @f(%shim, {%core}, 2 : i32) {repeat_cnt = 2 : i32} : !aie.objectfifo<memref<4xi32>>", "repeat_cnt"),
        ("%x = aie.tile(3, 4) {controler_id = 1 : i32}", "controler_id"),
        ('func.func private @k(i32) -> () attributes {link_wiht = "k.o"}', "link_wiht"),
    ],
)  # fmt: skip
def test_an_attribute_outside_the_schema_is_refused_by_operation_and_line(line, found):
    with pytest.raises(Refusal) as refusal:
        parse_module(f"{HEAD}    {line}{TAIL}", file="d.mlir")
    assert found in refusal.value.found
    assert refusal.value.where.startswith(f"d.mlir:9: {'func.func' if 'func' in line else 'aie.'}")


@pytest.mark.parametrize(
    "line",
    [
        "aie.flow(%shim, DNA : 0, %mem, DMA : 1)",
        "aie.not_an_operation(%shim)",
        "%x = aie.lock(%core, )",
        "aie.objectfifo @f(%shim, {%core}, 2 : i32) : memref<4xi32>",
    ],
)
def test_text_that_is_not_mlir_aie_is_refused_by_line(line):
    with pytest.raises(Refusal) as refusal:
        parse_module(f"{HEAD}    {line}{TAIL}", file="d.mlir")
    assert refusal.value.where.startswith("d.mlir:9")


def test_an_unknown_device_is_refused():
    with pytest.raises(Refusal):
        parse_module("module { aie.device(npu3) { } }")
