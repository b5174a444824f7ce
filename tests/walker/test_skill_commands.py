# SPDX-License-Identifier: Apache-2.0
"""Every command of every skill and agent is run, against one finished deployment, and does what its skill says it does.

Commands are taken from the fenced blocks as they stand; only the words in capitals are filled in. What the walk ran with the
same words was run. Gates that judge again run last, since they add records after the freeze.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import worker
from pipeline.deployment import Deployment
from tests.scripts.test_next_lines import wrong
from tests.walker.conftest import MODEL, NAME, ROOT, Proven, Town
from tests.walker.walk import Step, Walker, ended_workers

pytestmark = pytest.mark.slow
RUN = re.compile(r'python3 "\$\{CLAUDE_PLUGIN_ROOT\}/scripts/(\w+)\.py" ?(.*)')
# Command -> why no test can run it: it needs an NPU, or the Hub. There is none in a skill at present.
NOT_RUN: dict[str, str] = {}
# Command -> the same for a model as small as the fixture, and why.
FITTED = {
    "deploy MODEL --name TRIAL --layers 4": "deploy MODEL --name TRIAL --layers 2"
}  # the fixture has three layers
# Which verbs change the deployment, in the order in which the tests run them; all others come before.
CHANGING = ("evaluate", "gate", "deploy", "abandon", "ask")
EXIT_CODES = {"ask": 3}  # it waits for a human; everything else succeeds on a finished deployment


def commands() -> list[str]:
    """Every command of the pack's skills and agents, as `verb arguments`; those that change things last.

    The same arguments in another order are the same command.
    """
    found: dict[tuple[str, ...], str] = {}
    for page in (*ROOT.glob("skills/*/SKILL.md"), *ROOT.glob("agents/*.md")):
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.S):
            for line in filter(None, map(str.strip, block.splitlines())):
                matched = RUN.fullmatch(line)
                assert matched, f"{page.parent.name}: {line!r} is no verb"
                command = f"{matched[1]} {matched[2]}".strip()
                found.setdefault(tuple(sorted(shlex.split(command))), command)
    return sorted(found.values(), key=lambda text: (_turn(text), _phase(text), text))


def _turn(command: str) -> int:
    verb = command.split()[0]
    return CHANGING.index(verb) if verb in CHANGING else -1


def _phase(command: str) -> int:
    found = re.search(r"--phase (\d)", command)
    return int(found[1]) if found else -1


ALL = commands()


@pytest.fixture(scope="module")
def desk(town: Town, proven: Proven) -> Iterator[Walker]:
    """A copy of the proven project, to run commands in; the model stays where it was deployed from."""
    project = town.root / "commands" / "my project"
    shutil.copytree(proven.project / "deployments", project / "deployments")
    chain = [json.loads(line) for line in (proven.deployment / "evidence.jsonl").read_text().splitlines()]
    kernels = next(record["entry"]["body"] for record in chain if record["entry"]["subject"] == "phase-1")
    words = {"NAME": NAME, "MODEL": str(proven.project / MODEL), "TRIAL": "trial", "TEXT": "What is an NPU?",
             "QUESTION": "may we go on?", "ID": chain[0]["hash"][:12], "DESIGN": next(iter(kernels["gates"]))}  # fmt: skip
    with ended_workers(project):
        yield Walker(town.pack, project, town.environment, words)


def ran_in_the_walk(proven: Proven, words: tuple[str, ...]) -> Step | None:
    """The step of the walk that ran these words, if one did."""
    local = tuple(MODEL if word == str(proven.project / MODEL) else word for word in words)
    return next((step for step in proven.walk.steps if step.words == local), None)


@pytest.mark.parametrize("command", [command for command in ALL if command not in NOT_RUN])
def test_a_command_of_a_skill_does_what_it_should(command: str, desk: Walker, proven: Proven) -> None:
    words = tuple(desk.filled_in.get(word, word) for word in shlex.split(FITTED.get(command, command)))
    if "abandon" in words:
        kill_worker(desk.project / "deployments" / "trial")
    step = ran_in_the_walk(proven, words) or desk.run(*words)
    assert_leads_on(step)
    if "trial" not in words:  # a whole deployment of its own: it is begun, killed and abandoned
        step = desk.settle(step)
    assert step.code == EXIT_CODES.get(words[0], 0), f"{step.out[-2000:]}\n{step.err[-2000:]}"


def assert_leads_on(step: Step) -> None:
    """The last line names a verb with words that it takes or a skill that there is, or is a sentence."""
    assert " " in step.next, step.next
    assert wrong(step.next) == "", step.next


def kill_worker(deployment: Path) -> None:
    """Kill a deployment's worker as a reboot would."""
    if not (deployment / "worker.json").exists():
        pid = json.loads((deployment / "worker.pid").read_text())["pid"]
        os.killpg(pid, signal.SIGKILL)
        while worker.running(Deployment(deployment)):
            time.sleep(0.1)


def test_what_is_not_run_or_fitted_still_stands_in_a_skill_and_has_a_reason() -> None:
    assert set(NOT_RUN) | set(FITTED) <= set(ALL)
    assert all(NOT_RUN.values())
    assert all("--help" not in command for command in ALL)
    assert len(ALL) > 30
