# SPDX-License-Identifier: Apache-2.0
"""A source check of kernels: no scalar stores in loops.

A loop that stores one element at a time runs on the scalar unit, which a vector kernel must not; the headers cannot
see it. The check reads the text, so it is simple on purpose. Inside a loop it refuses an assignment (=, +=, ...) whose
target is `name[...]`, `*name` or `*name++`, where `name` is a pointer parameter, a local pointer, or a local array of
scalars. Vector stores (aie::store_v, vector iterators) and arrays of vectors or accumulators are not affected.
"""

from __future__ import annotations

import re
from pathlib import Path

from refusal import Refusal

_SCALAR = r"(?:bfloat16|float|double|u?int(?:8|16|32|64)(?:_t)?|int|unsigned|char|short|long|T(?:_\w+)?)"
_POINTER = re.compile(r"[\w>]\s*\*+\s*(?:__restrict__|__restrict|restrict|const)?\s*(\w+)\s*(?=[,)=;])")
_ARRAY = re.compile(rf"\b{_SCALAR}\s+(\w+)\s*\[[^\]]*\]\s*(?:\[[^\]]*\]\s*)*(?=[;={{])")
_LOOP = re.compile(r"\b(?:for|while)\s*\(|\bdo\s*\{")
_ASSIGN = r"(?:=(?!=)|[-+*/&|^]=|<<=|>>=|\+\+|--)"


def lint_kernel_source(path: Path) -> None:
    """Refuses a kernel source that stores scalars in a loop.

    Raises:
        Refusal: with the line and text of every such store.
    """
    text = _blank_out_comments(path.read_text())
    names = {match.group(1) for pattern in (_POINTER, _ARRAY) for match in pattern.finditer(text)}
    if not names:
        return
    loops = _loop_spans(text)
    found = sorted({at for at in _scalar_stores(text, names) if any(begin <= at < end for begin, end in loops)})
    if found:
        lines = path.read_text().splitlines()
        numbers = [text.count("\n", 0, at) + 1 for at in found]
        shown = "; ".join(f"line {n}: {lines[n - 1].strip()}" for n in numbers)
        raise Refusal(
            f"{len(found)} scalar store(s) in a loop: {shown}",
            expected="vector stores (aie::store_v or a vector iterator)",
            where=str(path),
            next_step="compute the elements as a vector, and mask or pad the rest",
        )


def _scalar_stores(text: str, names: set[str]) -> list[int]:
    """Positions of the assignments whose target is an element of one of the names."""
    name = "(?:" + "|".join(sorted(names)) + ")"
    at: list[int] = []
    for match in re.finditer(rf"\b{name}\s*(?=\[)", text):
        end = match.end()
        while text[end : end + 1] == "[":
            end = _closing(text, end, "[", "]")
            end += len(text[end:]) - len(text[end:].lstrip())
        if re.match(_ASSIGN, text[end:]):
            at.append(match.start())
    target = rf"\*\s*(?:{name}\s*(?:\+\+|--)?|\(\s*{name}\b[^()]*\))\s*(?:=(?!=)|[-+*/]=)"
    at.extend(m.start() for m in re.finditer(rf"(?<=[;{{}})])\s*{target}", text))
    return at


def _closing(text: str, at: int, opening: str, closing: str) -> int:
    """The position after the bracket that closes the one at `at`."""
    depth = 0
    for position in range(at, len(text)):
        depth += (text[position] == opening) - (text[position] == closing)
        if depth == 0:
            return position + 1
    return len(text)


def _loop_spans(text: str) -> list[tuple[int, int]]:
    """Begin and end of every loop body (with the loop's head)."""
    spans = []
    for match in _LOOP.finditer(text):
        if match.group().startswith("do"):
            spans.append((match.start(), _closing(text, match.end() - 1, "{", "}")))
            continue
        end = _closing(text, match.end() - 1, "(", ")")
        brace, semicolon = text.find("{", end), text.find(";", end)
        if brace != -1 and (semicolon == -1 or brace < semicolon):
            spans.append((match.end(), _closing(text, brace, "{", "}")))
        else:
            spans.append((match.end(), semicolon + 1 if semicolon != -1 else len(text)))
    return spans


def _blank_out_comments(text: str) -> str:
    """Comments, strings and preprocessor lines as spaces, so that positions and lines stay."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^[ \t]*#[^\n]*(?:\\\n[^\n]*)*', re.DOTALL | re.MULTILINE
    )
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
