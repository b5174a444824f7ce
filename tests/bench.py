# SPDX-License-Identifier: Apache-2.0
"""`make bench`: measured ratios and rates of this machine, one run, printed with what they are. Never a test.

Twin speed per design (event and replay), one decode step and one prefill of the demo model on the twin, the oracle against
transformers, peak memory. Wall times are the host's; nothing here says how fast an NPU is.
"""

from __future__ import annotations

import json
import resource
import runpy
import tempfile
import time
from pathlib import Path

import numpy as np

from kernels.designs.attention_decode import DecodeAttentionDesign
from kernels.designs.attention_prefill import PrefillAttentionDesign
from kernels.designs.design import OpDesign, single_design_artifact
from kernels.designs.gemm import GemmDesign
from kernels.designs.gemv import GemvDesign, rows_for
from kernels.designs.rowwise import AddDesign, RmsNormDesign, RopeDesign, SiluMulDesign
from npu.twin.device import TwinDevice
from pipeline.exercise import case_of
from pipeline.model_session import ModelSession, legality_of
from pipeline.synthesize import config_values
from planner.plan import Choices, make_plan
from reference.oracle.config import load_config
from reference.oracle.tensors import open_weights

CACHE = Path(".cache/bench")
MODEL = Path("models/smollm2-135m-instruct")
ROUNDS = 5
EPSILON = 1e-5
DESIGNS: tuple[OpDesign, ...] = (
    GemmDesign(512, 576, 3072, 64, 32, 64),
    GemmDesign(512, 576, 3072, 64, 32, 64, mode="bf16"),
    GemvDesign(49152, 576, rows_for(49152, 576), "norm", "f32", 576, EPSILON),
    GemvDesign(576, 1536, rows_for(576, 1536), "add"),
    RmsNormDesign(512, 576, 576, EPSILON),
    RopeDesign(512, 12, 3, 64),
    SiluMulDesign(512, 1536),
    AddDesign(512, 576),
    PrefillAttentionDesign(512, 9, 3, 64),
    DecodeAttentionDesign(2048, 2048, 9, 3, 64),
)


def time_design(design: OpDesign, tier: str) -> float:
    """Best seconds of one dispatch in the given tier."""
    session = TwinDevice(CACHE, tier=tier).open(single_design_artifact(design))
    for operand in design.operands:
        session.allocate(operand.name, operand.type.nbytes)
    session.bind("run", {index: operand.name for index, operand in enumerate(design.operands)})
    for name, values in case_of(design, np.random.default_rng(0)).inputs.items():
        session.write(name, 0, values)
    best = float("inf")
    for _ in range(ROUNDS if tier == "replay" else 2):
        started = time.perf_counter()
        session.run("run")
        best = min(best, time.perf_counter() - started)
    return best


def designs() -> None:
    """Twin rates per design."""
    print(f"{'design':<44}{'event ms':>10}{'replay ms':>11}{'ratio':>7}{'GFLOP/s':>9}")
    for design in DESIGNS:
        time_design(design, "replay")
        event, replay = time_design(design, "event"), time_design(design, "replay")
        rate = 2 * design.macs / replay / 1e9
        print(f"{design.name:<44}{event * 1e3:10.1f}{replay * 1e3:11.2f}{event / replay:7.1f}{rate:9.2f}", flush=True)


def demo_model() -> None:
    """One prefill and decode steps of the demo model on the twin."""
    if not MODEL.exists():
        print("demo model: not there; make demo prepares it")
        return
    config = load_config(MODEL)
    choices = Choices(prefill_buckets=(64,), decode_buckets=(256,), context=256, score_bucket=None)
    session = ModelSession(config, open_weights(config), TwinDevice(CACHE), choices, cache=CACHE)
    ids = list(range(1000, 1065))
    session.prefill(ids[:-1])
    started = time.perf_counter()
    session.prefill(ids[:-1])
    print(f"demo model: prefill of 64 tokens {time.perf_counter() - started:.2f} s")
    session.decode(ids[-1])
    steps = []
    for token in ids[:8]:
        started = time.perf_counter()
        session.decode(token)
        steps.append(time.perf_counter() - started)
    print(f"demo model: decode step best {min(steps):.2f} s, median {sorted(steps)[4]:.2f} s (replay)")


def one_layer() -> None:
    """One layer of Llama-3.2-1B's shape, its dispatches summed: prefill of 256 tokens and a decode step at 512 keys."""
    values = config_values("llama-3.2-1b", layers=1)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(values))
        config = load_config(Path(folder))
    plan = make_plan(
        config,
        Choices(prefill_buckets=(256,), decode_buckets=(512,), context=512, score_bucket=None),
        legal=legality_of(CACHE),
    )
    seconds: dict[tuple[str, str], float] = {}
    for entry in plan.entries:
        dispatches = [d for d in entry.dispatches if any(name.startswith("layers.") for name in d.covers)]
        for tier in ("event", "replay"):
            for design in {d.design.name: d.design for d in dispatches}.values():
                if (design.name, tier) not in seconds:
                    seconds[design.name, tier] = time_design(design, tier)
        event, replay = (sum(seconds[d.design.name, tier] for d in dispatches) for tier in ("event", "replay"))
        print(f"one layer of llama-3.2-1b, {entry.name}: {len(dispatches)} dispatches, replay {replay:.2f} s, "
              f"event {event:.2f} s, {event / replay:.1f} times", flush=True)  # fmt: skip


def main() -> None:
    """Everything, in order."""
    designs()
    one_layer()
    demo_model()
    if MODEL.exists():
        runpy.run_module("tests.reference.bench_against_transformers", run_name="__main__", alter_sys=True)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
