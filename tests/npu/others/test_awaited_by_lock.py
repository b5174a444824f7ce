# SPDX-License-Identifier: Apache-2.0
"""An output without a token: awaited where a shim lock hands it to a transfer that is awaited, and else a fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npu.device import DeviceFault
from tests.npu.others.bench import run

# The array writes argument 0, its BD gives shim lock 1, and the transfer that takes lock 1 sends argument 1 to a core.
FIELDS = [f"d{i}_{what}" for i in range(3) for what in ("size", "stride", "zero_after", "zero_before")] + [
    "enable_packet", "iteration_current", "iteration_size", "iteration_stride", "next_bd", "out_of_order_id", "packet_id",
    "packet_type", "use_next_bd", "buffer_offset", "column", "row",
]  # fmt: skip
DESIGN = """
module {
  aie.device(npu2) {
    %shim = aie.tile(0, 0)
    %memtile = aie.tile(0, 1)
    %tile = aie.tile(0, 2)
    %mine = aie.buffer(%memtile) : memref<4xi32> = dense<[5, 6, 7, 8]>
    %theirs = aie.buffer(%tile) : memref<4xi32>
    aie.flow(%memtile, DMA : 0, %shim, DMA : 0)
    aie.flow(%shim, DMA : 0, %tile, DMA : 0)
    %send = aie.memtile_dma(%memtile) {
      %0 = aie.dma_start(MM2S, 0, ^bd, ^end)
    ^bd:
      aie.dma_bd(%mine : memref<4xi32>, 0, 4)
      aie.next_bd ^end
    ^end:
      aie.end
    }
    %take = aie.mem(%tile) {
      %0 = aie.dma_start(S2MM, 0, ^bd, ^end)
    ^bd:
      aie.dma_bd(%theirs : memref<4xi32>, 0, 4)
      aie.next_bd ^end
    ^end:
      aie.end
    }
    aie.runtime_sequence(%a: memref<4xi32>, %b: memref<4xi32>) {
      aiex.npu.writebd {bd_id = 0 : i32, OUT}
      aiex.npu.address_patch {addr = 118788 : ui32, arg_idx = 0 : i32, arg_plus = 0 : i32}
      aiex.npu.writebd {bd_id = 1 : i32, IN}
      aiex.npu.address_patch {addr = 118820 : ui32, arg_idx = 1 : i32, arg_plus = 0 : i32}
      aiex.npu.push_queue(0, 0, S2MM : 0) {bd_id = 0 : i32, issue_token = false, repeat_count = 0 : i32}
      aiex.npu.push_queue(0, 0, MM2S : 0) {bd_id = 1 : i32, issue_token = true, repeat_count = 0 : i32}
      aiex.npu.sync {channel = 0 : i32, column = 0 : i32, column_num = 1 : i32, direction = 1 : i32, row = 0 : i32, row_num = 1 : i32}
    }
  }
}
"""


def bd(*, take: int | None, give: int | None) -> str:
    values = dict.fromkeys(FIELDS, 0) | {
        "buffer_length": 4,
        "valid_bd": 1,
        "lock_acq_enable": int(take is not None),
        "lock_acq_id": take or 0,
        "lock_acq_val": int(take is not None),
        "lock_rel_id": give or 0,
        "lock_rel_val": int(give is not None),
    }
    return ", ".join(f"{name} = {value} : i32" for name, value in values.items())


def design(give: int | None, take: int | None) -> str:
    return DESIGN.replace("OUT", bd(take=None, give=give)).replace("IN", bd(take=take, give=None))


def test_an_output_that_an_awaited_transfer_had_to_wait_for_is_awaited(tmp_path: Path) -> None:
    (out,), _ = run(design(give=1, take=1), np.arange(4, dtype=np.int32), cache_=tmp_path)
    assert out.tolist() == [5, 6, 7, 8]


def test_an_output_that_the_awaited_transfer_did_not_wait_for_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(DeviceFault, match="writes memory and was never awaited"):
        run(design(give=1, take=None), np.arange(4, dtype=np.int32), cache_=tmp_path)
