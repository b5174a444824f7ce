# SPDX-License-Identifier: Apache-2.0
"""Runs a verb as a newcomer does: a process of its own, from a directory that is not the pack."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PACK = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """How a verb ended: exit code, what it printed, what it complained of."""

    code: int
    out: str
    err: str

    @property
    def next(self) -> str:
        """The last line of standard output, without its `next: `."""
        last = self.out.splitlines()[-1] if self.out else ""
        assert last.startswith("next: "), f"no next: line at the end of {self.out!r}; stderr {self.err!r}"
        return last.removeprefix("next: ")

    @property
    def refusal(self) -> str:
        """The one line of the refusal; fails where there is a traceback, another line, or no refusal."""
        lines = self.err.splitlines()
        assert self.code == 2, f"exit code {self.code}: {self.out}{self.err}"
        assert len(lines) == 1, f"one line of refusal expected: {self.err}"
        assert lines[0].startswith("refused: "), self.err
        assert self.next
        return lines[0].removeprefix("refused: ")


def verb(name: str, *arguments: str, cwd: Path) -> Ended:
    """Run scripts/<name>.py in `cwd` with the interpreter of these tests."""
    done = subprocess.run(
        [sys.executable, str(PACK / "scripts" / f"{name}.py"), *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)
