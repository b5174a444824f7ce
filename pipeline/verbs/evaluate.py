# SPDX-License-Identifier: Apache-2.0
"""evaluate: phase 7. A frozen deployment judged anew by a copy of the pack, in a process of its own."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from judge.evaluation import Evaluation, EvaluationLimits, check
from pipeline import manifest, worker
from pipeline.context import cache_directory
from pipeline.deployment import Deployment, find
from pipeline.evaluate import WORKPLACE
from pipeline.evaluation_report import conclude
from pipeline.verbs.console import LIMIT_SECONDS, End, parser, seconds
from pipeline.verbs.deploy import introduce, watch
from refusal import Refusal

# All that the evaluating process gets of this one's environment: what finds programs, and where temporary files go.
KEPT_VARIABLES = (
    "PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "XILINX_XRT", "PEANO_INSTALL_DIR", "MLIR_AIE_INSTALL_DIR",
)  # fmt: skip


def evaluate(arguments: list[str]) -> End:
    """Command line of scripts/evaluate.py."""
    args = _parser().parse_args(arguments)
    deployment = find(args.name)
    introduce(deployment)
    _require_frozen(deployment)
    least = EvaluationLimits()
    bucket = deployment.choices().score_bucket or least.text_positions
    for option, value, low, high in (
        ("--positions", args.positions, least.text_positions, bucket), ("--tokens", args.tokens, least.greedy_tokens, 128),
    ):  # fmt: skip
        if not low <= value <= high:
            raise Refusal(
                f"{option} {value}",
                expected=f"{low} to {high}",
                where="evaluate",
                next_step="scripts/evaluate.py --help",
            )
    position = worker.log_size(deployment)
    if not worker.running(deployment):
        begin(deployment, args.positions, args.tokens)
    return watch(deployment, min(args.wait, LIMIT_SECONDS - 5), position)


def begin(deployment: Deployment, positions: int, tokens: int, run: Callable[..., None] = worker.launch) -> None:
    """Copy the pack by its manifest and start the evaluating process in the copy. The nonce is drawn here and now.

    A pack that is not its manifest ends the evaluation at once.
    """
    # Other deployments may be under evaluation in the same cache; of this one no worker is running.
    place = f"{WORKPLACE}{hashlib.sha256(str(deployment.folder.absolute()).encode()).hexdigest()[:12]}-"
    for left in cache_directory().glob(f"{place}*"):  # of an evaluation that was killed
        shutil.rmtree(left, ignore_errors=True)
    nonce = os.urandom(16).hex()
    folder = cache_directory() / f"{place}{nonce[:12]}"
    differing = copy_of_pack(manifest.PACK, folder / "pack")
    if differing:
        d = deployment.description
        checks = (check("pack-as-shipped", differing),)
        code = conclude(deployment, Evaluation(deployment.name, checks, nonce, d.synthetic, d.device))
        worker.record_end(deployment, code)
        return
    command = [
        sys.executable, "-m", "pipeline.evaluate", str(deployment.folder.absolute()), "--nonce", nonce,
        "--cache", str(folder / "cache"), "--positions", str(positions), "--tokens", str(tokens),
    ]  # fmt: skip
    run(deployment, command, clean_environment(folder / "pack"))


def copy_of_pack(pack: Path, target: Path) -> list[str]:
    """Copy the pack by its manifest; returns what differs, in which case there is no use in the copy."""
    try:
        differing = manifest.check(pack).lines()
        if not differing:
            manifest.copy_pack(pack, target)
        return differing
    except Refusal as refusal:
        return [str(refusal)]


def clean_environment(pack: Path) -> dict[str, str]:
    """The evaluating process's environment: nothing of this session's but KEPT_VARIABLES, and code from the copy alone."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return kept | {
        "LANG": "C.UTF-8", "PYTHONPATH": str(pack), "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip


def _require_frozen(deployment: Deployment) -> None:
    state = deployment.state()
    if state.abandoned:
        raise Refusal(f"{deployment.name} was abandoned", expected="a frozen deployment", where=str(deployment.folder),
                      next_step="scripts/deploy.py MODEL --name NEW")  # fmt: skip
    if not state.frozen:
        raise Refusal(f"{deployment.name} is not frozen", expected="every phase before this one passed",
                      where=str(deployment.folder), next_step=f"scripts/deploy.py --name {deployment.name}")  # fmt: skip


def _parser():
    least = EvaluationLimits()
    p = parser("evaluate", "Judge a frozen deployment anew: PROVEN (exit 0), NOT PROVEN (1) or BLOCKED (3).")
    p.add_argument("name", nargs="?")
    p.add_argument("--positions", type=int, default=least.text_positions,
                   help="teacher-forced positions of a text drawn now (at least the default)")  # fmt: skip
    p.add_argument(
        "--tokens", type=int, default=least.greedy_tokens, help="greedy tokens on each of the prompts drawn now"
    )
    p.add_argument(
        "--wait", type=seconds, default=LIMIT_SECONDS - 5, help="seconds to follow the evaluation, at most 85"
    )
    return p
