# SPDX-License-Identifier: Apache-2.0
"""What the last line says can be done: every next step in the code is a verb with arguments that it takes, a skill, or a sentence."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripts.run_verb import PACK
from tests.skills.verbs import parsers

ROOMS = ("pipeline", "planner", "npu", "judge", "reference", "kernels", "scripts")
VERB = re.compile(r"scripts/(\w+)\.py((?: [^#;,()]*?)?)(?=  #|;|,|\)|\(| or | says| with | && |: |$)")


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of each next step in the source; what is filled in at run time reads 1."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        steps = [keyword.value for keyword in node.keywords if keyword.arg == "next_step"]
        if isinstance(node.func, ast.Name) and node.func.id == "End" and len(node.args) == 2:
            steps.append(node.args[1])
        for step in steps:
            for part in ast.walk(step):
                if isinstance(part, ast.JoinedStr):
                    yield part.lineno, "".join(map(filled, part.values))
            if isinstance(step, ast.Constant) and isinstance(step.value, str):
                yield step.lineno, step.value


def filled(part: ast.expr) -> str:
    """A piece of a string that is put together: its words; ARGUMENTS for a whole command line handed on; else 1."""
    if isinstance(part, ast.Constant):
        return part.value
    return "ARGUMENTS" if "shlex.join" in ast.unparse(part) else "1"


def wrong(text: str) -> str:
    """What is wrong with a next step, "" for nothing."""
    if text and not re.match(r"[A-Za-z1]", text):
        return "begins with an option: nobody can run that"
    skills = {path.name for path in (PACK / "skills").iterdir()}
    if text in skills:
        return "a skill without the word skill"
    named = re.match(r"skill ([\w-]+)", text)
    if named and named[1] not in skills | {"1"}:
        return f"no skill {named[1]}"
    for verb, arguments in VERB.findall(text):
        if verb not in parsers():
            return f"no verb {verb}"
        if "ARGUMENTS" in arguments or (not text.startswith("scripts/") and not re.search(r"[A-Z-]", arguments)):
            continue  # its own command line once more; the verb's name inside a sentence
        try:
            parsers()[verb].parse_args(shlex.split(arguments))
        except SystemExit:  # --help
            continue
        except Exception as error:  # the verbs' parsers raise refusals
            return f"{verb}{arguments}: {error}"
    return ""


FILES = sorted(path for room in ROOMS for path in (PACK / room).rglob("*.py"))


def test_every_next_step_can_be_done() -> None:
    found, problems = 0, []
    for path in FILES:
        for line, text in texts(ast.parse(path.read_text())):
            found += 1
            if problem := wrong(text):
                problems.append(f"{path.relative_to(PACK)}:{line}: {text!r}: {problem}")
    assert found > 150, "the search finds nothing any more"
    assert problems == []


@pytest.mark.parametrize(
    "text",
    [
        "--name NEW",
        "debug-nan",
        "skill debug-everything",
        "scripts/undo.py NAME",
        "scripts/gate.py --name 1",  # which phase?
        "end it: scripts/abandon.py NAME --because TEXT",
    ],
)
def test_a_step_that_nobody_can_do_is_noticed(text: str) -> None:
    assert wrong(text)


def test_placeholders_and_remarks_are_no_fault() -> None:
    for text in ("scripts/deploy.py MODEL --name NEW  # without --layers", "skill debug-nan", "free some disk space"):
        assert wrong(text) == "", text


def test_the_search_sees_constants_and_strings_that_are_put_together(tmp_path: Path) -> None:
    source = 'raise Refusal("x", next_step="a")\nEnd(0, f"b {name}" if name else "c")\n'
    assert {text for _, text in texts(ast.parse(source))} == {"a", "b 1"}
