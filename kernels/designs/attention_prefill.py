# SPDX-License-Identifier: Apache-2.0
"""Causal attention of a prefill bucket: M query tokens against the same M keys, on 8 columns x R rows of cores.

K and V blocks enter once, at shim 0, and are broadcast to all cores; KV heads follow one another in time. A query tile is
eight tokens of one head. Column c owns tokens 8c..8c+7 of every block of 64 tokens (7-c in odd KV heads, whose causal work
then evens out); its (token tile, head of the group) pairs
are numbered token-major and dealt to the R rows in turn, so that any group size works and every core has nearly the same causal
work. A core keeps all its tiles of one KV head in L1 with FP32 running maximum, sum and accumulator; tiles that
end before a key block are skipped in the kernel.

DDR bytes: Q + K + V + out, each once.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.attention_prefill.stage import PrefillAttentionStage
from kernels.designs.design import Operand, symbol
from npu.artifact import KernelObject
from npu.mlir.build import DeviceBuilder
from npu.program import MemRef
from refusal import Refusal

COLUMNS = 8
QUERY_TILE = 8
TOKEN_BLOCK = COLUMNS * QUERY_TILE  # tokens of all columns in one round
KV_HEADS_IN_FLIGHT = 2


@dataclass(frozen=True)
class PrefillAttentionDesign:
    """tokens: the bucket M, a multiple of 64. heads, kv_heads, head_dim as in the model. mode: matrix mode."""

    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    pad_heads: int = 0  # zero heads behind v in a row of qkv
    key_block: int = 32
    mode: str = "bf16"

    def __post_init__(self) -> None:
        if self.tokens % TOKEN_BLOCK or self.tokens // self.key_block > 64:
            raise Refusal(
                f"{self.tokens} tokens", expected=f"a multiple of {TOKEN_BLOCK}, at most {64 * self.key_block}",
                where="prefill attention", next_step="choose another prefill bucket",
            )  # fmt: skip
        if self.heads % self.kv_heads:
            raise Refusal(f"{self.heads} heads over {self.kv_heads} KV heads", expected="a whole group",
                          where="prefill attention")  # fmt: skip
        self.stage.check()

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def pairs(self) -> int:
        """Query tiles of a column and KV head."""
        return self.tokens // TOKEN_BLOCK * self.group

    @property
    def core_rows(self) -> int:
        """Rows of cores used: the largest of 4, 3, 2, 1 that deals the pairs evenly."""
        return next(rows for rows in (4, 3, 2, 1) if self.pairs % rows == 0)

    @property
    def slots(self) -> int:
        """Query tiles of one core and KV head."""
        return self.pairs // self.core_rows

    @property
    def stage(self) -> PrefillAttentionStage:
        return PrefillAttentionStage(
            head_dim=self.head_dim, key_block=self.key_block, slots=self.slots, group=self.group,
            core_rows=self.core_rows, mode=self.mode,
        )  # fmt: skip

    @property
    def name(self) -> str:
        return symbol("prefill_attention", {"m": self.tokens, "h": self.heads, "kv": self.kv_heads}, self)

    @property
    def row_width(self) -> int:
        """Elements of one token's q, k, v and padding."""
        return (self.heads + 2 * self.kv_heads + self.pad_heads) * self.head_dim

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            Operand("qkv", "in", MemRef((self.tokens * self.row_width,), "bf16"), "[M][q heads, k heads, v heads][D]"),
            Operand("out", "out", MemRef((self.tokens * self.heads * self.head_dim,), "bf16"), "[M][heads][D]"),
        )

    @property
    def objects(self) -> tuple[KernelObject, ...]:
        return (self.stage.object,)

    @property
    def macs(self) -> int:
        """Causal half of QK and PV, in tiles of eight queries and eight keys: the least that must be computed."""
        seen = sum(first + QUERY_TILE for first in range(0, self.tokens, QUERY_TILE))
        return 2 * seen * QUERY_TILE * self.head_dim * self.heads

    @property
    def ddr_bytes(self) -> int:
        return 2 * self.tokens * (self.row_width + self.heads * self.head_dim)

    def write(self, device: DeviceBuilder) -> None:
        _Writer(self, device).write()


def token_column(col: int, kv_head: int) -> int:
    """Which eighth of a block of 64 tokens column `col` works on: later tokens see more keys, so odd KV heads turn it round."""
    return COLUMNS - 1 - col if kv_head % 2 else col


class _Writer:
    def __init__(self, design: PrefillAttentionDesign, device: DeviceBuilder) -> None:
        self.design, self.device = design, device
        self.tile_type = MemRef((QUERY_TILE * design.head_dim,), "bf16")
        self.column_type = MemRef((design.core_rows * QUERY_TILE * design.head_dim,), "bf16")
        self.kv_type = MemRef((design.key_block * design.head_dim,), "bf16")

    def write(self) -> None:
        self._fifos()
        for col in range(COLUMNS):
            for row in range(self.design.core_rows):
                self._core(col, row)
        self._sequence()

    def _fifos(self) -> None:
        d, rows = self.device, self.design.core_rows
        cores = {(col, row): d.tile(col, 2 + row) for col in range(COLUMNS) for row in range(rows)}
        self.cores = cores
        self.kv_in = d.fifo("kv_in", producer=d.tile(0, 0), consumers=[d.tile(0, 1)], depth=4, element=self.kv_type)
        everyone = [cores[col, row] for col in range(COLUMNS) for row in range(rows)]
        self.kv = d.fifo(
            "kv_all", producer=d.tile(0, 1), consumers=everyone, depth=[4] + [4] * len(everyone), element=self.kv_type
        )
        d.link([self.kv_in], [self.kv])
        self.q_in, self.q, self.out, self.out_column = [], {}, {}, []
        offsets = [row * self.tile_type.elements for row in range(rows)]
        for col in range(COLUMNS):
            shim, mem = d.tile(col, 0), d.tile(col, 1)
            self.q_in.append(d.fifo(f"q_in_c{col}x", producer=shim, consumers=[mem], depth=2, element=self.column_type))
            self.out_column.append(
                d.fifo(f"out_c{col}x", producer=mem, consumers=[shim], depth=2, element=self.column_type)
            )
            for row in range(rows):
                core = cores[col, row]
                self.q[col, row] = d.fifo(
                    f"q_c{col}r{row}x", producer=mem, consumers=[core], depth=2, element=self.tile_type
                )
                self.out[col, row] = d.fifo(
                    f"out_c{col}r{row}x", producer=core, consumers=[mem], depth=2, element=self.tile_type
                )
            d.link([self.q_in[col]], [self.q[col, row] for row in range(rows)], dest_offsets=offsets)
            d.link([self.out[col, row] for row in range(rows)], [self.out_column[col]], source_offsets=offsets)

    def _core(self, col: int, row: int) -> None:
        d, g = self.device, self.design
        stage = g.stage
        f = {name: d.kernel(name, list(types), link_with=stage.object.name) for name, types in stage.functions.items()}
        tile = self.cores[col, row]
        queries, acc, max_sum = (
            d.buffer(tile, stage.buffers[name], name=f"{name}_c{col}r{row}x") for name in ("queries", "acc", "max_sum")
        )
        q, out = self.q[col, row], self.out[col, row]
        with d.core(tile, stack_size=stage.stack_bytes, dynamic=True) as c, c.forever(), c.loop(g.kv_heads) as kv_head:
            # token_column, in the core: col for even KV heads, COLUMNS - 1 - col for odd ones
            odd = c.binary("rem", kv_head, 2)
            column = c.add(c.mul(odd, COLUMNS - 1 - 2 * col), col)
            c.call(f["prefill_reset"], acc, max_sum)
            with c.loop(g.slots) as slot:
                (tokens,) = c.acquire(q, "Consume", 1)
                c.call(f["prefill_take_query"], tokens, queries, slot)
                c.release(q, "Consume", 1)
            with c.loop(g.tokens // g.key_block) as block:
                k, v = c.acquire(self.kv, "Consume", 2)
                c.call(f["prefill_block"], queries, k, v, acc, max_sum, block, column, row)
                c.release(self.kv, "Consume", 2)
            with c.loop(g.slots) as slot:
                (result,) = c.acquire(out, "Produce", 1)
                c.call(f["prefill_finish"], acc, max_sum, result, slot)
                c.release(out, "Produce", 1)

    def _sequence(self) -> None:
        g = self.design
        with self.device.sequence("run", [operand.type for operand in g.operands]) as s:
            in_flight: list[tuple[list, list]] = []
            for kv_head in range(g.kv_heads):
                in_flight.append(self._start(s, kv_head))
                if len(in_flight) == KV_HEADS_IN_FLIGHT:
                    self._finish(s, *in_flight.pop(0))
            for tasks in in_flight:
                self._finish(s, *tasks)

    def _start(self, s, kv_head: int) -> tuple[list, list]:
        g = self.design
        width, dim, blocks = g.row_width, g.head_dim, g.tokens // g.key_block
        k_first = (g.heads + kv_head) * dim
        kv = s.bd(0, k_first, [blocks, 2, g.key_block, dim], [g.key_block * width, g.kv_heads * dim, width, 1])
        # Inputs carry tokens: only an awaited task is known to have left its channel's queue.
        inputs = [s.task(self.kv_in, [kv], token=True, repeat=blocks - 1)]
        outputs = []
        rounds = g.tokens // TOKEN_BLOCK
        q_first = kv_head * g.group * dim
        out_width = g.heads * dim
        for col in range(COLUMNS):
            token = token_column(col, kv_head) * QUERY_TILE
            sizes = [rounds, g.group, QUERY_TILE, dim]
            q = s.bd(0, token * width + q_first, sizes, [TOKEN_BLOCK * width, dim, width, 1])
            inputs.append(s.task(self.q_in[col], [q], token=True, repeat=rounds - 1))
            out = s.bd(1, token * out_width + q_first, sizes, [TOKEN_BLOCK * out_width, dim, out_width, 1])
            outputs.append(s.task(self.out_column[col], [out], token=True, repeat=rounds - 1))
        for task in inputs + outputs:
            s.start(task)
        return inputs, outputs

    def _finish(self, s, inputs: list, outputs: list) -> None:
        for task in outputs + inputs:
            s.wait(task)
