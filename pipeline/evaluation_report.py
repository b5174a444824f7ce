# SPDX-License-Identifier: Apache-2.0
"""How an evaluation ends: evaluation.json, its record in the chain, evaluation_report.md, a next step, and an exit code.

The verdict that counts is the record's. evaluation.json tells what was looked at, and the record names its hash.
"""

from __future__ import annotations

from dataclasses import replace

from judge import evidence
from judge.evaluation import Evaluation, Result, as_json, report
from judge.evidence import Entry, Kind
from pipeline import documents
from pipeline.deployment import Deployment
from pipeline.files import write_json

REPORT, VERDICT = "evaluation_report.md", "evaluation.json"
# Property -> what to do about it; others begin with a look at the report.
NEXT_STEPS = {
    "pack-as-shipped": "install the pack again (in a checkout: make manifest), then deploy again: another pack's work proves nothing",
    "evidence-unbroken": "restore evidence.jsonl, or deploy again under another name",
    "documents-from-evidence": "take the named numbers out of the prose, then scripts/evaluate.py {name}",
    "model-holds": "skill debug-wrong-values",
    "blocks-hold": "skill debug-wrong-values",
    "kernels-hold": "skill debug-wrong-values",
    "tokens-repeat": "skill debug-stale-data",
    "whole-model": "scripts/deploy.py MODEL --name NEW  # without --layers",
}


def conclude(deployment: Deployment, evaluation: Evaluation) -> int:
    """Write the verdict down, record it and say it in the log; returns the exit code.

    A broken chain takes no record: then there is no verdict but NOT PROVEN, for whoever reads the report.
    """
    chain = evidence.verify_chain(deployment.evidence)
    write_json(deployment.folder / VERDICT, as_json(evaluation) | {"head": chain.head})
    deployment.write(REPORT, report(evaluation))
    if chain.intact:
        _record(deployment, evaluation)
    for name in evaluation.violated:
        deployment.log(f"evaluation: VIOLATED: {name}")
    for found in evaluation.checks:
        for problem in found.problems[:8]:
            deployment.log(f"evaluation:   {found.name}: {problem}")
    deployment.log(f"evaluation: {evaluation.verdict}  (report: {deployment.folder / REPORT})")
    state = deployment.state()
    detail = f"evaluated: {evaluation.verdict}"
    deployment.save(replace(state, detail=detail, next=next_step(deployment.name, evaluation)))
    return evaluation.result.exit_code


def _record(deployment: Deployment, evaluation: Evaluation) -> None:
    """Append the verdict. Documents that were the evidence's stay so; those that were not are left for the reader to see."""
    whole = not documents.stale(deployment)
    body = {"result": str(evaluation.result), "verdict": evaluation.verdict, "violated": list(evaluation.violated)}
    inputs = {"evaluation": evidence.file_digest(deployment.folder / VERDICT)}
    entry = Entry(Kind.EVALUATION, "phase-7", body, inputs=inputs, synthetic_weights=evaluation.synthetic)
    evidence.append(deployment.evidence, entry)
    if whole:
        documents.write(deployment)


def next_step(name: str, evaluation: Evaluation) -> str:
    """What the `next:` line says."""
    if evaluation.result is Result.PROVEN:
        return f"scripts/generate.py {name} --prompt TEXT"
    if evaluation.result is Result.BLOCKED:
        return f"take the obstacle away, then scripts/evaluate.py {name}"
    first = next(iter(evaluation.violated), "")
    return NEXT_STEPS.get(first, f"read {REPORT} of {name}, then scripts/deploy.py MODEL --name NEW").format(name=name)


def verdict_of(deployment: Deployment) -> str | None:
    """The verdict of the last evaluation, from its record; None where there is none or the evidence has gone on since."""
    if not evidence.verify_chain(deployment.evidence).intact:
        return None
    last = next(iter(reversed(list(evidence.records(deployment.evidence)))), None)
    return last.entry.body["verdict"] if last is not None and last.entry.kind is Kind.EVALUATION else None


def last_word(deployment: Deployment) -> str:
    """How it stands, in a few words: the chain's where the chain has any, else the worker's last."""
    state, verdict = deployment.state(), verdict_of(deployment)
    if state.abandoned:
        return "abandoned"
    if verdict is not None:
        return f"evaluated: {verdict}"
    return "frozen" if state.frozen else state.detail


def after_freeze(deployment: Deployment) -> str:
    """What comes after the last phase: the evaluation, and once it has proven the deployment, its use."""
    verdict = verdict_of(deployment)
    if verdict is None or not verdict.startswith(str(Result.PROVEN)):
        return f"scripts/evaluate.py {deployment.name}"
    return f"scripts/generate.py {deployment.name} --prompt TEXT"
