# SPDX-License-Identifier: Apache-2.0
"""emit: a folder for a machine with an NPU. The subject is a model, a deployment, or one kernel by shape."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from judge.policy import load_policy
from kernels.designs.design import OpDesign, single_design_artifact
from npu.legality.check import require_legal
from npu.mlir.load import load_program
from npu.twin.device import TwinDevice
from pipeline.context import cache_directory
from pipeline.deployment import Description, find
from pipeline.emission import MODULE, Emission
from pipeline.intake import describe, require_unchanged
from pipeline.model_session import ModelSession, legality_of
from pipeline.phases.kernels import seed_of
from pipeline.tape import RecordingDevice
from pipeline.verbs.console import LIMIT_SECONDS, End, parser, positive
from pipeline.verbs.kernel import KINDS
from planner.plan import Choices, make_plan
from reference.oracle.config import load_config
from reference.oracle.tensors import open_weights
from refusal import Refusal

PROMPT, STEPS = 24, 3  # tokens of the module's prefill, decode steps after it


@dataclass(frozen=True)
class Subject:
    """What is emitted: designs, and for a model its description."""

    designs: Sequence[OpDesign]
    about: dict[str, object]
    model: Description | None = None
    choices: Choices | None = None


def emit(arguments: list[str]) -> End:
    """Command line of scripts/emit.py."""
    started = time.monotonic()
    args = _parser().parse_args(arguments)
    cache = cache_directory()
    subject = _subject(args, cache)
    emission = Emission(args.out, TwinDevice(cache), load_policy())
    again = End(0, f"scripts/emit.py {shlex.join(arguments)}  # goes on where it stopped")
    slowest = 0.0
    for number, design in enumerate(subject.designs):
        if number and time.monotonic() - started + 2 * slowest > LIMIT_SECONDS - 20:
            print(f"{number} of {len(subject.designs)} designs are written")
            return again
        begun = time.monotonic()
        require_legal(load_program(single_design_artifact(design).text, cache=cache))
        if emission.add_design(design, seed_of(design)):
            print(f"{design.name}: passed its gate on the twin, written", flush=True)
        slowest = max(slowest, time.monotonic() - begun)
    if args.module and not (args.out / "designs" / MODULE / "design.json").exists():
        if time.monotonic() - started > LIMIT_SECONDS / 3:
            print("the designs are written, the module is next")
            return again
        _add_module(emission, subject, cache)
    identity = emission.finish(subject.about)
    size = sum(path.stat().st_size for path in args.out.rglob("*") if path.is_file())
    print(f"{len(subject.designs)} designs{' and the module' if args.module else ''}, {size / 1e6:.1f} MB, in {args.out}; "
          f"emission {identity[:16]}")  # fmt: skip
    print(
        "take the folder to a machine with an NPU and run run_here.sh there; bring results.json and outputs/ back into it"
    )
    return End(0, f"scripts/import_results.py {shlex.quote(str(args.out / 'results.json'))}")


def _parser() -> argparse.ArgumentParser:
    p = parser("emit", "Write a folder that compiles, runs, compares and times designs on a machine with an NPU.")
    p.add_argument("subject", help=f"a model directory or hub id, a deployment's name, or a kernel: {', '.join(KINDS)}")
    p.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write")
    p.add_argument(
        "--module", action="store_true", help="of a model: the whole main module too, with its packed weights"
    )
    for option, meaning in (
        ("-M", "rows (tokens)"), ("-K", "inputs"), ("-N", "outputs, or row width"), ("--heads", "query heads"),
        ("--kv-heads", "KV heads"), ("--head-dim", "elements of a head"), ("--bucket", "keys of the context bucket"),
        ("--layers", "of a model: how many layers"), ("--context", "of a model: keys of its cache"),
    ):  # fmt: skip
        p.add_argument(option, type=_positive, help=meaning)
    p.add_argument("--mode", default="bfp16", choices=["bfp16", "bf16"], help="matrix mode of a GEMM")
    p.add_argument("--kind", default="plain", choices=["plain", "norm", "add", "swiglu"], help="what a GEMV fuses")
    p.add_argument("--dtype", default="bf16", choices=["bf16", "f32"], help="output of a GEMM or GEMV")
    p.add_argument("--epsilon", type=positive, default=1e-5)
    p.add_argument("--entry", action="append", default=[], help="of a model: only designs of this entry (repeatable)")
    return p


def _positive(text: str) -> int:
    """A dimension: a whole number above zero."""
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above zero")
    return int(text)


def _subject(args: argparse.Namespace, cache: Path) -> Subject:
    if args.subject in KINDS:
        design = _kernel(args, cache)
        if args.module:
            raise Refusal(f"--module with the kernel {args.subject}", expected="a model", where="arguments",
                          next_step="leave --module out")  # fmt: skip
        # Operands are drawn, and there is no checkpoint behind them.
        return Subject([design], {"kernel": design.name, "synthetic": True})
    known = Path("deployments") / args.subject / "deployment.json"
    if known.exists():
        deployment = find(args.subject)
        description, choices, name = deployment.description, deployment.choices(), deployment.name
        require_unchanged(description)
    elif "/" not in args.subject and not Path(args.subject).expanduser().exists():
        there = sorted(path.parent.name for path in Path("deployments").glob("*/deployment.json"))
        raise Refusal(
            f"{args.subject!r} is no kernel, no deployment and no directory here",
            expected=f"a kernel ({', '.join(KINDS)}), a deployment ({', '.join(there) or 'none was started here'}), "
            "a model directory or a hub id",
            where="emit", next_step="correct the name or the path, and run the same command again",
        )  # fmt: skip
    else:
        description = describe(args.subject, device="twin", layers=args.layers, context=args.context, download=False)
        choices, name = description.choices, None
    config = load_config(Path(description.model_dir), description.accepted_keys)
    plan = make_plan(config, choices, legal=legality_of(cache))
    unknown = sorted(set(args.entry) - {entry.name for entry in plan.entries})
    if unknown:
        raise Refusal(f"--entry {unknown}", expected=f"some of {[e.name for e in plan.entries]}", where="arguments")
    wanted = {d.design.name for e in plan.entries if not args.entry or e.name in args.entry for d in e.dispatches}
    about = {"model": description.name, "deployment": name, "synthetic": description.synthetic,
             "weights": description.provenance, "inputs": description.inputs}  # fmt: skip
    return Subject([d for d in plan.designs if d.name in wanted], about, description, choices)


def _kernel(args: argparse.Namespace, cache: Path) -> OpDesign:
    options, make = KINDS[args.subject]
    absent = [option for option in options if getattr(args, option) is None]
    if absent:
        flags = ", ".join(f"-{o}" if len(o) == 1 else f"--{o.replace('_', '-')}" for o in absent)
        raise Refusal(f"{args.subject} without {flags}", expected=f"a shape: {', '.join(options)}", where="arguments",
                      next_step=f"add {flags}")  # fmt: skip
    # The kernel verbs call the output's type --out, which is the folder here.
    return make(argparse.Namespace(**vars(args) | {"out": args.dtype}), legality_of(cache))


def _add_module(emission: Emission, subject: Subject, cache: Path) -> None:
    """Run a prefill and decode steps on the twin with a tape: what the host writes and reads, in order."""
    assert subject.model is not None
    assert subject.choices is not None
    config = load_config(Path(subject.model.model_dir), subject.model.accepted_keys)
    recorder = RecordingDevice(emission.device, emission.keep)
    session = ModelSession(
        config,
        open_weights(config),
        recorder,
        subject.choices,
        cache=cache,
        progress=lambda line: print(line, flush=True),
    )
    ids = np.random.default_rng(0).integers(0, config.vocab_size, PROMPT + STEPS).tolist()
    session.prefill(ids[:PROMPT])
    for token in ids[PROMPT:]:
        session.decode(token)
    assert recorder.tape is not None
    emission.add_module(recorder.tape)
    print(f"{MODULE}: {len(session.plan.entries)} entries; a prefill of {PROMPT} and {STEPS} decode steps, written")
