# SPDX-License-Identifier: Apache-2.0
"""status and gate: where a deployment is, and judging a phase again."""

from __future__ import annotations

from judge import evidence
from pipeline import worker
from pipeline.conduct import PHASES, pending
from pipeline.deployment import find
from pipeline.evaluation_report import after_freeze, last_word
from pipeline.verbs.console import LIMIT_SECONDS, End, parser, seconds
from pipeline.verbs.deploy import introduce, standing, watch
from refusal import Refusal


def status(arguments: list[str]) -> End:
    """Command line of scripts/status.py."""
    p = parser("status", "Show where a deployment is.")
    p.add_argument("name", nargs="?")
    p.add_argument("--wait", type=seconds, default=0.0, help="follow the worker for up to so many seconds (at most 90)")
    args = p.parse_args(arguments)
    deployment = find(args.name)
    introduce(deployment)
    chain = evidence.verify_chain(deployment.evidence)
    if not chain.intact:
        print(f"evidence is broken at record {chain.broken}: {chain.problem}")
        return End(
            1,
            f"the evidence proves nothing; a human ends it: scripts/abandon.py {deployment.name} --reason TEXT",
        )
    passed, state = deployment.passed(), deployment.state()
    for phase, (title, _) in PHASES.items():
        mark = "passed" if phase in passed else state.phases.get(str(phase), "open")
        if mark == "running" and not worker.running(deployment):
            mark = "interrupted"
        print(f"  phase {phase} {title:<14} {mark}")
    print(f"evidence: {chain.records} records, intact; {last_word(deployment)}")
    if args.wait:
        return watch(deployment, min(args.wait, LIMIT_SECONDS), worker.log_size(deployment))
    if not pending(deployment):
        return End(0, after_freeze(deployment))
    return standing(deployment)


def gate(arguments: list[str]) -> End:
    """Command line of scripts/gate.py."""
    p = parser("gate", "Judge one phase again; the outcome is a new record.")
    p.add_argument("--name")
    p.add_argument("--phase", type=int, required=True, choices=sorted(PHASES))
    p.add_argument("--wait", type=seconds, default=LIMIT_SECONDS - 5)
    args = p.parse_args(arguments)
    deployment = find(args.name)
    introduce(deployment)
    position = worker.log_size(deployment)
    if worker.running(deployment):
        raise Refusal("a worker is running", expected="none", where=deployment.name,
                      next_step=f"scripts/status.py {deployment.name} --wait {LIMIT_SECONDS}")  # fmt: skip
    worker.start(deployment, again=args.phase)
    return watch(deployment, min(args.wait, LIMIT_SECONDS - 5), position)
