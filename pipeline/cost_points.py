# SPDX-License-Identifier: Apache-2.0
"""Writes npu/data/npu2_points.json: published timings at shapes that our designs express, with the twin's counts of our designs.

    python -m pipeline.cost_points TIMINGS.json

TIMINGS.json: a table of published timings; "points" with kernel, shape fields, herd, time_us, regime, date and status. Taken
are stand-alone timings of finished kernels on all eight columns, whose data fits this computer's patience; of several at
one shape (tile sweeps, harnesses) the fastest, since our planner chooses its own tiles too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from kernels.designs.attention_prefill import PrefillAttentionDesign
from kernels.designs.design import OpDesign
from kernels.designs.gemv import GemvDesign, rows_for
from kernels.designs.rowwise import AddDesign, RmsNormDesign, RopeDesign, SiluMulDesign
from npu.cost_error import POINTS_PATH, Point, Points
from npu.device import Device
from pipeline.context import cache_directory
from pipeline.files import write_whole
from pipeline.model_session import legality_of
from pipeline.work import flow_of_design
from pipeline.worker import open_device
from planner.tiles import choose_gemm
from refusal import Refusal

MOST_MACS = 9e9  # of one dispatch: a minute of the twin
MOST_ELEMENTS = 9 << 20
MOST_WEIGHTS = 40 << 20
WIDTH = 2048  # of a flat elementwise operand, as published tiles have it
Legal = Callable[[OpDesign], bool]


def expressed(point: dict[str, Any], legal: Legal) -> OpDesign | None:
    """Our design at a published point's shape; None where the point is not one of ours."""
    if point.get("status") != "measured" or not point.get("time_us") or not _whole_array(point):
        return None
    make = _MAKERS.get(point["kernel"])
    try:
        return make(point, legal) if make else None
    except Refusal:
        return None  # a shape that our designs refuse


def _whole_array(point: dict[str, Any]) -> bool:
    regime = point.get("regime", "")
    plain = "no L2" not in regime and "no turbo" not in regime and point.get("tile", {}).get("pingpong") != "off"
    herd = point.get("herd", [8, 1])
    return regime.startswith("standalone") and plain and (herd[0] == 8 or point["kernel"] == "GEMM")


def _gemm(p: dict[str, Any], legal: Legal) -> OpDesign | None:
    if p["m"] * p["k"] * p["n"] > MOST_MACS or p.get("method") not in (
        "drain",
        "fused-cast",
        "external",
        "direct-codegen",
    ):
        return None
    out = p.get("dtype_out", "bf16")
    design = choose_gemm(p["m"], p["k"], p["n"], mode="bfp16", out=out, exact=True, legal=legal)
    return design if p.get("herd", [8, 4]) in ([8, 4], [4, 4]) else None


def _gemv(p: dict[str, Any], _: Legal) -> OpDesign | None:
    rows = rows_for(p["m"], p["k"])
    return GemvDesign(p["m"], p["k"], rows) if rows and p["m"] * p["k"] <= MOST_WEIGHTS else None


def _add(p: dict[str, Any], _: Legal) -> OpDesign | None:
    elements = p.get("m", 1) * p["n"]
    width = p.get("tile", {}).get("tile_n") or WIDTH
    fits = elements % (8 * width) == 0 and elements <= MOST_ELEMENTS and p.get("dtype") == "bf16"
    return AddDesign(elements // width, width) if fits else None


def _silu(p: dict[str, Any], _: Legal) -> OpDesign | None:
    return SiluMulDesign(p["n"] // WIDTH, WIDTH) if p["n"] % (8 * WIDTH) == 0 and p["n"] <= MOST_ELEMENTS else None


def _rmsnorm(p: dict[str, Any], _: Legal) -> OpDesign | None:
    return RmsNormDesign(p["m"], p["n"], p["n"], 1e-5) if p["m"] % 8 == 0 else None


def _rope(p: dict[str, Any], _: Legal) -> OpDesign | None:
    heads = next((h for h in (32, 24, 16, 12, 8) if p["rows"] % (8 * h) == 0 and p["rows"] // h >= 256), 0)
    return RopeDesign(p["rows"] // heads, heads, 0, p["head_dim"]) if heads else None


def _attention(p: dict[str, Any], _: Legal) -> OpDesign | None:
    whole = p.get("causal") and p["lq"] == p.get("lk") and p["dk"] == 64
    if not whole or p["n_q_heads"] * p["lq"] ** 2 > 16 * 2048**2:
        return None
    return PrefillAttentionDesign(p["lq"], p["n_q_heads"], p["n_kv_heads"], p["dk"])


_MAKERS: dict[str, Callable[[dict[str, Any], Legal], OpDesign | None]] = {
    "GEMM": _gemm, "GEMV": _gemv, "EltwiseAdd": _add, "SiLU_Mul": _silu, "RMSNorm": _rmsnorm,
    "RoPE_halfsplit": _rope, "RoPE": _rope, "FlashAttention": _attention,
}  # fmt: skip
SHAPE_FIELDS = ("m", "k", "n", "rows", "head_dim", "lq", "n_q_heads", "n_kv_heads", "dtype_out")


def points_of(table: dict[str, Any], device: Device, cache: Path) -> Iterator[Point]:
    """Every point that is expressed, with the counts of one dispatch on the twin."""
    legal = legality_of(cache)
    for raw in table["points"]:
        design = expressed(raw, legal)
        if design is None:
            continue
        flow = flow_of_design(design, device, cache)
        core = asdict(flow.work.core)
        del core["core"]
        yield Point(
            kernel=raw["kernel"].split("_")[0].replace("FlashAttention", "Attention"),
            shape=" ".join(f"{name}={raw[name]}" for name in SHAPE_FIELDS if name in raw and raw[name] != 1),
            design=design.name, published_us=float(raw["time_us"]),
            regime=" ".join(filter(None, (raw["regime"], raw.get("framework"), raw.get("method")))), date=raw.get("date", ""),
            **core, channel=flow.work.channel, column=flow.work.column, ddr_bytes=flow.work.ddr_bytes,
            instructions=flow.instructions, fill_bytes=flow.fill_bytes,
        )  # fmt: skip
        print(f"{design.name}: published {raw['time_us']} us", flush=True)


def fastest(points: Iterable[Point]) -> tuple[Point, ...]:
    """Of the points at one shape of a kernel, the one with the least published time."""
    found: dict[tuple[str, str], Point] = {}
    for point in points:
        key = (point.kernel, point.shape)
        if key not in found or point.published_us < found[key].published_us:
            found[key] = point
    return tuple(found.values())


def main(arguments: list[str]) -> int:
    """TIMINGS.json [OUT.json]"""
    table = json.loads(Path(arguments[0]).read_text())
    out = Path(arguments[1]) if arguments[1:] else POINTS_PATH
    cache = cache_directory()
    points = fastest(points_of(table, open_device("twin", cache), cache))
    text = msgspec.json.format(msgspec.json.encode(Points(f"{table['title']}. {table['source']}", points)), indent=1)
    write_whole(out, text.decode() + "\n")
    print(f"{len(points)} points: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
