# SPDX-License-Identifier: Apache-2.0
"""doctor: what this machine has, and with --model whether a model is supported."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
from pathlib import Path

from npu.twin.hostcc import find_compiler
from pipeline.conduct import PHASES
from pipeline.intake import describe
from pipeline.preflight import forecast, needs_of, parameters
from pipeline.verbs.console import End, parser
from reference.oracle.config import load_config
from reference.oracle.layer_weights import available_memory
from refusal import Refusal

UNPROVEN = "--device xrt uses it; no run on an NPU has been reported yet (docs/on-hardware.md)"


def doctor(arguments: list[str]) -> End:
    """Command line of scripts/doctor.py."""
    p = parser("doctor", "Say what this machine has; with --model, whether a model can be deployed.")
    p.add_argument("--model", help="model directory, or a hub id in the local cache, to check")
    p.add_argument("--accept-key", action="append", default=[])
    p.add_argument("--synthetic", action="store_true", help="the weights are made up, as of deploy")
    args = p.parse_args(arguments)
    for name, value in machine():
        print(f"  {name:<12} {value}")
    if args.model is None:
        return End(0, "scripts/deploy.py MODEL")
    description = describe(args.model, device="twin", accept_keys=args.accept_key, download=False,
                           synthetic=args.synthetic)  # fmt: skip
    config = load_config(Path(description.model_dir), description.accepted_keys)
    print(f"  {'model':<12} supported: {config.model_type}, {parameters(config) / 1e6:.0f} M parameters, "
          f"{config.num_hidden_layers} layers; weights: {description.provenance}")  # fmt: skip
    for note in config.notes:
        print(f"  {'':<12} {note}")
    phases = list(PHASES)
    needs = needs_of(config, description.choices, phases)
    for line in forecast(config, description.choices, phases, "twin", needs):
        print(f"  {'':<12} {line}")
    accepted = [word for key in args.accept_key for word in ("--accept-key", key)]
    declared = ["--synthetic"] if args.synthetic else []
    return End(0, f"scripts/deploy.py {shlex.join([args.model, *accepted, *declared])}")


def machine() -> list[tuple[str, str]]:
    """Facts of this machine, each as (name, value)."""
    accelerators = sorted(Path("/dev/accel").glob("accel*")) if Path("/dev/accel").exists() else []
    try:
        compiler = find_compiler()
        described = f"{compiler.version} ({' '.join(compiler.command)})"
    except Refusal as refusal:
        described = str(refusal)
    return [
        ("system", f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"),
        ("cores", str(os.cpu_count())),
        ("memory", f"{available_memory() >> 20} MiB available"),
        ("disk", f"{shutil.disk_usage(Path.cwd()).free >> 20} MiB free here"),
        ("compiler", described),
        ("NPU", f"{len(accelerators)} found; {UNPROVEN}" if accelerators else "none found: the twin is used"),
        ("pyxrt", "importable" if importlib.util.find_spec("pyxrt") else "not installed"),
        ("aiecc", shutil.which("aiecc") or shutil.which("aiecc.py") or "not on the PATH"),
        ("aie-opt", shutil.which("aie-opt") or "not on the PATH"),
    ]
