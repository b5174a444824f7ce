# SPDX-License-Identifier: Apache-2.0
"""Text through the real loader: what it lowers is what is counted."""

import pytest

from npu.legality import Severity, check
from npu.mlir.load import load_program

TEXT = """
module {{
  aie.device(npu2) @main {{
    %shim = aie.tile(0, 0)
    %mem = aie.tile(0, 1)
    %core = aie.tile(0, 2)
    aie.objectfifo @a(%shim, {{%mem}}, 2 : i32) : !aie.objectfifo<memref<{n}xi32>>
    aie.objectfifo @a_core(%mem, {{%core}}, {depth} : i32) : !aie.objectfifo<memref<{n}xi32>>
    aie.objectfifo.link [@a] -> [@a_core] ([] [])
    aie.objectfifo @c(%core, {{%shim}}, 2 : i32) : !aie.objectfifo<memref<16xi32>>
    func.func private @k(memref<{n}xi32>, memref<16xi32>) attributes {{link_with = "k.o"}}
    %worker = aie.core(%core) {{
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %many = arith.constant 4 : index
      scf.for %i = %zero to %many step %one {{
        %in = aie.objectfifo.acquire @a_core(Consume, {held}) : !aie.objectfifosubview<memref<{n}xi32>>
        %x = aie.objectfifo.subview.access %in[0] : !aie.objectfifosubview<memref<{n}xi32>> -> memref<{n}xi32>
        %out = aie.objectfifo.acquire @c(Produce, 1) : !aie.objectfifosubview<memref<16xi32>>
        %y = aie.objectfifo.subview.access %out[0] : !aie.objectfifosubview<memref<16xi32>> -> memref<16xi32>
        func.call @k(%x, %y) : (memref<{n}xi32>, memref<16xi32>) -> ()
        aie.objectfifo.release @a_core(Consume, {held})
        aie.objectfifo.release @c(Produce, 1)
      }}
      aie.end
    }}
    aie.runtime_sequence @sequence(%x: memref<65536xi32>, %y: memref<64xi32>) {{
      %send = aiex.dma_configure_task_for @a {{
        aie.dma_bd(%x : memref<65536xi32>, 0, {length})
        aie.end
      }}
      aiex.dma_start_task(%send)
      %take = aiex.dma_configure_task_for @c {{
        aie.dma_bd(%y : memref<64xi32>, 0, 64)
        aie.end
      }} {{issue_token = true}}
      aiex.dma_start_task(%take)
      aiex.dma_await_task(%take)
      aiex.dma_free_task(%send)
    }}
  }}
}}
"""


def found(**given):
    values = {"n": 1024, "depth": 2, "held": 1, "length": 4096} | given
    return [v.limit for v in check(load_program(TEXT.format(**values))) if v.severity is not Severity.WARNING]


def test_the_text_as_it_stands_is_legal():
    assert found() == []


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"depth": 17, "held": 16, "length": 65536, "n": 64}, "buffer descriptors"),
        ({"n": 4096, "depth": 5, "held": 4, "length": 16384}, "data memory"),
        ({"length": 4095}, "whole FIFO elements per sequence"),
        ({"length": 65540}, "bounds of the argument"),
    ],
)
def test_one_number_too_many_is_found_after_lowering(given, limit):
    assert limit in found(**given)
