# SPDX-License-Identifier: Apache-2.0
"""How every verb ends: an exit code, and one line `next:`.

0 done, 1 a gate failed, 2 bad input or something missing, 3 blocked on a human, 4 a fault of the pack itself. Here alone
an error becomes an exit code. What this machine denies (disk, permissions, memory) is refused with the path that it is
about; any other error is nobody's input: its traceback is kept in the cache, and the line says where.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from npu.device import DeviceFault
from pipeline.faults import FAULT, denied, keep_fault
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


def seconds(text: str) -> float:
    """An option's seconds: a number from 0 on."""
    value = float(text)
    if not value >= 0:  # NaN too: a wait for it would never end
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def seed(text: str) -> int:
    """An option's seed: a whole number from 0 on."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0, and no seed")
    return value


def positive(text: str) -> float:
    """An option's number above zero, and finite."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above zero")
    return value


def _arguments() -> list[str]:
    """The command line's words; a word that is not UTF-8 could be written to no record."""
    for word in sys.argv[1:]:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise Refusal(f"{word!r} is not UTF-8", expected="words in UTF-8", where="arguments") from None
    return sys.argv[1:]


def run(verb: Callable[[list[str]], End]) -> None:
    """Run a verb on the command line's arguments and exit."""
    try:
        end = _ended(verb)
        print(f"next: {end.next}", flush=True)
    except BrokenPipeError:  # nobody reads any more: Python would complain once more when it closes the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        end = End(2, "")
    sys.exit(end.code)


def _ended(verb: Callable[[list[str]], End]) -> End:
    try:
        return verb(_arguments())
    except Refusal as refusal:
        print(f"refused: {refusal}", file=sys.stderr)
        return End(2, refusal.next_step or "correct the input and run the same command again")
    except DeviceFault as fault:
        print(f"device fault: {fault}", file=sys.stderr)
        return End(1, "skill debug-resources")
    except KeyboardInterrupt:
        print("\ninterrupted: nothing is lost", file=sys.stderr)
        return End(2, "run the same command again to go on")
    except BrokenPipeError:
        raise
    except Exception as error:
        refusal = denied(error)
        if refusal is not None:
            print(f"refused: {refusal}", file=sys.stderr)
            return End(2, refusal.next_step)
        print(keep_fault(error), file=sys.stderr)
        return End(FAULT, "a human reports this as a fault of the pack, with that traceback")
