# SPDX-License-Identifier: Apache-2.0
"""Routed modules: switch connections followed by hand, and whole modules that aie-opt has lowered and routed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from npu.mlir.load import load_program
from npu.mlir.text import parse_module, print_module
from npu.program import Channel, Direction, Route, TileId
from npu.twin.device import TwinDevice

SHIM, MEM, CORE, BESIDE = TileId(0, 0), TileId(0, 1), TileId(0, 2), TileId(1, 2)


def out(tile: TileId, index: int) -> Channel:
    return Channel(tile, Direction.MM2S, index)


def into(tile: TileId, index: int) -> Channel:
    return Channel(tile, Direction.S2MM, index)


CIRCUITS = """
module {
  aie.device(npu2) {
    %s = aie.tile(0, 0)
    %m = aie.tile(0, 1)
    %c = aie.tile(0, 2)
    %b = aie.tile(1, 2)
    %mux = aie.shim_mux(%s) {
      aie.connect<DMA : 0, North : 3>
      aie.connect<North : 2, DMA : 0>
    }
    %ss = aie.switchbox(%s) {
      aie.connect<South : 3, North : 1>
      aie.connect<North : 0, South : 2>
    }
    %sm = aie.switchbox(%m) {
      aie.connect<South : 1, DMA : 4>
      aie.connect<South : 1, North : 1>
      aie.connect<North : 0, South : 0>
    }
    %sc = aie.switchbox(%c) {
      aie.connect<South : 1, DMA : 1>
      aie.connect<South : 1, East : 2>
      aie.connect<DMA : 0, South : 0>
    }
    %sb = aie.switchbox(%b) {
      aie.connect<West : 2, DMA : 0>
    }
    aie.wire(%mux : North, %ss : South)
  }
}
"""


def test_circuits_are_followed_through_mux_switches_and_turns() -> None:
    """Shim MM2S 0 -> South 3 -> memtile (DMA 4) -> core (DMA 1) and east of it (DMA 0); core -> shim S2MM 0."""
    assert set(load_program(CIRCUITS).devices[0].routes) == {
        Route(out(SHIM, 0), (into(MEM, 4), into(CORE, 1), into(BESIDE, 0))),
        Route(out(CORE, 0), (into(SHIM, 0),)),
    }


def test_a_connection_to_another_port_leads_nowhere() -> None:
    routes = load_program(CIRCUITS.replace("<West : 2, DMA : 0>", "<West : 1, DMA : 0>")).devices[0].routes
    assert Route(out(SHIM, 0), (into(MEM, 4), into(CORE, 1))) in routes
    assert load_program(CIRCUITS.replace("<South : 3, North : 1>", "<South : 7, North : 1>")).devices[0].routes == (
        Route(out(CORE, 0), (into(SHIM, 0),)),
    )


PACKETS = """
module {
  aie.device(npu2) {
    %s = aie.tile(0, 0)
    %m = aie.tile(0, 1)
    %mux = aie.shim_mux(%s) {
      aie.connect<DMA : 0, North : 3>
      aie.connect<North : 3, DMA : 1>
    }
    %ss = aie.switchbox(%s) {
      %0 = aie.amsel<0> (0)
      %1 = aie.amsel<1> (0)
      %2 = aie.masterset(North : 3, %0)
      %3 = aie.masterset(South : 3, %1) {keep_pkt_header = true}
      aie.packet_rules(South : 3) {
        aie.rule(27, 3, %0)
      }
      aie.packet_rules(North : 2) {
        aie.rule(31, 6, %1)
      }
    }
    %sm = aie.switchbox(%m) {
      %0 = aie.amsel<0> (0)
      %1 = aie.amsel<1> (1)
      %2 = aie.amsel<2> (0)
      %4 = aie.masterset(DMA : 0, %0, %1)
      %5 = aie.masterset(DMA : 2, %1)
      %6 = aie.masterset(South : 2, %2)
      aie.packet_rules(South : 3) {
        aie.rule(31, 7, %1)
        aie.rule(31, 3, %0)
      }
      aie.packet_rules(DMA : 3) {
        aie.rule(31, 6, %2)
      }
      aie.packet_rules(Trace : 0) {
        aie.rule(31, 6, %2)
      }
    }
    aie.packet_flow(3) {
      aie.packet_source<%s, DMA : 0>
      aie.packet_dest<%m, DMA : 0>
    }
  }
}
"""


def test_packets_are_followed_by_their_ids() -> None:
    """27 is 0b11011: ids 3 and 7 leave the shim. In the memtile 7 goes to a select that two channels listen to. The
    flow that routing left in the text is not taken twice."""
    device = load_program(PACKETS).devices[0]
    assert sorted(device.routes, key=repr) == sorted(
        (
            Route(out(SHIM, 0), (into(MEM, 0),), packet_id=3),
            Route(out(SHIM, 0), (into(MEM, 0), into(MEM, 2)), packet_id=7),
            Route(out(MEM, 3), (into(SHIM, 1),), packet_id=6, keep_header=True),
        ),
        key=repr,
    )
    assert device.notes == ("trace of memtile(0,1) to shim(0,0) S2MM 1: no trace is written",)


def test_routed_text_is_printed_as_it_is_read() -> None:
    for text in (CIRCUITS, PACKETS):
        again = print_module(parse_module(text).module)
        assert load_program(again).devices[0].routes == load_program(text).devices[0].routes


ADD = """
module {
  aie.device(npu2) {
    %shim = aie.tile(0, 0)
    %mem = aie.tile(0, 1)
    %core = aie.tile(0, 2)
    aie.objectfifo @in(%shim, {%mem}, 2 : i32) : !aie.objectfifo<memref<32xi32>>
    aie.objectfifo @part(%mem dimensionsToStream [<size = 4, stride = 1>, <size = 8, stride = 4>],
                         {%core}, 2 : i32) : !aie.objectfifo<memref<32xi32>>
    aie.objectfifo.link [@in] -> [@part]([] [])
    aie.objectfifo @out(%core, {%shim}, 2 : i32) : !aie.objectfifo<memref<32xi32>>
    %program = aie.core(%core) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c32 = arith.constant 32 : index
      %ten = arith.constant 10 : i32
      %end = arith.constant 4294967295 : index
      scf.for %n = %c0 to %end step %c1 {
        %a = aie.objectfifo.acquire @part(Consume, 1) : !aie.objectfifosubview<memref<32xi32>>
        %x = aie.objectfifo.subview.access %a[0] : !aie.objectfifosubview<memref<32xi32>> -> memref<32xi32>
        %b = aie.objectfifo.acquire @out(Produce, 1) : !aie.objectfifosubview<memref<32xi32>>
        %y = aie.objectfifo.subview.access %b[0] : !aie.objectfifosubview<memref<32xi32>> -> memref<32xi32>
        scf.for %i = %c0 to %c32 step %c1 {
          %v = memref.load %x[%i] : memref<32xi32>
          %w = arith.addi %v, %ten : i32
          memref.store %w, %y[%i] : memref<32xi32>
        }
        aie.objectfifo.release @part(Consume, 1)
        aie.objectfifo.release @out(Produce, 1)
      }
      aie.end
    }
    aie.runtime_sequence(%a: memref<256xi32>, %b: memref<128xi32>) {
      %take = aiex.dma_configure_task_for @out {
        aie.dma_bd(%b : memref<128xi32>, 0, 128)
        aie.end
      } {issue_token = true}
      %give = aiex.dma_configure_task_for @in {
        aie.dma_bd(%a : memref<256xi32>, 0, 64, [<size = 2, stride = 128>, <size = 4, stride = 16>, <size = 8, stride = 1>])
        aie.next_bd ^more
      ^more:
        aie.dma_bd(%a : memref<256xi32>, 64, 64)
        aie.end
      }
      aiex.dma_start_task(%take)
      aiex.dma_start_task(%give)
      aiex.dma_await_task(%take)
    }
  }
}
"""


def run_add(text: str, cache: Path) -> np.ndarray:
    program = load_program(text)
    session = TwinDevice(cache, tier="event", foreign=True).open_program(program, "main", {})
    session.bind("sequence", {0: "a", 1: "b"})
    session.allocate("a", 1024)
    session.allocate("b", 512)
    session.write("a", 0, np.arange(256, dtype=np.int32))
    session.run("sequence")
    return session.read("b", 0, (128,), "int32")


def expected_add() -> np.ndarray:
    """Two rows of four runs of 8, then words 64..127; each 32 words are sent as 4 columns of 8 rows, 4 apart; plus 10."""
    runs = [128 * row + 16 * part + i for row in range(2) for part in range(4) for i in range(8)]
    stream = np.array([*runs, *range(64, 128)], np.int32).reshape(4, 8, 4)
    return stream.transpose(0, 2, 1).reshape(-1) + 10


ROUTE = (
    "builtin.module(aie.device(aie-assign-lock-ids,aie-register-objectFifos,aie-objectFifo-stateful-transform,"
    "aie-assign-bd-ids,aie-assign-tile-controller-ids,aie-assign-buffer-addresses),convert-scf-to-cf,"
    "aie.device(aie-create-pathfinder-flows))"
)
LOWER = (
    "builtin.module(aie-materialize-runtime-sequences,aie.device(aie-materialize-bd-chains,"
    "aie-substitute-shim-dma-allocations,aie-assign-runtime-sequence-bd-ids,aie-dma-tasks-to-npu,aie-dma-to-npu,"
    "aie-lower-set-lock))"
)


def test_the_design_gives_what_its_patterns_say(tmp_path: Path) -> None:
    assert run_add(ADD, tmp_path).tolist() == expected_add().tolist()


@pytest.mark.skipif(shutil.which("aie-opt") is None, reason="no aie-opt on the PATH")
def test_aie_opts_registers_and_switches_give_the_same_values(tmp_path: Path) -> None:
    text = ADD
    for passes in (ROUTE, LOWER):
        done = subprocess.run(
            ["aie-opt", f"--pass-pipeline={passes}"], input=text, capture_output=True, text=True, check=True
        )
        text = done.stdout
        assert run_add(text, tmp_path).tolist() == expected_add().tolist()
    assert "aie.switchbox" in text
    assert "aiex.npu.blockwrite" in text
    assert "dma_configure_task" not in text


def test_a_quoted_predicate_is_the_same_predicate() -> None:
    body = "%t = aie.tile(0, 2)\n %core = aie.core(%t) {{ %a = arith.constant 1 : i32\n %x = arith.cmpi {}, %a, %a : i32\n aie.end }}"
    quoted, plain = (
        load_program(f"module {{ aie.device(npu2) {{ {body.format(word)} }} }}").devices[0].cores[0].body
        for word in ('"eq"', "eq")
    )
    assert dict(quoted[-1].attributes)["predicate"] == dict(plain[-1].attributes)["predicate"] == "eq"
