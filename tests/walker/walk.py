# SPDX-License-Identifier: Apache-2.0
"""A dumb walker: it runs a verb, reads the last line, does what that says, and knows nothing else.

`next: scripts/VERB.py ...` is run, in the same directory; a word in capitals is filled in from a short list, what follows `#`
is a remark. `next: skill NAME` ends the walk at a skill, a sentence ends it at a human. A command that was run before ends
it too: nothing new is asked (waiting for a worker, which repeats by its nature, does not count).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

COMMAND = re.compile(r"scripts/(\w+)\.py(?: .*)?")
SKILL = re.compile(r"skill ([a-z0-9-]+)")
FILLED_IN = {"TEXT": "What is an NPU?", "QUESTION": "which way out?"}
MAX_STEPS = 60
HANG_SECONDS = 600  # a verb that takes as long hangs, on however busy a machine


@dataclass(frozen=True)
class Step:
    """One verb's run: its words (without Python), exit code, output, and what its last line said."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def next(self) -> str:
        """The last line of standard output without its `next: `; AssertionError where it has no such line, or another one."""
        lines = self.out.splitlines()
        told = [line for line in lines if line.startswith("next: ")]
        assert len(told) == 1 and told[0] == lines[-1], f"not one last next: line\n{self.words}\n{self.out}\n{self.err}"
        return told[0].removeprefix("next: ")

    @property
    def verb(self) -> str:
        return self.words[0]


@dataclass(frozen=True)
class Walk:
    """All steps, and where they ended: "skill", "human" or "done". at: the skill's name, or the last line."""

    steps: tuple[Step, ...]
    ending: str
    at: str

    @property
    def verbs(self) -> list[str]:
        """The verbs, each run of the same one once."""
        names = [step.verb for step in self.steps]
        return [name for name, before in zip(names, [None, *names], strict=False) if name != before]

    @property
    def out(self) -> str:
        """All output."""
        return "\n".join(step.out for step in self.steps)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(path: Path) -> Walk:
        raw = json.loads(path.read_text())
        steps = tuple(Step(tuple(step["words"]), step["code"], step["out"], step["err"]) for step in raw["steps"])
        return Walk(steps, raw["ending"], raw["at"])


@dataclass
class Walker:
    """Runs verbs of `pack` in `project`, both possibly with spaces in their paths.

    environment: variables beside those of this process. filled_in: words in capitals -> what stands for them.
    """

    pack: Path
    project: Path
    environment: Mapping[str, str]
    filled_in: Mapping[str, str] = field(default_factory=lambda: dict(FILLED_IN))

    def run(self, verb: str, *arguments: str) -> Step:
        """One verb, as a process of its own."""
        done = subprocess.run(
            [sys.executable, str(self.pack / "scripts" / f"{verb}.py"), *arguments],
            cwd=self.project, env=os.environ | dict(self.environment), capture_output=True, text=True,
            timeout=HANG_SECONDS, check=False,
        )  # fmt: skip
        return Step((verb, *arguments), done.returncode, done.stdout, done.stderr)

    def walk(self, verb: str, *arguments: str) -> Walk:
        """Begin with a verb and follow `next:` lines to an end."""
        steps: list[Step] = []
        seen: set[tuple[str, ...]] = set()
        words: Sequence[str] = (verb, *arguments)
        while len(steps) < MAX_STEPS:
            steps.append(self.run(*words))
            seen.add(tuple(words))
            line = steps[-1].next
            if found := SKILL.fullmatch(line):
                return Walk(tuple(steps), "skill", found[1])
            if not COMMAND.fullmatch(line):
                return Walk(tuple(steps), "human", line)
            words = self.words_of(line)
            if tuple(words) in seen and not waits(words):
                return Walk(tuple(steps), "done", line)
        raise AssertionError(f"{MAX_STEPS} steps and no end: {[step.words for step in steps[-4:]]}")

    def settle(self, step: Step) -> Step:
        """Follow `status --wait` lines only, until the worker that a verb began has ended; returns the last step."""
        for _ in range(MAX_STEPS):
            words = self.words_of(step.next) if COMMAND.fullmatch(step.next) else ()
            if not waits(words):
                return step
            step = self.run(*words)
        raise AssertionError(f"the worker does not end: {step.out}")

    def words_of(self, line: str) -> tuple[str, ...]:
        """A `next:` line as verb and arguments, words in capitals filled in."""
        script, *arguments = shlex.split(line, comments=True)
        return (Path(script).stem, *(self.filled_in.get(word, word) for word in arguments))


def waits(words: Sequence[str]) -> bool:
    """Whether a command only waits for a worker."""
    return bool(words) and words[0] == "status" and "--wait" in words


@contextlib.contextmanager
def ended_workers(project: Path) -> Iterator[None]:
    """End workers that a test left running when it failed or was interrupted."""
    try:
        yield
    finally:
        for path in project.glob("deployments/*/worker.pid"):
            if not path.with_name("worker.json").exists():
                with contextlib.suppress(OSError, ValueError, KeyError):
                    os.killpg(json.loads(path.read_text())["pid"], signal.SIGTERM)
