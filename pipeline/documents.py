# SPDX-License-Identifier: Apache-2.0
"""The deployment's living documents: plan.md, issues.md and perf_opt_traj.md, written from the evidence.

What stands between the markers is written anew from the records each time; prose outside them stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from judge.evidence import Kind, Record, records, verify_chain
from pipeline.deployment import Deployment
from pipeline.files import write_whole

BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


def write(deployment: Deployment) -> None:
    """Bring the three documents up to date."""
    chain = list(records(deployment.evidence))
    for name, title, body in (
        ("plan.md", f"Deployment of {deployment.name}", _plan(deployment, chain)),
        ("issues.md", f"Issues of {deployment.name}", _issues(chain)),
        ("perf_opt_traj.md", f"Performance trajectory of {deployment.name}", _trajectory(deployment, chain)),
    ):
        _splice(deployment.folder / name, title, body)


def _splice(path: Path, title: str, body: list[str]) -> None:
    """Replace the generated part of a document; make the document where there is none."""
    generated = "\n".join([BEGIN, *body, END])
    text = path.read_text() if path.exists() else f"# {title}\n\n{BEGIN}\n{END}\n\n## Notes\n"
    if BEGIN not in text or END not in text:
        text = text.rstrip("\n") + f"\n\n{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    write_whole(path, before + generated + after)


def _plan(deployment: Deployment, chain: list[Record]) -> list[str]:
    d = deployment.description
    lines = [
        f"Model: `{Path(d.model_dir).name}`; weights: {d.provenance}; device: {d.device}"
        + ("; PARTIAL, never proven." if d.partial else "."),
        f"Context {d.choices.context}; prefill buckets {list(d.choices.prefill_buckets)}; decode buckets "
        f"{list(d.choices.decode_buckets)}; prefill matrix mode {d.choices.prefill_mode}.",
        "",
        "| phase | outcome | gates passed | record |",
        "|---|---|---|---|",
    ]
    for record in _gates(chain):
        gates = record.entry.body["gates"]
        good = sum(1 for gate in gates.values() if gate["passed"])
        outcome = "passed" if record.entry.body["passed"] else "failed"
        lines.append(f"| {record.entry.subject} | {outcome} | {good} of {len(gates)} | {record.hash[:12]} |")
    state = verify_chain(deployment.evidence)
    return [*lines, "", f"Evidence: {state.records} records, head {state.head[:12]}."]


def _issues(chain: list[Record]) -> list[str]:
    last: dict[str, Record] = {record.entry.subject: record for record in _gates(chain)}
    lines = ["Open:"]
    for subject, record in last.items():
        if not record.entry.body["passed"]:
            failing = [name for name, gate in record.entry.body["gates"].items() if not gate["passed"]]
            what = ", ".join(failing) or str(record.entry.body.get("fault", ""))[:160]
            lines.append(f"- {subject} failed (record {record.hash[:12]}): {what}")
    questions = _open_questions(chain)
    lines += [f"- question to a human: {question}" for question in questions]
    if len(lines) == 1:
        lines.append("- none")
    lessons = [record for record in chain if record.entry.kind == Kind.LESSON]
    if lessons:
        lines += ["", "Lessons:"]
        lines += [f"- {r.entry.subject}: {_words(r.entry.body)} (record {r.hash[:12]})" for r in lessons]
    return lines


def _open_questions(chain: Iterable[Record]) -> list[str]:
    waiting: list[str] = []
    for record in chain:
        if record.entry.kind == Kind.QUESTION:
            waiting.append(record.entry.body["question"])
        elif record.entry.kind == Kind.ANSWER:
            waiting = [question for question in waiting if question != record.entry.body["question"]]
    return waiting


def _trajectory(deployment: Deployment, chain: list[Record]) -> list[str]:
    lines = [
        "Wall time is the host's, spent on the twin; it is not the NPU's time. Times on the NPU are not predicted by",
        "this version and were not measured.",
        "",
        "| record | phase | seconds on the host | device |",
        "|---|---|---|---|",
    ]
    for record in _gates(chain):
        entry = record.entry
        lines.append(f"| {record.hash[:12]} | {entry.subject} | {entry.wall.run:.1f} | {entry.device} |")
    return lines


def _gates(chain: Iterable[Record]) -> list[Record]:
    return [record for record in chain if record.entry.kind == Kind.GATE]


def _words(body: dict) -> str:
    return ", ".join(f"{key} {value}" for key, value in body.items() if key != "subject")
