# SPDX-License-Identifier: Apache-2.0
"""The deployment's living documents: plan.md, issues.md and perf_opt_traj.md, written from the evidence.

What stands between the markers is written anew from the records each time; prose outside them stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from judge.claims import open_questions
from judge.evidence import Kind, Record, records, verify_chain
from pipeline.deployment import Deployment
from pipeline.files import read_text, write_whole

BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


def write(deployment: Deployment) -> None:
    """Bring the three documents up to date."""
    for name, title, body in _bodies(deployment):
        _splice(deployment.folder / name, title, body)


def stale(deployment: Deployment) -> list[str]:
    """The documents whose generated part is missing, or is not what the evidence gives now."""
    names = []
    for name, _, body in _bodies(deployment):
        path = deployment.folder / name
        text = read_text(path) if path.exists() else ""
        if text.count(BEGIN) != 1 or "\n".join([BEGIN, *body, END]) not in text:
            names.append(name)
    return names


def _bodies(deployment: Deployment) -> tuple[tuple[str, str, list[str]], ...]:
    """(file, title, generated lines) of each document."""
    chain = list(records(deployment.evidence))
    return (
        ("plan.md", f"Deployment of {deployment.name}", _plan(deployment, chain)),
        ("issues.md", f"Issues of {deployment.name}", _issues(chain)),
        ("perf_opt_traj.md", f"Performance trajectory of {deployment.name}", _trajectory(deployment, chain)),
    )


def _splice(path: Path, title: str, body: list[str]) -> None:
    """Replace the generated part of a document; make the document where there is none."""
    generated = "\n".join([BEGIN, *body, END])
    text = read_text(path) if path.exists() else f"# {title}\n\n{BEGIN}\n{END}\n\n## Notes\n"
    if BEGIN not in text or END not in text:
        text = text.rstrip("\n") + f"\n\n{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    write_whole(path, before + generated + after)


def _plan(deployment: Deployment, chain: list[Record]) -> list[str]:
    d, choices = deployment.description, deployment.choices()
    lines = [
        f"Model: `{Path(d.model_dir).name}`; weights: {d.provenance}; device: {d.device}"
        + ("; PARTIAL, never proven." if d.partial else "."),
        f"Context {choices.context}; prefill buckets {list(choices.prefill_buckets)}; decode buckets "
        f"{list(choices.decode_buckets)}; prefill matrix mode {choices.prefill_mode}, attention {choices.attention_mode}; "
        f"tiles {choices.tiles or 'by the planner'}; weight rows {choices.gemv_rows or 'by the planner'}.",
        "",
        "| phase | outcome | gates passed | record |",
        "|---|---|---|---|",
    ]
    for record in _gates(chain):
        gates = record.entry.body["gates"]
        good = sum(1 for gate in gates.values() if gate["passed"])
        outcome = "passed" if record.entry.body["passed"] else "failed"
        lines.append(f"| {record.entry.subject} | {outcome} | {good} of {len(gates)} | {record.hash[:12]} |")
    decisions = [record for record in chain if record.entry.kind == Kind.DECISION]
    if decisions:
        lines += ["", "| decision | choice | instead of | because | rests on | record |", "|---|---|---|---|---|---|"]
        lines += [_decision(record) for record in decisions]
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
    lines += [
        f"- question to a human ({record.hash[:12]}): {_inline(record.entry.body['question'])}"
        for record in open_questions(chain)
    ]
    if len(lines) == 1:
        lines.append("- none")
    lessons = [record for record in chain if record.entry.kind == Kind.LESSON]
    if lessons:
        lines += ["", "Lessons:"]
        lines += [line for record in lessons for line in _lesson(record)]
    return lines


def _decision(record: Record) -> str:
    """A row; a record of an older pack may lack a field."""
    body = record.entry.body
    cells = (
        record.entry.subject,
        body.get("choice", ""),
        "; ".join(body.get("alternatives", [])),
        body.get("reason", ""),
        body.get("evidence", "")[:12],
        record.hash[:12],
    )
    return "| " + " | ".join(_inline(cell).replace("|", "/") for cell in cells) + " |"


def _lesson(record: Record) -> list[str]:
    """One lesson; what nobody has told yet is said to be missing."""
    body = record.entry.body
    shown = body.get("evidence", record.hash)[:12]
    lines = [f"- {record.entry.subject}: {_inline(body.get('symptom', 'failed, and passed later'))} (record {shown})"]
    for key, title in (("cause", "cause"), ("fix", "fix"), ("check", "the check that would have caught it")):
        lines.append(f"  - {title}: {_inline(body.get(key, '')) or 'not told (scripts/record.py lesson)'}")
    return lines


def _inline(text: str) -> str:
    """One line: what somebody worded must not end the generated part, nor begin another line."""
    return " ".join(text.replace("<!--", "< !--").split())


def _trajectory(deployment: Deployment, chain: list[Record]) -> list[str]:
    lines = [
        "Times in ms are predicted by the cost model (provenance: model); none was measured on an NPU.",
        "",
        *_steps(chain),
        "",
        "Wall time is the host's, spent on the twin; it is not the NPU's time.",
        "",
        "| record | phase | seconds on the host | device |",
        "|---|---|---|---|",
    ]
    for record in _gates(chain):
        entry = record.entry
        lines.append(f"| {record.hash[:12]} | {entry.subject} | {entry.wall.run:.1f} | {entry.device} |")
    return lines


def _steps(chain: list[Record]) -> list[str]:
    """Every experiment in order, and after each optimisation phase what its entries are predicted to take."""
    lines = ["| record | step | before (ms, model) | after (ms, model) | outcome |", "|---|---|---|---|---|"]
    notes = []
    for record in chain:
        entry = record.entry
        if entry.kind == Kind.EXPERIMENT:
            outcome = f"{'kept' if entry.body['kept'] else 'reverted'}: {entry.body['reason']}"
            lines.append(_step(record, f"phase {entry.body['phase']}: {entry.body['name']}", outcome))
        elif entry.kind == Kind.GATE and "predicted_after" in entry.figures:
            outcome = "passed" if entry.body["passed"] else "failed"
            lines.append(_step(record, f"**{entry.subject}**: {len(entry.body['data']['accepted'])} kept", outcome))
            notes += [f"{entry.subject}, {entry.body['data']['objective']}:", *_entries(record), ""]
    if len(lines) == 2:
        return ["Phases 4 and 5 have not run."]
    return [*lines, "", *notes]


def _step(record: Record, name: str, outcome: str) -> str:
    figures = record.entry.figures
    before, after = (figures.get(f"predicted_{when}") for when in ("before", "after"))
    values = [f"{figure.value:.3f}" if figure else "-" for figure in (before, after)]
    return f"| {record.hash[:12]} | {name} | {values[0]} | {values[1]} | {outcome} |"


def _entries(record: Record) -> list[str]:
    entry = record.entry
    rows = [
        f"- {name.removeprefix('predicted/')}: {figure.value:.3f} ms ({figure.provenance})"
        for name, figure in sorted(entry.figures.items())
        if name.startswith("predicted/")
    ]
    data = entry.body["data"]
    return [
        *rows,
        f"- {data['binds']} binds; skill {data['next_skill']}; the model on published points: {data['model_error']}",
    ]


def _gates(chain: Iterable[Record]) -> list[Record]:
    return [record for record in chain if record.entry.kind == Kind.GATE]


if __name__ == "__main__":  # python -m pipeline.documents FOLDER ...
    for folder in sys.argv[1:]:
        write(Deployment(Path(folder)))
