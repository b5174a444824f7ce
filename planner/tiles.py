# SPDX-License-Identifier: Apache-2.0
"""Tile choice: among the tilings a core can hold, the one with the least predicted time that is legal.

The prediction is a first one, a maximum of four terms, each with the source of its rate; `npu.cost` may refine it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kernels.designs.design import OpDesign
from kernels.designs.gemm import COLUMNS, GemmDesign, candidates
from refusal import Refusal

CLOCK_HZ = 1.8e9  # turbo; npu2-hardware facts 2.1
BFP16_MACS_PER_CYCLE = 512  # mac_8x8_8x8T; facts 2.1
BF16_MACS_PER_CYCLE = 64  # element MACs; facts 2.1 (32 or 64: sources disagree)
DDR_BYTES_PER_S = 57e9  # GEMM path aggregate; facts 6.2
CHANNEL_BYTES_PER_S = 8.9e9  # one shim MM2S channel; facts 6.2
LOAD_BYTES_PER_CYCLE = 128  # two 512-bit loads; facts 2.1
CALL_CYCLES = 60  # lock pair, call and loop set-up of one kernel call: an assumption, not measured


@dataclass(frozen=True)
class Prediction:
    """Seconds by resource; `seconds` is the largest. Provenance of every figure: model."""

    compute: float
    ddr: float
    channel: float

    @property
    def seconds(self) -> float:
        return max(self.compute, self.ddr, self.channel)


def predict_gemm(design: GemmDesign) -> Prediction:
    """Predicted seconds of one GEMM dispatch, without dispatch and switch costs."""
    mt, nt, kt = design.tiles
    rate = BFP16_MACS_PER_CYCLE if design.mode == "bfp16" else BF16_MACS_PER_CYCLE
    macs = design.m * design.k * design.n / rate
    # With r x c register blocking an mmul step loads (r + c) operand blocks of 128 bytes for r * c products.
    r, c = (2 if design.m % 16 == 0 else 1), (2 if design.n % 16 == 0 else 1)
    loads = design.m * design.k * design.n / 512 * 128 * (r + c) / (r * c) / LOAD_BYTES_PER_CYCLE
    core = mt * nt * (kt * (max(macs, loads) + CALL_CYCLES) + 2 * CALL_CYCLES + design.m * design.n / 16)
    a_feed = 2 * design.M * design.K * nt / 4
    b_feed = 2 * design.K * design.N * mt / COLUMNS
    return Prediction(core / CLOCK_HZ, design.ddr_bytes / DDR_BYTES_PER_S, max(a_feed, b_feed) / CHANNEL_BYTES_PER_S)


def choose_gemm(
    rows: int,
    cols_in: int,
    cols_out: int,
    *,
    mode: str,
    out: str = "bf16",
    exact: bool = True,
    weight_tile: tuple[int, int] | None = None,
    legal: Callable[[OpDesign], bool],
) -> GemmDesign:
    """The fastest legal tiling by prediction.

    Args:
        weight_tile: (k, n) that the packed weight already has, so that all buckets share one copy.
        legal: whether the legality check accepts the design.
    """
    found = candidates(rows, cols_in, cols_out, mode=mode, out=out, exact=exact)
    if weight_tile:
        found = [design for design in found if (design.k, design.n) == weight_tile]
    return first_legal(
        sorted(found, key=lambda d: (predict_gemm(d).seconds, d.ddr_bytes, d.k)), legal,
        f"GEMM {rows}x{cols_in}x{cols_out}",
    )  # fmt: skip


def first_legal(designs: Iterable[GemmDesign], legal: Callable[[OpDesign], bool], what: str) -> GemmDesign:
    """The first design that the legality check accepts; Refusal when none does."""
    tried = 0
    for design in designs:
        tried += 1
        if legal(design):
            return design
    raise Refusal(
        f"none of {tried} tilings is legal", expected="at least one", where=what,
        next_step="another bucket size, or add a design for this shape (skill add-kernel when it exists)",
    )  # fmt: skip
