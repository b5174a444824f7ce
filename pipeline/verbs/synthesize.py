# SPDX-License-Identifier: Apache-2.0
"""synthesize: a model directory with made-up weights, for trials of a shape without a download."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from pipeline.synthesize import config_values, shapes, synthesize
from pipeline.verbs.console import LIMIT_SECONDS, End, parser, seed
from refusal import Refusal


def synthesize_model(arguments: list[str]) -> End:
    """Command line of scripts/synthesize.py."""
    p = parser("synthesize", "Write a model directory with made-up weights. Its text means nothing.")
    p.add_argument("shape", help=f"a config.json, a directory with one, or one of: {', '.join(shapes())}")
    p.add_argument("target", type=Path, help="the model directory to make")
    p.add_argument("--layers", type=int, help="number of layers (default: the shape's own)")
    p.add_argument("--untie", action="store_true", help="give the LM head weights of its own, where the shape ties it")
    p.add_argument("--seed", type=seed, default=0)
    args = p.parse_args(arguments)
    if args.layers is not None and args.layers < 1:
        raise Refusal(
            f"--layers {args.layers}", expected="1 or more", where="arguments", next_step="give --layers 1 or more"
        )
    deadline = time.monotonic() + LIMIT_SECONDS - 30  # a file of 1 GiB takes some seconds
    target = args.target.expanduser()
    values = config_values(args.shape, layers=args.layers, tied=False if args.untie else None)
    whole = synthesize(values, target, seed=args.seed, shape=args.shape, go_on=lambda: time.monotonic() < deadline)
    if not whole:
        print("not whole yet; finished files are kept")
        return End(0, f"scripts/synthesize.py {shlex.join(arguments)}")
    print(
        f"{target}: {values['model_type']}, {values['num_hidden_layers']} layers, weights: synthetic (seed {args.seed})"
    )
    return End(0, f"scripts/deploy.py {shlex.quote(str(args.target))}")
