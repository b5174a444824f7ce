# SPDX-License-Identifier: Apache-2.0
"""Decode attention's stage: one token's query heads against cached key blocks, states merged from core to core."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels.rope.stage import rope_lanes
from kernels.stage import MMUL_OPERATIONS, Argument, Stage, bf16, f32, float_literal
from npu.program import MemRef

TILE = 8  # query heads of a matrix operand, keys of a group
PARAMS = 32  # bf16 words: 64 bytes, of which int32 word 0 is the position
MAX_HEAD_DIM = 256


@dataclass(frozen=True)
class DecodeAttentionStage(Stage):
    """heads, kv_heads, head_dim as in the model: at most 8 query heads a KV head, head_dim a multiple of 16, 32..256.
    key_block: 32 or 64 keys."""

    heads: int
    kv_heads: int
    head_dim: int
    key_block: int = 32

    name = "attention_decode"

    def check(self) -> None:
        """Refuse what the source does not take."""
        self.require_multiple("kv_heads", self.kv_heads, 1)
        self.require_multiple("heads", self.heads, self.kv_heads)
        self.require(
            self.group <= TILE, "heads / kv_heads", self.group, f"at most {TILE}", "this kernel has no larger groups"
        )
        self.require_multiple("head_dim", self.head_dim, 16)
        self.require(
            32 <= self.head_dim <= MAX_HEAD_DIM, "head_dim", self.head_dim, "32 to 256", "this kernel does not fit"
        )
        self.require(self.key_block in (32, 64), "key_block", self.key_block, "32 or 64", "choose key_block")

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def scale_log2e(self) -> float:
        """What fp32 scores are multiplied by: log2(e) / sqrt(head_dim)."""
        return math.log2(math.e) / math.sqrt(self.head_dim)

    @property
    def defines(self) -> dict[str, str | int]:
        return {
            "HEADS": self.heads,
            "KV_HEADS": self.kv_heads,
            "HEAD_DIM": self.head_dim,
            "KEY_BLOCK": self.key_block,
            "SCALE_LOG2E": float_literal(self.scale_log2e),
        }

    @property
    def qkv(self) -> int:
        """Elements of one token's q, k and v: also of the output."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def header(self) -> MemRef:
        """params, cos, sin, q, k, v."""
        return bf16(PARAMS + self.head_dim + self.qkv)

    @property
    def buffers(self) -> dict[str, MemRef]:
        return {
            "queries": bf16(self.heads * self.head_dim),
            "state": f32(self.heads * self.head_dim + 2 * TILE * self.kv_heads),
        }

    @property
    def stack_bytes(self) -> int:
        """Scores (fp32) and probabilities (bf16) of one block, and a margin for spilled registers."""
        return TILE * self.key_block * 6 + 512

    @property
    def functions(self) -> dict[str, tuple[Argument, ...]]:
        queries, state = self.buffers["queries"], self.buffers["state"]
        keys, out = bf16(self.key_block * self.head_dim), bf16(self.qkv)
        return {
            "decode_prepare": (self.header, queries, state),
            "decode_block": (self.header, queries, keys, keys, state, "i32", "i32"),
            "decode_current": (self.header, queries, state, out),
            "decode_merge": (state, state),
            "decode_pass": (state, state),
            "decode_finish": (state, out),
        }

    @property
    def _tiles(self) -> int:
        return self.head_dim // TILE

    def macs(self, function: str) -> int:
        """Of `decode_block`: a whole block, no maximum moved; of `decode_current`: every maximum moved."""
        own = self.kv_heads * self.head_dim * TILE  # elements of all heads' tiles, padded to 8 rows
        if function == "decode_prepare":
            return 2 * self.heads * self.head_dim
        if function == "decode_block":
            return self.key_block * TILE * (2 * self.head_dim + 6)
        if function == "decode_current":
            # rotation; QK, PV and the rescaling; scaling of a score tile and of the sums
            return 2 * self.kv_heads * self.head_dim + own * (2 * TILE + 3) + self.kv_heads * TILE * TILE * (6 + 3)
        if function == "decode_merge":
            return own * 6 + self.kv_heads * TILE * TILE * 6
        if function == "decode_finish":
            return own * 6
        if function in self.functions:
            return 0
        raise self.unknown(function)

    def vector_operations(self, function: str) -> int:
        """Of `decode_block`: a whole block, no maximum moved; of `decode_current`: every maximum moved."""
        rotation = self.head_dim // 2 // rope_lanes(self.head_dim) * 6
        matrix, groups = MMUL_OPERATIONS["bf16"], self.key_block // TILE
        if function == "decode_prepare":
            return self.heads * rotation + self.heads * self.head_dim // TILE + 2 * self.kv_heads
        if function == "decode_block":
            return self._tiles * (groups // 4 * 6 + 8 + 2 * groups * (matrix + 2)) + groups * 48 + 37
        if function == "decode_current":
            return self.kv_heads * (rotation + self._tiles * (2 * matrix + 35) + 105)
        if function == "decode_merge":
            return self.kv_heads * (self._tiles * 50 + 54)
        if function == "decode_pass":
            return 0
        if function == "decode_finish":
            return self.kv_heads * (self._tiles * 28 + 29)
        raise self.unknown(function)
