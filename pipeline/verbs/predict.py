# SPDX-License-Identifier: Apache-2.0
"""predict: the cost model's terms, of one kernel by shape, or of a deployment's designs and entries. Nothing is measured."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from kernels.designs.design import OpDesign
from npu.cost import predict_flow, switch_term
from npu.cost_error import cost_error
from npu.cost_rates import DEPLOYED_DISPATCH
from pipeline import worker
from pipeline.context import cache_directory
from pipeline.deployment import Deployment, find
from pipeline.host_time import decode_host, prefill_host
from pipeline.model_session import legality_of
from pipeline.phases.optimise import skill_for
from pipeline.predict import Predictor
from pipeline.verbs.console import LIMIT_SECONDS, End, parser
from pipeline.verbs.kernel import KINDS, design_of, shape_arguments
from planner.plan import Entry, Plan, make_plan
from reference.oracle.config import load_config
from refusal import Refusal

MODEL_LINE = (
    "provenance of every time: model. Predicted from published rates and the twin's counts; nothing was measured"
)


def predict(arguments: list[str]) -> End:
    """Command line of scripts/predict.py."""
    args = _parser().parse_args(arguments)
    print(MODEL_LINE)
    cache = cache_directory()
    predictor = Predictor(worker.open_device("twin", cache), cache)
    if args.kernel:
        if args.name or args.entry:
            raise Refusal("a kernel and --name or --entry", expected="one of them", where="arguments")
        end = _kernel(args, predictor)
    else:
        end = _deployment(args, predictor, arguments)
    print("the model against published timings:")
    for statement in cost_error():
        print(f"  {statement.line()}")
    return end


def _kernel(args: argparse.Namespace, predictor: Predictor) -> End:
    """Terms of one design: a launch of its own, as `run` makes it."""
    design = design_of(args, predictor.cache)
    program, flow = predictor.design(design)
    prediction = predict_flow(design.name, flow, launch=DEPLOYED_DISPATCH)
    for line in [*prediction.lines(), f"    once: {switch_term(program).line()}"]:
        print(line)
    return End(0, f"skill {skill_for(prediction.binds)}")


def _deployment(args: argparse.Namespace, predictor: Predictor, arguments: Sequence[str]) -> End:
    """Terms of every design of the chosen entries, then of each entry."""
    deployment = find(args.name)
    plan = _plan(deployment, predictor.cache)
    entries = _chosen(plan, args.entry)
    designs = {d.design.name: d.design for entry in entries for d in entry.dispatches}
    if not _count(list(designs.values()), predictor):
        return End(0, shlex.join(["scripts/predict.py", *arguments]))
    for design in designs.values():
        program, flow = predictor.design(design)
        for line in [*predict_flow(design.name, flow).lines(), f"    {switch_term(program).line()}"]:
            print(line)
    binds = ""
    for entry in entries:
        prediction = predictor.entry(entry)
        binds = prediction.binds
        for line in prediction.lines():
            print(line)
        print(f"  {_host_line(plan, entry, prediction.seconds)}")
    return End(0, f"skill {skill_for(binds)}")


def _plan(deployment: Deployment, cache: Path) -> Plan:
    description = deployment.description
    config = load_config(Path(description.model_dir), description.accepted_keys)
    return make_plan(config, deployment.choices(), legal=legality_of(cache))


def _chosen(plan: Plan, name: str | None) -> list[Entry]:
    """The entry that was named; without one all but the score entry, which only gates use."""
    if name is None:
        return [entry for entry in plan.entries if not entry.name.startswith("score")]
    names = [entry.name for entry in plan.entries]
    if name not in names:
        raise Refusal(f"entry {name!r}", expected=f"one of {', '.join(names)}", where="--entry")
    return [plan.entry(name)]


def _count(designs: list[OpDesign], predictor: Predictor) -> bool:
    """Count every design on the twin; False if the time is up. What was counted is kept."""
    started = time.monotonic()
    for number, design in enumerate(designs):
        if time.monotonic() - started > LIMIT_SECONDS / 2:
            print(f"{number} of {len(designs)} designs are counted on the twin; the same command goes on from there")
            return False
        predictor.design(design)
    return True


def _host_line(plan: Plan, entry: Entry, seconds: float) -> str:
    """The host's part of an entry, by formula."""
    kind, bucket = entry.name.rsplit("_", 1)
    if kind not in ("prefill", "decode"):
        return "host time: not part of a run; this entry is for gates"
    work = prefill_host(plan, int(bucket)) if kind == "prefill" else decode_host(plan)
    return f"host, {100 * work.seconds / (work.seconds + seconds):.2f}% of the total: {work.term.line()}"


def _parser() -> argparse.ArgumentParser:
    p = parser("predict", "Predict times with the cost model: one kernel by shape, or the entries of a deployment.")
    p.add_argument("kernel", nargs="?", choices=sorted(KINDS), help="a kernel; leave out for a deployment")
    shape_arguments(p)
    p.add_argument("--name", help="the deployment (default: the only one)")
    p.add_argument("--entry", help="one entry, for instance decode_256 (default: all that a run uses)")
    return p
