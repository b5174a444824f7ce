# SPDX-License-Identifier: Apache-2.0
"""abandon: the end of a deployment without a proof. A proven one has to be named as such, and a broken chain is no obstacle."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from judge import claims, evidence
from judge.evaluation import Result
from judge.evidence import ChainState, Entry, Kind
from pipeline import documents, worker
from pipeline.deployment import Deployment, State, find
from pipeline.verbs.console import LIMIT_SECONDS, End, parser
from refusal import Refusal

NEXT = "scripts/deploy.py MODEL"


def abandon(arguments: list[str]) -> End:
    """Command line of scripts/abandon.py."""
    p = parser("abandon", "End a deployment without a proof; its evidence stays.")
    p.add_argument("name")
    p.add_argument("--reason", required=True)
    p.add_argument("--although-proven", action="store_true", help="end it although its last evaluation proved it")
    args = p.parse_args(arguments)
    deployment: Deployment = find(args.name)
    if worker.running(deployment):
        raise Refusal("a worker is running", expected="none", where=deployment.name,
                      next_step=f"scripts/status.py {deployment.name} --wait {LIMIT_SECONDS}")  # fmt: skip
    chain = evidence.verify_chain(deployment.evidence)
    if not chain.intact:
        return _end_broken(deployment, chain, args.reason)
    if not args.although_proven:
        _require_unproven(deployment)
    again = claims.abandoned(list(evidence.records(deployment.evidence))) is not None
    if not again:
        evidence.append(deployment.evidence, Entry(Kind.ABANDON, "abandoned", {"reason": args.reason}))
        _keep(deployment, f"abandoned: {args.reason}")
    # A kill may have come between the record and these.
    deployment.end_marker()
    documents.write(deployment)
    print(f"{deployment.name} is abandoned{' already' if again else ''}; its evidence stays in {deployment.folder}")
    return End(0, NEXT)


def _require_unproven(deployment: Deployment) -> None:
    last = claims.last_evaluation(list(evidence.records(deployment.evidence)))
    if last is not None and last.entry.body["result"] == Result.PROVEN:
        raise Refusal(
            f"{deployment.name} is {last.entry.body['verdict']} (record {last.hash[:12]})",
            expected="a deployment that was not proven, or --although-proven", where="abandon",
            next_step=f"a human decides: scripts/abandon.py {deployment.name} --reason TEXT --although-proven",
        )  # fmt: skip


def _end_broken(deployment: Deployment, chain: ChainState, reason: str) -> End:
    """A broken chain takes no record, and is left as it was found: the state alone says that this is the end."""
    _keep(deployment, f"abandoned on evidence broken at record {chain.broken}: {reason}")
    deployment.end_marker()
    print(f"evidence is broken at record {chain.broken}: {chain.problem}")
    print(
        f"{deployment.name} is abandoned; there is no record of that, as a broken chain takes none: state.json alone says so"
    )
    print(f"the evidence stays as it was found in {deployment.folder}, and proves nothing")
    return End(0, NEXT)


def _keep(deployment: Deployment, detail: str) -> None:
    """Say in state.json that it is the end; a state that cannot be read is written anew."""
    kept = State()
    with contextlib.suppress(Refusal):
        kept = deployment.kept_state()
    deployment.save(replace(kept, abandoned=True, detail=detail))
