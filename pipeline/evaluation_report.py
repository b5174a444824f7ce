# SPDX-License-Identifier: Apache-2.0
"""How an evaluation ends: evaluation.json, evaluation_report.md, the state's next step, and an exit code."""

from __future__ import annotations

from dataclasses import replace

from judge import evidence
from judge.evaluation import Evaluation, Result, as_json, report
from pipeline.deployment import Deployment
from pipeline.files import read_json, write_json
from refusal import Refusal

REPORT, VERDICT = "evaluation_report.md", "evaluation.json"
# Property -> what to do about it; others begin with a look at the report.
NEXT_STEPS = {
    "pack-as-shipped": "install the pack again and deploy again: what was judged by another pack is not proven by this one",
    "evidence-unbroken": "restore evidence.jsonl, or deploy again under another name",
    "documents-from-evidence": "take the named numbers out of the prose, then scripts/evaluate.py {name}",
    "model-holds": "skill debug-wrong-values",
    "blocks-hold": "skill debug-wrong-values",
    "kernels-hold": "skill debug-wrong-values",
    "tokens-repeat": "skill debug-stale-data",
    "whole-model": "scripts/deploy.py MODEL --name NEW  # without --layers",
}


def conclude(deployment: Deployment, evaluation: Evaluation) -> int:
    """Write the verdict down and say it in the log; returns the exit code."""
    head = evidence.verify_chain(deployment.evidence).head
    write_json(deployment.folder / VERDICT, as_json(evaluation) | {"head": head})
    deployment.write(REPORT, report(evaluation))
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


def next_step(name: str, evaluation: Evaluation) -> str:
    """What the `next:` line says."""
    if evaluation.result is Result.PROVEN:
        return f"scripts/generate.py {name} --prompt TEXT"
    if evaluation.result is Result.BLOCKED:
        return f"take the obstacle away, then scripts/evaluate.py {name}"
    first = next(iter(evaluation.violated), "")
    return NEXT_STEPS.get(first, f"read {REPORT} of {name}, then scripts/deploy.py MODEL --name NEW").format(name=name)


def verdict_of(deployment: Deployment) -> str | None:
    """The verdict of the last evaluation, None where there is none or the evidence has gone on since."""
    try:
        found = read_json(deployment.folder / VERDICT)
    except Refusal:
        return None
    if not isinstance(found, dict) or found.get("head") != evidence.verify_chain(deployment.evidence).head:
        return None
    return found["verdict"]


def after_freeze(deployment: Deployment) -> str:
    """What comes after the last phase: the evaluation, and once it has proven the deployment, its use."""
    verdict = verdict_of(deployment)
    if verdict is None or not verdict.startswith(str(Result.PROVEN)):
        return f"scripts/evaluate.py {deployment.name}"
    return f"scripts/generate.py {deployment.name} --prompt TEXT"
