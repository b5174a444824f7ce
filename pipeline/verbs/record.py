# SPDX-License-Identifier: Apache-2.0
"""record: a decision or a lesson, in words, as a record of the deployment's evidence."""

from __future__ import annotations

from pipeline.deployment import find
from pipeline.journal import Decision, Lesson, write_down
from pipeline.verbs.console import End, parser


def record(arguments: list[str]) -> End:
    """Command line of scripts/record.py."""
    p = parser("record", "Write down a decision or a lesson; it becomes a record, and part of plan.md or issues.md.")
    kinds = p.add_subparsers(dest="kind", required=True)
    decision = kinds.add_parser("decision", help="what was chosen, instead of what, and why")
    decision.add_argument("subject", help="what was decided, in a few words")
    decision.add_argument("--choice", required=True)
    decision.add_argument(
        "--instead-of", required=True, action="append", help="an alternative; may be given several times"
    )
    decision.add_argument("--because", required=True, help="the reason")
    lesson = kinds.add_parser("lesson", help="what failed, why, and what would have caught it")
    lesson.add_argument("subject", help="what failed: a phase or a gate")
    lesson.add_argument("--symptom", required=True)
    lesson.add_argument("--cause", required=True)
    lesson.add_argument("--fix", required=True)
    lesson.add_argument("--check", required=True, help="the check that would have caught it")
    for kind in (decision, lesson):
        kind.add_argument(
            "--evidence", required=True, metavar="ID", help="the record that shows it: first digits of its hash"
        )
        kind.add_argument("--name", help="the deployment")
    args = p.parse_args(arguments)
    deployment = find(args.name)
    if args.kind == "decision":
        said: Decision | Lesson = Decision(
            args.subject, args.choice, tuple(args.instead_of), args.because, args.evidence
        )
    else:
        said = Lesson(args.subject, args.symptom, args.evidence, args.cause, args.fix, args.check)
    written = write_down(deployment, said)
    page = deployment.folder / ("plan.md" if args.kind == "decision" else "issues.md")
    print(f"{args.kind} recorded: {args.subject} (record {written.hash[:12]}), in {page}")
    return End(0, f"scripts/status.py {deployment.name}")
