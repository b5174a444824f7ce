# SPDX-License-Identifier: Apache-2.0
"""ask: questions to a human and their answers. Both are records; a deployment waits until each question has its answer."""

from __future__ import annotations

from collections.abc import Iterable

from judge import claims, evidence
from judge.evidence import Entry, Kind, Record
from pipeline import documents
from pipeline.deployment import Deployment, find
from pipeline.verbs.console import End, parser
from refusal import Refusal

ANSWER = "a human answers with: scripts/ask.py --name {name} --question {id} --answer TEXT"
ID_DIGITS = 12


def ask(arguments: list[str]) -> End:
    """Command line of scripts/ask.py."""
    p = parser("ask", "Put a question to a human, or answer one. A deployment with an open question waits.")
    p.add_argument("text", nargs="?", metavar="QUESTION", help="what a human has to decide; without it the open ones")
    p.add_argument("--answer", help="the human's answer; takes the question away")
    p.add_argument("--question", metavar="ID", help="which question is answered, where several are open")
    p.add_argument("--name")
    args = p.parse_args(arguments)
    deployment = find(args.name)
    if args.text is not None and (args.answer is not None or args.question is not None):
        raise Refusal("a question and an answer at once", expected="one of them", where="arguments",
                      next_step="ask first, answer by its id then")  # fmt: skip
    for said, what in ((args.text, "question"), (args.answer, "answer")):
        if said is not None and not said.strip():
            raise Refusal(f"an empty {what}", expected="words", where="arguments", next_step=f"say the {what}")
    if args.answer is not None:
        return _answer(deployment, args.question, args.answer)
    if args.text is not None:
        record = _record(deployment, Kind.QUESTION, {"question": args.text})
        print(f"question {record.hash[:ID_DIGITS]} recorded: {args.text}")
    return waiting(deployment) or End(0, f"scripts/status.py {deployment.name}")


def waiting(deployment: Deployment) -> End | None:
    """The end of a verb while questions are open, each of them printed; None where none is, which is said too."""
    questions = open_questions(deployment)
    if not questions:
        print("no open question")
        return None
    for record in questions:
        print(f"open question {_named(record)}")
    return End(3, ANSWER.format(name=deployment.name, id=questions[0].hash[:ID_DIGITS]))


def open_questions(deployment: Deployment) -> list[Record]:
    """The questions that wait for a human, as the chain has them."""
    return claims.open_questions(list(evidence.records(deployment.evidence)))


def _answer(deployment: Deployment, wanted: str | None, answer: str) -> End:
    record = _meant(open_questions(deployment), wanted, deployment.name)
    body = {"question": record.entry.body["question"], "answer": answer, "asked": record.hash}
    _record(deployment, Kind.ANSWER, body)
    print(f"question {_named(record)}")
    print(f"answered: {answer}")
    return waiting(deployment) or End(0, f"scripts/deploy.py --name {deployment.name}")


def _record(deployment: Deployment, kind: Kind, body: dict[str, str]) -> Record:
    record = evidence.append(deployment.evidence, Entry(kind, "human", body))
    deployment.save(deployment.state())  # the Stop hook reads the state alone
    documents.write(deployment)
    return record


def _meant(questions: list[Record], wanted: str | None, name: str) -> Record:
    """The open question that an answer is for.

    Raises:
        Refusal: none is open, none or several begin with that id, or several are open and none was named.
    """
    if not questions:
        raise Refusal("no open question", expected="one to answer", where=name, next_step=f"scripts/status.py {name}")
    found = (
        questions if wanted is None else [record for record in questions if wanted and record.hash.startswith(wanted)]
    )
    if len(found) == 1:
        return found[0]
    asked = (
        f"{len(questions)} open questions" if wanted is None else f"--question {wanted}: {len(found)} open questions"
    )
    raise Refusal(
        asked, expected=f"one of: {_list(questions)}", where=name,
        next_step=f"scripts/ask.py --name {name} --question ID --answer TEXT",
    )  # fmt: skip


def _list(questions: Iterable[Record]) -> str:
    return "; ".join(_named(record) for record in questions)


def _named(record: Record) -> str:
    return f"{record.hash[:ID_DIGITS]}: {record.entry.body['question']}"
