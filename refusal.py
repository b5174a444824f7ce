# SPDX-License-Identifier: Apache-2.0
"""The one error that a user's input, or the user's machine, can cause.

Every room may import this module and nothing else from the root. A script that
meets a `Refusal` prints its line and exits 2; nothing has been harmed by then.
"""

from __future__ import annotations


class Refusal(Exception):
    """Something the user can change stands in the way.

    Args:
        found: what was found, with its value.
        expected: what was expected instead.
        where: file, key, operation or limit that the finding belongs to.
        next_step: the command or change that goes on from here.
    """

    def __init__(self, found: str, *, expected: str = "", where: str = "", next_step: str = "") -> None:
        self.found = found
        self.expected = expected
        self.where = where
        self.next_step = next_step
        super().__init__(str(self))

    def __str__(self) -> str:
        parts = [self.found]
        if self.expected:
            parts.append(f"expected {self.expected}")
        line = "; ".join(parts)
        if self.where:
            line = f"{self.where}: {line}"
        if self.next_step:
            line = f"{line}. Next: {self.next_step}"
        return line
