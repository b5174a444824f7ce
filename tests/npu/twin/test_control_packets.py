# SPDX-License-Identifier: Apache-2.0
"""Control packets: requests worked out by hand, what they write, and the answers to what they read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npu.device import DeviceFault
from npu.mlir.load import load_program
from npu.twin.device import TwinDevice

TEXT = """
module {
  aie.device(npu2) {
    %shim = aie.tile(0, 0)
    %tile = aie.tile(0, 2)
    %go = aie.lock(%tile, 3) {init = 0 : i32}
    %there = aie.buffer(%tile) {address = 1024 : i32, sym_name = "there"} : memref<8xi32>
    aie.packet_flow(1) {
      aie.packet_source<%shim, DMA : 0>
      aie.packet_dest<%tile, TileControl : 0>
    }
    aie.packet_flow(2) {
      aie.packet_source<%tile, TileControl : 0>
      aie.packet_dest<%shim, DMA : 0>
    }
    %core = aie.core(%tile) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %two = arith.constant 2 : i32
      aie.use_lock(%go, AcquireGreaterEqual, 1)
      %x = memref.load %there[%c0] : memref<8xi32>
      %y = arith.muli %x, %two : i32
      memref.store %y, %there[%c1] : memref<8xi32>
      aie.end
    }
    aie.shim_dma_allocation @ask(%shim, MM2S, 0)
    aie.shim_dma_allocation @hear(%shim, S2MM, 0)
    aie.runtime_sequence(%a: memref<5xi32>, %b: memref<4xi32>) {
      aiex.npu.dma_memcpy_nd(%b[0, 0, 0, 0][1, 1, 1, 4][0, 0, 0, 1]) {id = 0 : i64, metadata = @hear} : memref<4xi32>
      aiex.npu.dma_memcpy_nd(%a[0, 0, 0, 0][1, 1, 1, 4][0, 0, 0, 1], packet = <pkt_type = 1, pkt_id = 1>)
        {id = 1 : i64, issue_token = true, metadata = @ask} : memref<5xi32>
      aiex.npu.dma_wait {symbol = @ask}
      aiex.npu.dma_memcpy_nd(%a[0, 0, 0, 4][1, 1, 1, 1][0, 0, 0, 1], packet = <pkt_type = 1, pkt_id = 1>)
        {id = 1 : i64, issue_token = true, metadata = @ask} : memref<5xi32>
      aiex.npu.dma_wait {symbol = @ask}
      aiex.npu.dma_wait {symbol = @hear}
    }
  }
}
""".replace(")\n        {id", ") {id")


def request(operation: int, words: int, address: int, answer: int = 0) -> int:
    """answer << 24 | operation << 22 | (words - 1) << 20 | address, with odd parity in bit 31."""
    word = answer << 24 | operation << 22 | (words - 1) << 20 | address
    return word | (bin(word).count("1") + 1) % 2 << 31


def run(cache: Path, requests: list[int], tier: str = "event") -> list[int]:
    session = TwinDevice(cache, tier=tier, foreign=True).open_program(load_program(TEXT), "main", {})
    session.bind("sequence", {0: "a", 1: "b"})
    session.allocate("a", 20)
    session.allocate("b", 16)
    session.write("a", 0, np.array(requests, np.uint32))
    session.run("sequence")
    return session.read("b", 0, (4,), "int32").tolist()


# 21 to word 0 of the buffer at 1024; lock 3 (0x1F030) to 1, so that the core doubles it into word 1.
WRITES = [request(0, 1, 1024), 21, request(0, 1, 0x1F030), 1]


def test_a_write_comes_whole_and_a_read_meets_only_words_that_were_written(tmp_path: Path) -> None:
    """A request of 4 words with 3 behind it; a read of 4 words of which two were written."""
    words = [request(0, 4, 1024), 21, 22, 23]
    with pytest.raises(DeviceFault, match="is to write 4 words and gets 3"):
        run(tmp_path, [*words, 0])
    with pytest.raises(DeviceFault, match=r"reads byte 8 of buffer 'there' of core\(0,2\), which nobody wrote"):
        run(tmp_path, [*WRITES, request(1, 4, 1024, answer=2)])


def test_the_core_sees_what_a_packet_wrote(tmp_path: Path) -> None:
    """The answer has two words, asked for twice: 21, and 42 that the core made of it."""
    longer = TEXT.replace("memref<5xi32>", "memref<6xi32>").replace("[1, 1, 1, 1]", "[1, 1, 1, 2]")
    program = load_program(longer)
    session = TwinDevice(tmp_path, tier="event", foreign=True).open_program(program, "main", {})
    session.bind("sequence", {0: "a", 1: "b"})
    session.allocate("a", 24)
    session.allocate("b", 16)
    twice = [request(1, 2, 1024, answer=2)] * 2
    session.write("a", 0, np.array([*WRITES, *twice], np.uint32))
    session.run("sequence")
    assert session.read("b", 0, (4,), "int32").tolist() == [21, 42, 21, 42]


@pytest.mark.parametrize(
    ("requests", "found"),
    [
        ([WRITES[0] ^ 1 << 31, *WRITES[1:], 0], "whose parity is even"),
        ([request(0, 1, 0x1D000), *WRITES[1:], 0], "writes offset 0x1d000: the twin's control packets reach"),
        ([request(2, 1, 1024), *WRITES[1:], 0], "takes operation 2"),
        ([*WRITES, request(1, 4, 1024, answer=5)], "nobody wrote"),
        ([request(0, 1, 0x1F000), *WRITES[1:], 0], "uses lock 0, which the device does not declare"),
    ],
)
def test_what_a_packet_may_not_ask(tmp_path: Path, requests: list[int], found: str) -> None:
    with pytest.raises(DeviceFault, match=found):
        run(tmp_path, requests)


def test_an_answer_needs_a_packet_flow_of_its_id(tmp_path: Path) -> None:
    with pytest.raises(DeviceFault, match=r"the control port of core\(0,2\) sends a packet with id 5.*\[2\]"):
        run(tmp_path, [*WRITES, request(1, 2, 1024, answer=5)])


def test_control_packets_are_not_replayed(tmp_path: Path) -> None:
    with pytest.raises(DeviceFault, match=r"replay.*control packets reach core\(0,2\)"):
        run(tmp_path, [*WRITES, request(1, 1, 1024, answer=2)], "replay")
