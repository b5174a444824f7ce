# SPDX-License-Identifier: Apache-2.0
"""demo: a real, trained model through the phases on the digital twin, in the foreground, then its own words."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from judge.evaluation import EvaluationLimits, Result
from pipeline import worker
from pipeline.conduct import PHASES, conduct, pending
from pipeline.context import PhaseContext, cache_directory
from pipeline.deployment import Deployment
from pipeline.estimate import phase_seconds
from pipeline.evaluation_report import verdict_of
from pipeline.intake import describe, pack_hash
from pipeline.verbs.console import End, parser
from pipeline.verbs.deploy import introduce, standing
from pipeline.verbs.evaluate import begin
from pipeline.verbs.generate import speak
from reference.demo_model import prepare_demo_model
from reference.oracle.config import load_config
from reference.oracle.sampling import Sampler

MODEL = Path("models") / "smollm2-135m-instruct"
PROMPT = "What is a digital twin? Answer in one sentence."
TOKENS = 32


def demo(arguments: list[str]) -> End:
    """Command line of scripts/demo.py."""
    args = _parser().parse_args(arguments)
    print("no NPU is used here: values are computed by the digital twin; times on the NPU are not measured")
    try:
        return _demo(args)
    except KeyboardInterrupt:
        print("\ninterrupted; every finished phase is recorded")
        return End(2, "make demo  # goes on from the last finished phase")


def _demo(args: argparse.Namespace) -> End:
    started = time.monotonic()
    model = prepare_demo_model(MODEL)
    description = describe(str(model), device="twin", name=args.name, layers=args.layers)
    deployment = Deployment.start(description, pack_hash=pack_hash(worker.PACK))
    introduce(deployment)
    cache = cache_directory()
    device = worker.open_device("twin", cache)

    def progress(line: str) -> None:
        deployment.log(line)
        print(f"[{time.monotonic() - started:6.1f} s] {line}", flush=True)

    config = load_config(model)
    for phase in pending(deployment):
        title = PHASES[phase][0]
        estimate = phase_seconds(config, description.choices, phase)
        progress(f"phase {phase}, {title}: about {estimate / 60:.1f} minutes on two cores")
    ctx = PhaseContext(deployment, device, cache, progress)
    code = conduct(ctx)
    if code:
        return End(code, deployment.state().next)
    print(f"\n{PROMPT}")
    speak(deployment, device, cache, PROMPT, TOKENS, Sampler())
    if description.partial:
        print("\nphase 7 is left out: a partial deployment is never proven")
        return End(0, f"scripts/generate.py {deployment.name} --prompt TEXT")
    return _evaluate(deployment, progress)


def _evaluate(deployment: Deployment, progress: Callable[[str], None]) -> End:
    """Phase 7 in its own process, followed to its end: this program may keep its caller."""
    progress("phase 7, independent evaluation: from a copy of the pack, on data drawn now")
    if not str(verdict_of(deployment)).startswith(Result.PROVEN):
        position = worker.log_size(deployment)
        begin(deployment, EvaluationLimits().text_positions, EvaluationLimits().greedy_tokens)
        for line in worker.follow(deployment, float("inf"), position):
            print(line, flush=True)
    print(f"\n{deployment.name}: {verdict_of(deployment) or 'the evaluation ended without a verdict'}")
    return standing(deployment)


def _parser() -> argparse.ArgumentParser:
    p = parser("demo", "Deploy SmolLM2-135M-Instruct on the digital twin and let it speak.")
    p.add_argument("--layers", type=int, help="only the first N layers: labelled partial, never proven")
    p.add_argument("--name", default="smollm2-135m-instruct")
    return p
