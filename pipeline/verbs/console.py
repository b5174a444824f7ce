# SPDX-License-Identifier: Apache-2.0
"""How every verb ends: exit codes 0 done, 1 a gate failed, 2 bad input, 3 blocked on a human; and one line `next:`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

from npu.device import DeviceFault
from refusal import Refusal

LIMIT_SECONDS = 90  # no verb keeps its caller longer


@dataclass(frozen=True)
class End:
    """A verb's end: its exit code and what to do next (a command or a skill)."""

    code: int
    next: str


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise Refusal(message, where=self.prog, next_step=f"{self.prog} --help")


def parser(name: str, about: str) -> argparse.ArgumentParser:
    """An argument parser whose errors are refusals."""
    return _Parser(prog=f"scripts/{name}.py", description=about)


def run(verb: Callable[[list[str]], End]) -> None:
    """Run a verb on the command line's arguments and exit."""
    try:
        end = verb(sys.argv[1:])
    except Refusal as refusal:
        print(f"refused: {refusal}", file=sys.stderr)
        end = End(2, refusal.next_step or "correct the input and run the same command again")
    except DeviceFault as fault:
        print(f"device fault: {fault}", file=sys.stderr)
        end = End(1, "skill debug-resources")
    except KeyboardInterrupt:
        print("\ninterrupted: nothing is lost", file=sys.stderr)
        end = End(2, "run the same command again to go on")
    print(f"next: {end.next}", flush=True)
    sys.exit(end.code)
