# SPDX-License-Identifier: Apache-2.0
"""The table of device faults in debug-resources: every message in it is one that the code gives."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.skills.verbs import PACK

PAGE = PACK / "skills" / "debug-resources" / "references" / "device-faults.md"
HOLE = "\0"


def said() -> set[str]:
    """The words of every DeviceFault in npu/twin, what is filled in left as a hole; and those about a kernel's end."""
    guard = ast.parse((PACK / "npu" / "twin" / "kernel_guard.py").read_text())
    found = {"".join(words(node)) for node in ast.walk(guard) if isinstance(node, ast.JoinedStr | ast.Constant)}
    for path in (PACK / "npu" / "twin").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "DeviceFault"
                and node.args
            ):
                found.add("".join(words(node.args[0])))
    return found


def words(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        for part in node.values:
            yield part.value if isinstance(part, ast.Constant) else HOLE
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    else:
        yield HOLE


def rows(text: str) -> list[str]:
    """The messages of the table's first column."""
    return re.findall(r"^\| `([^`]+)` \|", text, re.M)


def known(row: str) -> bool:
    pattern = ".*".join(re.escape(piece) for piece in row.split("..."))
    return any(re.search(pattern, message, re.S) for message in said())


def test_the_code_says_every_message_of_the_table() -> None:
    assert len(rows(PAGE.read_text())) > 15
    assert [row for row in rows(PAGE.read_text()) if not known(row)] == []


def test_a_message_that_nobody_gives_is_noticed() -> None:
    assert not known("has no electricity left")


def test_what_silicon_leaves_undefined_is_in_the_table() -> None:
    """The list of DESIGN section 5: a BD in flight, a full queue, memory nobody wrote, a store out of bounds, a stale buffer."""
    for words_of in ("reused in flight", "task queue", "nobody wrote", "stored out of bounds", "unsynced"):
        assert any(words_of in row for row in rows(PAGE.read_text())), words_of


@pytest.mark.parametrize("row", ["argument slice out of range", "which nobody wrote"])
def test_the_search_reads_strings_that_are_put_together(row: str) -> None:
    assert known(row)
