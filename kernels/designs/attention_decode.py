# SPDX-License-Identifier: Apache-2.0
"""Decode attention: one token against its KV cache, context blocks split over the cores, partial results merged in a chain.

The cache of one layer is [KV head][group of 128 keys][K|V][128][D]. Column c takes groups c, c+columns, ...; its memtile deals 32 keys
to each of four cores. A header (params | cos, sin | q k v of the new token) is broadcast to all cores; each rotates q for itself and
keeps FP32 maximum, sum and accumulator of every head. Cores merge down their column to row 0, then along row 0 from west to east, through
their neighbour's memory (no DMA channel). The last core scores the new token's own key and value, normalises, and writes
attention output, rotated k and v. The key position is data (`params`), so one artifact serves every position of a bucket:
keys at or beyond it are masked, blocks wholly beyond it are fetched but not computed.

DDR bytes: K and V of the bucket + header + output.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.attention_decode.stage import DecodeAttentionStage
from kernels.designs.design import Operand, symbol
from npu.artifact import KernelObject
from npu.mlir.build import DeviceBuilder
from npu.program import MemRef
from refusal import Refusal

MAX_COLUMNS, ROWS = 8, 4
KEY_BLOCK = 32
KEY_GROUP = ROWS * KEY_BLOCK
PARAMS = 32  # bf16 words of the params block: 64 bytes
MIN_GROUPS = 2  # two groups are eight cores


def cache_elements(context: int, kv_heads: int, head_dim: int) -> int:
    """bf16 elements of one layer's cache for `context` keys."""
    return 2 * context * kv_heads * head_dim


@dataclass(frozen=True)
class DecodeAttentionDesign:
    """bucket: keys that are fetched; context: keys that the cache in memory is laid out for (both multiples of 128)."""

    bucket: int
    context: int
    heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        groups = self.bucket // KEY_GROUP
        legal = self.bucket % KEY_GROUP == 0 and self.context % KEY_GROUP == 0 and groups >= MIN_GROUPS
        if (
            not legal
            or groups % self.columns
            or self.bucket > self.context
            or self.context > 64 * KEY_GROUP * MAX_COLUMNS
        ):
            raise Refusal(
                f"context bucket {self.bucket} of a cache for {self.context}",
                expected=f"{MIN_GROUPS}, 4 or a multiple of {MAX_COLUMNS} groups of {KEY_GROUP} keys, within the cache",
                where="decode attention", next_step="choose buckets 256, 512, 1024, 2048, ...",
            )  # fmt: skip
        self.stage.check()

    @property
    def columns(self) -> int:
        return max(1, min(MAX_COLUMNS, self.bucket // KEY_GROUP))

    @property
    def blocks(self) -> int:
        """Key blocks of one core and KV head."""
        return self.bucket // KEY_GROUP // self.columns

    @property
    def stage(self) -> DecodeAttentionStage:
        return DecodeAttentionStage(
            heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim, key_block=KEY_BLOCK
        )

    @property
    def name(self) -> str:
        return symbol("decode_attention", {"ctx": self.bucket, "h": self.heads, "kv": self.kv_heads}, self)

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            Operand("params", "in", MemRef((PARAMS + self.head_dim,), "bf16"), "[i32 position, 60 bytes][cos D/2, sin D/2]"),
            Operand("qkv", "in", MemRef((self.qkv,), "bf16"), "[q heads, k heads, v heads][D]"),
            Operand(
                "cache", "in", MemRef((cache_elements(self.context, self.kv_heads, self.head_dim),), "bf16"),
                "[KV head][group][K|V][128][D]",
            ),
            Operand("out", "out", MemRef((self.qkv,), "bf16"), "[attention heads, rotated k heads, v heads][D]"),
        )  # fmt: skip

    @property
    def objects(self) -> tuple[KernelObject, ...]:
        return (self.stage.object,)

    @property
    def macs(self) -> int:
        return 2 * self.bucket * self.heads * self.head_dim

    @property
    def ddr_bytes(self) -> int:
        return 2 * (cache_elements(self.bucket, self.kv_heads, self.head_dim) + PARAMS + self.head_dim + 2 * self.qkv)

    def write(self, device: DeviceBuilder) -> None:
        _Writer(self, device).write()


class _Writer:
    def __init__(self, design: DecodeAttentionDesign, device: DeviceBuilder) -> None:
        self.design, self.device = design, device
        block = KEY_BLOCK * design.head_dim
        self.block_type, self.column_type = MemRef((block,), "bf16"), MemRef((ROWS * block,), "bf16")
        self.state_type = design.stage.buffers["state"]

    def write(self) -> None:
        self._fifos()
        for place in self.cores:
            self._core(*place)
        self._sequence()

    def _fifos(self) -> None:
        d, g = self.device, self.design
        self.cores = {(col, row): d.tile(col, 2 + row) for col in range(g.columns) for row in range(ROWS)}
        header_type = MemRef((PARAMS + g.head_dim + g.qkv,), "bf16")
        self.header = d.fifo(
            "header", producer=d.tile(0, 0), consumers=list(self.cores.values()), depth=1, element=header_type
        )
        last = self.cores[g.columns - 1, 0]
        self.out = d.fifo(
            "out", producer=last, consumers=[d.tile(g.columns - 1, 0)], depth=1, element=MemRef((g.qkv,), "bf16")
        )
        self.kv_in, self.kv, self.chain = [], {}, {}
        offsets = [row * self.block_type.elements for row in range(ROWS)]
        for col in range(g.columns):
            shim, mem = d.tile(col, 0), d.tile(col, 1)
            self.kv_in.append(
                d.fifo(f"kv_in_c{col}x", producer=shim, consumers=[mem], depth=4, element=self.column_type)
            )
            for row in range(ROWS):
                self.kv[col, row] = d.fifo(
                    f"kv_c{col}r{row}x",
                    producer=mem,
                    consumers=[self.cores[col, row]],
                    depth=[4, 4],
                    element=self.block_type,
                )
                target = (col, row - 1) if row else (col + 1, 0)
                if target in self.cores:
                    self.chain[col, row] = d.fifo(
                        f"chain_c{col}r{row}x",
                        producer=self.cores[col, row],
                        consumers=[self.cores[target]],
                        depth=1,
                        element=self.state_type,
                    )
            d.link([self.kv_in[col]], [self.kv[col, row] for row in range(ROWS)], dest_offsets=offsets)

    def _incoming(self, col: int, row: int) -> list:
        """The chain FIFOs that end at core (col, row): from the core above, and in row 0 from the west."""
        sources = [(col, row + 1)] + ([(col - 1, 0)] if row == 0 else [])
        return [self.chain[source] for source in sources if source in self.chain]

    def _core(self, col: int, row: int) -> None:
        d, g = self.device, self.design
        stage, tile = g.stage, self.cores[col, row]
        f = {name: d.kernel(name, list(types), link_with=stage.object.name) for name, types in stage.functions.items()}
        queries, state = (
            d.buffer(tile, stage.buffers[name], name=f"{name}_c{col}r{row}x") for name in ("queries", "state")
        )
        first_key = col * KEY_GROUP + row * KEY_BLOCK
        kv = self.kv[col, row]
        with d.core(tile, stack_size=stage.stack_bytes, dynamic=True) as c, c.forever():
            (header,) = c.acquire(self.header, "Consume", 1)
            c.call(f["decode_prepare"], header, queries, state)
            with (
                c.loop(g.kv_heads) as kv_head,
                c.loop(first_key, g.bucket + first_key, g.columns * KEY_GROUP) as key,
            ):
                k, v = c.acquire(kv, "Consume", 2)
                c.call(f["decode_block"], header, queries, k, v, state, kv_head, key)
                c.release(kv, "Consume", 2)
            for fifo in self._incoming(col, row):
                (incoming,) = c.acquire(fifo, "Consume", 1)
                c.call(f["decode_merge"], incoming, state)
                c.release(fifo, "Consume", 1)
            if (col, row) in self.chain:
                (outgoing,) = c.acquire(self.chain[col, row], "Produce", 1)
                c.call(f["decode_pass"], state, outgoing)
                c.release(self.chain[col, row], "Produce", 1)
            else:
                (out,) = c.acquire(self.out, "Produce", 1)
                c.call(f["decode_current"], header, queries, state, out)
                c.call(f["decode_finish"], state, out)
                c.release(self.out, "Produce", 1)
            c.release(self.header, "Consume", 1)

    def _sequence(self) -> None:
        g = self.design
        group = 2 * KEY_GROUP * g.head_dim
        head = g.context // KEY_GROUP * group
        with self.device.sequence("run", [operand.type for operand in g.operands]) as s:
            parts = [
                s.bd(0, 0, [1, 1, 1, PARAMS + g.head_dim], [0, 0, 0, 1]),
                s.bd(1, 0, [1, 1, 1, g.qkv], [0, 0, 0, 1]),
            ]
            inputs = [s.task(self.header, parts)]
            for col in range(g.columns):
                # A group's K and V are one linear run, cut into 1,024-element pieces that the inner wrap can count.
                sizes = [g.kv_heads, g.blocks, group // 1024, 1024]
                bd = s.bd(2, col * group, sizes, [head, g.columns * group, 1024, 1])
                inputs.append(s.task(self.kv_in[col], [bd], repeat=g.kv_heads - 1))
            out = s.task(self.out, [s.bd(3, 0, [1, 1, 1, g.qkv], [0, 0, 0, 1])], token=True)
            for task in [*inputs, out]:
                s.start(task)
            s.wait(out)
            for task in inputs:
                s.free(task)
