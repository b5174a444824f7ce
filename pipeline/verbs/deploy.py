# SPDX-License-Identifier: Apache-2.0
"""deploy: start or go on with a deployment. Work runs in a detached worker; the verb follows it for at most 90 seconds."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from judge import evidence
from judge.claims import gate_records
from judge.evidence import Record
from pipeline import documents, worker
from pipeline.conduct import PHASES, SKILLS, pending
from pipeline.context import cache_directory
from pipeline.deployment import ROOT, Deployment, Description, find
from pipeline.evaluation_report import after_freeze
from pipeline.faults import FAULT
from pipeline.hub_download import Downloading
from pipeline.intake import describe, pack_hash, require_judgeable
from pipeline.preflight import forecast, needs_of, require_room
from pipeline.verbs.ask import waiting
from pipeline.verbs.console import LIMIT_SECONDS, End, parser, seconds
from reference.oracle.config import load_config
from refusal import Refusal

TWIN_LINE = (
    "no NPU is used: values are computed by the digital twin (provenance: twin); times are not measured on hardware"
)


def deploy(arguments: list[str]) -> End:
    """Command line of scripts/deploy.py."""
    began = time.monotonic()
    args = _parser().parse_args(arguments)
    if args.model is not None:
        worker.open_device(args.device, cache_directory())  # a device that is not there is refused before any work
        try:
            description = describe(
                args.model,
                device=args.device,
                name=args.name,
                layers=args.layers,
                context=args.context,
                accept_keys=args.accept_key,
                synthetic=args.synthetic,
            )
        except Downloading as going_on:
            print(going_on)
            return End(0, f"scripts/deploy.py {shlex.join(arguments)}")
        require_judgeable(description.choices)
        foresee(description, args.phase)
        deployment = Deployment.start(description, pack_hash=pack_hash(worker.PACK))
    else:
        deployment = find(args.name)
    if deployment.state().abandoned:
        raise Refusal(f"{deployment.name} was abandoned", expected="a deployment under way", where=str(deployment.folder),
                      next_step="scripts/deploy.py MODEL --name NEW")  # fmt: skip
    introduce(deployment)
    if deployment.state().question is not None:
        return standing(deployment)
    # A kill may have come between the last gate and the freeze, or before its documents: then the worker finishes.
    finished = deployment.state().frozen and not deployment.marker.exists() and not documents.stale(deployment)
    if not pending(deployment) and finished:
        print("every phase has passed")
        return End(0, after_freeze(deployment))
    position = worker.log_size(deployment)
    worker.start(deployment, until=args.phase)
    left = LIMIT_SECONDS - 5 - (time.monotonic() - began)  # a download may have taken its part
    return watch(deployment, max(0.0, min(args.wait, left)), position)


def foresee(description: Description, until: int | None) -> None:
    """Say how long it takes here and what it needs.

    Raises:
        Refusal: this machine has too little memory or disk.
    """
    config = load_config(Path(description.model_dir), description.accepted_keys)
    there = Path(ROOT / description.name / "deployment.json").exists()
    open_phases = pending(Deployment(ROOT / description.name)) if there else list(PHASES)
    phases = [phase for phase in open_phases if until is None or phase <= until]
    if not phases:
        return
    needs = needs_of(config, description.choices, phases)
    for line in forecast(config, description.choices, phases, description.device, needs):
        print(line)
    require_room(needs, Path.cwd())


def introduce(deployment: Deployment) -> None:
    """Say what is deployed, on what, and how honest its parts are."""
    description = deployment.description
    if description.device == "twin":
        print(TWIN_LINE)
    print(f"deployment {deployment.name} in {deployment.folder}; weights: {description.provenance}")
    if description.hub_id:
        print(f"model {description.hub_id} at commit {description.revision}")
    if description.partial:
        print(f"PARTIAL: layers {description.choices.layers}; a partial deployment is never proven")


def watch(deployment: Deployment, seconds: float, position: int) -> End:
    """Print the worker's lines for a while; say how it stands."""
    for line in worker.follow(deployment, seconds, position):
        print(line, flush=True)
    return standing(deployment)


def standing(deployment: Deployment) -> End:
    """The exit code and next step of a deployment as it stands now."""
    state = deployment.state()
    asked = waiting(deployment) if state.question is not None else None
    if asked is not None:
        return asked
    if worker.running(deployment):
        return End(0, f"scripts/status.py {deployment.name} --wait {LIMIT_SECONDS}")
    code = worker.result(deployment)
    if code is None:
        report = worker.crash_report(deployment)
        print(f"the worker ended without a result{': ' + report if report else ''}")
        return End(2, f"scripts/deploy.py --name {deployment.name}  # goes on from the last recorded phase")
    if code == 0 and pending(deployment):
        phase = pending(deployment)[0]
        failed = gate_records(list(evidence.records(deployment.evidence))).get(phase)
        if failed is not None:  # a phase before it was judged again, and passed
            return _still_failed(phase, failed)
        skill = next_skill(deployment, phase) or SKILLS[phase]
        return End(0, f"scripts/deploy.py --name {deployment.name} --phase {phase}  # skill {skill}")
    if code == 0:
        return End(0, after_freeze(deployment))
    if code == FAULT:
        print(worker.crash_report(deployment))
        return End(FAULT, "a human reports this as a fault of the pack, with that traceback")
    if code == 2:
        print(f"the worker was refused: {worker.refused(deployment) or worker.crash_report(deployment)}")
        return End(2, f"scripts/deploy.py --name {deployment.name}  # once what was refused is corrected")
    return End(code, state.next or f"scripts/deploy.py --name {deployment.name}")


def _still_failed(phase: int, record: Record) -> End:
    """A phase that failed, and has not been judged since."""
    found = record.entry.body.get("data", {}).get("diagnosis", {})
    print(f"phase {phase} failed (record {record.hash[:12]}): {found.get('reason', 'see issues.md')}")
    return End(1, found.get("next") or f"skill {SKILLS[phase]}")


def next_skill(deployment: Deployment, pending_phase: int) -> str:
    """The optimise skill that the phase just before named, "" where none did: it says what else could be tried."""
    before = max((phase for phase in PHASES if phase < pending_phase), default=-1)
    record = deployment.passed().get(before)
    return "" if record is None else record.entry.body.get("data", {}).get("next_skill", "")


def _parser():
    p = parser("deploy", "Start or go on with the deployment of a Hugging Face model.")
    p.add_argument(
        "model", nargs="?", help="model directory, or hub id ORGANISATION/NAME[@REVISION]; leave out to go on"
    )
    p.add_argument("--name", help="name of the deployment (default: the directory's name)")
    p.add_argument("--device", default="twin", choices=["twin", "xrt"], help="where it runs; never changed in silence")
    p.add_argument("--layers", type=int, help="only the first N layers: a partial deployment, never proven")
    p.add_argument("--context", type=int, help="capacity of the KV cache in tokens (default 2048)")
    p.add_argument("--phase", type=int, choices=sorted(PHASES), help="stop after this phase")
    p.add_argument(
        "--accept-key", action="append", default=[], metavar="KEY", help="an unknown key of config.json to accept"
    )
    p.add_argument(
        "--synthetic",
        action="store_true",
        help="the weights are made up (random initialisation): judged without perplexity, and labelled synthetic",
    )
    p.add_argument("--wait", type=seconds, default=LIMIT_SECONDS - 5, help="seconds to follow the worker, at most 85")
    return p


__all__ = ["deploy", "introduce", "standing", "watch"]
