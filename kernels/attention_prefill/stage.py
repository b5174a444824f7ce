# SPDX-License-Identifier: Apache-2.0
"""Prefill attention's stage: a core's query tiles of one KV head against key blocks, causal, online softmax."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels.stage import BFP16_DEFINE, MATRIX_MODES, MMUL_OPERATIONS, Argument, Stage, bf16, f32, float_literal
from npu.program import MemRef

TILE = 8  # tokens of a query tile, keys of a group
MAX_HEAD_DIM = 256


@dataclass(frozen=True)
class PrefillAttentionStage(Stage):
    """head_dim: a multiple of 8, 32..256. key_block: 32 or 64 keys. slots: query tiles of the core. group: query heads
    per KV head. core_rows: rows of cores that pairs (token tile, head of the group) are dealt to. mode: "bf16", "bfp16"."""

    head_dim: int
    key_block: int
    slots: int
    group: int
    core_rows: int
    mode: str = "bf16"

    name = "attention_prefill"

    def check(self) -> None:
        """Refuse what the source does not take."""
        self.require_multiple("head_dim", self.head_dim, TILE)
        self.require(
            32 <= self.head_dim <= MAX_HEAD_DIM, "head_dim", self.head_dim, "32 to 256", "this kernel does not fit"
        )
        self.require(self.key_block in (32, 64), "key_block", self.key_block, "32 or 64", "choose key_block")
        for parameter in ("slots", "group", "core_rows"):
            self.require_multiple(parameter, getattr(self, parameter), 1)
        self.require_one_of("mode", self.mode, MATRIX_MODES)

    @property
    def scale_log2e(self) -> float:
        """What fp32 scores are multiplied by: log2(e) / sqrt(head_dim)."""
        return math.log2(math.e) / math.sqrt(self.head_dim)

    @property
    def defines(self) -> dict[str, str | int]:
        macros: dict[str, str | int] = {
            "HEAD_DIM": self.head_dim,
            "KEY_BLOCK": self.key_block,
            "SLOTS": self.slots,
            "GROUP": self.group,
            "CORE_ROWS": self.core_rows,
            "SCALE_LOG2E": float_literal(self.scale_log2e),
        }
        if self.mode == "bfp16":
            macros[BFP16_DEFINE] = 1
        return macros

    @property
    def buffers(self) -> dict[str, MemRef]:
        return {
            "queries": bf16(self.slots * TILE * self.head_dim),
            "acc": f32(self.slots * TILE * self.head_dim),
            "max_sum": f32(self.slots * 2 * 16),
        }

    @property
    def stack_bytes(self) -> int:
        """Scores (fp32) and probabilities (bf16) of one tile and block, and a margin for spilled registers."""
        return TILE * self.key_block * 6 + 512

    @property
    def functions(self) -> dict[str, tuple[Argument, ...]]:
        own = self.buffers
        tile, keys = bf16(TILE * self.head_dim), bf16(self.key_block * self.head_dim)
        return {
            "prefill_reset": (own["acc"], own["max_sum"]),
            "prefill_take_query": (tile, own["queries"], "i32"),
            "prefill_block": (own["queries"], keys, keys, own["acc"], own["max_sum"], "i32", "i32", "i32"),
            "prefill_finish": (own["acc"], own["max_sum"], tile, "i32"),
        }

    def groups(self, block: int, col: int, row: int, slot: int) -> int:
        """Groups of 8 keys of a block that a slot computes: 0 when the block begins after its last token."""
        first_token = ((slot * self.core_rows + row) // self.group * TILE + col) * TILE
        first_key = block * self.key_block
        return 0 if first_token < first_key else min(self.key_block, first_token - first_key + TILE) // TILE

    def macs(self, function: str) -> int:
        """Of `prefill_block`: when every slot sees the whole block; `block_macs` counts a given one."""
        if function == "prefill_block":
            return self.slots * self._slot_macs(self.key_block // TILE)
        if function == "prefill_finish":
            return 6 * TILE * self.head_dim
        if function in self.functions:
            return 0
        raise self.unknown(function)

    def block_macs(self, block: int, col: int, row: int) -> int:
        """Matrix multiply-adds of one call of prefill_block on core (col, row)."""
        groups = sum(self.groups(block, col, row, slot) for slot in range(self.slots))
        return groups * 2 * TILE * TILE * self.head_dim

    def _slot_macs(self, groups: int) -> int:
        # QK and PV, six products to scale a score
        return groups * TILE * TILE * (2 * self.head_dim + 6)

    def vector_operations(self, function: str) -> int:
        """Of `prefill_block`: when every slot sees the whole block and no maximum moves."""
        tiles, groups = self.head_dim // TILE, self.key_block // TILE
        if function == "prefill_reset":
            return 1 + self.slots
        if function == "prefill_take_query":
            return tiles * 4
        if function == "prefill_block":
            matrix = 2 * tiles * groups * MMUL_OPERATIONS[self.mode]
            return self.slots * (matrix + tiles * 4 + groups * 40 + 17) + 20
        if function == "prefill_finish":
            return tiles * 24 + 29
        raise self.unknown(function)
