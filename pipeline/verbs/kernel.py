# SPDX-License-Identifier: Apache-2.0
"""compile and run: one kernel design by shape, for a kernel engineer who never deploys a model."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path

from judge.diagnosis import Symptoms, diagnose
from judge.fresh_data import judge_fresh, problems
from judge.gates import judge_kernel
from judge.policy import load_policy
from judge.verdict import Verdict
from kernels.designs.attention_decode import DecodeAttentionDesign
from kernels.designs.attention_prefill import PrefillAttentionDesign
from kernels.designs.design import OpDesign, single_design_artifact
from kernels.designs.gemv import GemvDesign, gemv_for
from kernels.designs.rowwise import AddDesign, RmsNormDesign, RopeDesign, SiluMulDesign
from npu.device import Device
from npu.legality.check import require_legal
from npu.mlir.load import load_program
from pipeline import worker
from pipeline.context import cache_directory
from pipeline.deployment import find
from pipeline.exercise import exercise, gate_of
from pipeline.files import require_place, write_whole
from pipeline.model_session import legality_of
from pipeline.phases.kernels import design_named, seed_of
from pipeline.verbs.console import End, parser, positive
from pipeline.verbs.console import seed as seed_of_option
from planner.tiles import choose_gemm
from refusal import Refusal

Make = Callable[[argparse.Namespace, Callable[[OpDesign], bool]], OpDesign]


def _gemm(args: argparse.Namespace, legal: Callable[[OpDesign], bool]) -> OpDesign:
    return choose_gemm(args.M, args.K, args.N, mode=args.mode, out=args.out, exact=False, legal=legal)


def _gemv(args: argparse.Namespace, legal: Callable[[OpDesign], bool]) -> OpDesign:
    design = gemv_for(args.N, args.K, args.kind, args.out, args.K, args.epsilon)
    if design is None:
        # The design itself says which limit these numbers miss.
        return GemvDesign(args.N, args.K, 2, args.kind, args.out, args.K, args.epsilon)
    return design


# kind -> (the shape options it needs, how its design is made)
KINDS: dict[str, tuple[tuple[str, ...], Make]] = {
    "gemm": (("M", "K", "N"), _gemm),
    "gemv": (("N", "K"), _gemv),
    "rmsnorm": (("M", "N"), lambda a, _: RmsNormDesign(a.M, a.N, a.N, a.epsilon)),
    "rope": (
        ("M", "heads", "kv_heads", "head_dim"),
        lambda a, _: RopeDesign(a.M, a.heads + a.kv_heads, a.kv_heads, a.head_dim),
    ),
    "silu_mul": (("M", "N"), lambda a, _: SiluMulDesign(a.M, a.N)),
    "add": (("M", "N"), lambda a, _: AddDesign(a.M, a.N)),
    "attention_prefill": (
        ("M", "heads", "kv_heads", "head_dim"),
        lambda a, _: PrefillAttentionDesign(a.M, a.heads, a.kv_heads, a.head_dim),
    ),
    "attention_decode": (
        ("bucket", "heads", "kv_heads", "head_dim"),
        lambda a, _: DecodeAttentionDesign(a.bucket, a.bucket, a.heads, a.kv_heads, a.head_dim),
    ),
}


def _arguments(name: str, about: str) -> argparse.ArgumentParser:
    p = parser(name, about)
    p.add_argument("kernel", choices=sorted(KINDS), nargs="?", help="a kernel, by the shape that the options give")
    shape_arguments(p)
    p.add_argument("--design", help="instead: a design of a deployment's plan, by the name that phase 1 prints")
    p.add_argument("--name", help="the deployment that has it (default: the one that is under way)")
    p.add_argument("--device", default="twin", choices=["twin", "xrt"])
    return p


def shape_arguments(p: argparse.ArgumentParser) -> None:
    """The options by which a kernel's shape and variant are given."""
    for option, meaning in (
        ("-M", "rows (tokens)"), ("-K", "inputs"), ("-N", "outputs, or row width"), ("--heads", "query heads"),
        ("--kv-heads", "KV heads"), ("--head-dim", "elements of a head"), ("--bucket", "keys of the context bucket"),
    ):  # fmt: skip
        p.add_argument(option, type=_positive, help=meaning)
    p.add_argument("--mode", default="bfp16", choices=["bfp16", "bf16"], help="matrix mode of a GEMM")
    p.add_argument("--kind", default="plain", choices=["plain", "norm", "add", "swiglu"], help="what a GEMV fuses")
    p.add_argument("--out", default="bf16", choices=["bf16", "f32"])
    p.add_argument("--epsilon", type=positive, default=1e-5)


def _positive(text: str) -> int:
    """A dimension: a whole number above zero."""
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above zero")
    return int(text)


def design_of(args: argparse.Namespace, cache: Path) -> OpDesign:
    """The design that the shape options name, or a deployment's plan holds under the name given.

    Raises:
        Refusal: neither or both were asked for, a shape that is not whole, or a name that no plan has.
    """
    if (args.kernel is None) == (getattr(args, "design", None) is None):
        raise Refusal("a kernel and --design" if args.kernel else "neither a kernel nor --design",
                      expected=f"one of the kernels {', '.join(sorted(KINDS))}, or --design DESIGN", where="arguments",
                      next_step="scripts/run.py --help")  # fmt: skip
    if args.kernel is None:
        return design_named(find(args.name), args.design, cache)
    options, make = KINDS[args.kernel]
    absent = [option for option in options if getattr(args, option) is None]
    if absent:
        flags = ", ".join(f"-{o}" if len(o) == 1 else f"--{o.replace('_', '-')}" for o in absent)
        raise Refusal(f"{args.kernel} without {flags}", expected=f"a shape: {', '.join(options)}", where="arguments",
                      next_step=f"add {flags}")  # fmt: skip
    return make(args, legality_of(cache))


def compile_kernel(arguments: list[str]) -> End:
    """Command line of scripts/compile.py: text, legality, compiled kernels."""
    p = _arguments("compile", "Compile one kernel design by shape: MLIR text, legality check, kernel objects.")
    p.add_argument("--emit", type=Path, metavar="FILE", help="write the MLIR-AIE text here")
    args = p.parse_args(arguments)
    target = require_place(args.emit, "--emit") if args.emit else None
    cache = cache_directory()
    design = design_of(args, cache)
    artifact = single_design_artifact(design)
    require_legal(load_program(artifact.text, cache=cache))
    worker.open_device(args.device, cache).open(artifact)
    print(f"{design.name}: legal, compiled for the {args.device}; artifact {artifact.key[:16]}")
    print(f"{design.macs:,} multiply-accumulates and {design.ddr_bytes:,} DDR bytes a dispatch (formula)")
    for operand in design.operands:
        print(f"  {operand.role:<6} {operand.name:<9} {operand.type}  {operand.layout}")
    if target:
        write_whole(target, artifact.text)
        print(f"text: {target}")
    return End(0, f"scripts/run.py {shlex.join(_without_emit(arguments))}")


def _without_emit(arguments: list[str]) -> list[str]:
    """The arguments that `run` takes too."""
    return [
        text
        for index, text in enumerate(arguments)
        if text.split("=")[0] != "--emit" and (index == 0 or arguments[index - 1] != "--emit")
    ]


def run_kernel(arguments: list[str]) -> End:
    """Command line of scripts/run.py: three dispatches with changing data, judged by the phase 1 gate.

    The seed is anybody's, so a miss is told from chance as in an evaluation: by drawing again.
    """
    p = _arguments("run", "Run one kernel design three times with changing data and judge it.")
    p.add_argument("--seed", type=seed_of_option, help="seed of the data (default: from the design)")
    args = p.parse_args(arguments)
    cache = cache_directory()
    design = design_of(args, cache)
    require_legal(load_program(single_design_artifact(design).text, cache=cache))
    seed = seed_of(design) if args.seed is None else args.seed
    device = worker.open_device(args.device, cache)
    draws = judge_fresh(lambda number: _run_and_judge(design, device, seed + number))
    found = problems(design.name, draws)
    if not found:
        if len(draws) > 1:
            print("  what missed on one draw did not miss on the others: chance, by the rule in judge/fresh_data.py")
        judged = args.design and f"scripts/gate.py --phase 1 --name {find(args.name).name}"
        return End(0, judged or "scripts/deploy.py MODEL")
    finding = diagnose(Symptoms(next(verdict for verdict in draws if not verdict.passed)))
    print(f"  {finding.reason}")
    return End(1, f"skill {finding.skill}" if finding.skill else "a human looks at it: no known pattern fits")


def _run_and_judge(design: OpDesign, device: Device, seed: int) -> Verdict:
    """Dispatches of one seed, judged; prints what came out."""
    dispatches, session = exercise(design, device, seed)
    verdict = judge_kernel(gate_of(design), dispatches, load_policy())
    print(f"{design.name} on the {device.name}, {len(dispatches)} dispatches, seed {seed}")
    for line in verdict.lines():
        print(f"  {line}")
    for record in list(session.log())[-1:]:
        print(
            f"  DDR bytes read {record.ddr_read_bytes:,}, written {record.ddr_write_bytes:,}; formula {design.ddr_bytes:,}"
        )
    return verdict
