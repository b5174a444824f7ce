# SPDX-License-Identifier: Apache-2.0
"""Source checks of kernels: no scalar stores in loops, and only pointers and integers as arguments.

A kernel gets its arguments as 64-bit words, addresses or integers; a float passed by value would be read from a
register that nobody wrote. So a by-value float, double or bfloat16 of an extern "C" function is refused.

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
    """Refuses a kernel source that stores scalars in a loop or takes a float by value.

    Raises:
        Refusal: with the line and text of every such store, or the function and its parameter.
    """
    source = path.read_text()
    _refuse_float_parameters(path, _blank_out(source, strings=False))
    text = _blank_out(source, strings=True)
    names = {match.group(1) for pattern in (_POINTER, _ARRAY) for match in pattern.finditer(text)}
    if not names:
        return
    loops = _loop_spans(text)
    found = sorted({at for at in _scalar_stores(text, names) if any(begin <= at < end for begin, end in loops)})
    if found:
        lines = source.splitlines()
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
    at.extend(m.start(1) for m in re.finditer(rf"(?<=[;{{}})])\s*({target})", text))
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


def _refuse_float_parameters(path: Path, text: str) -> None:
    for begin, end in _extern_c_spans(text):
        for function in re.finditer(r"\b(\w+)\s*\(([^(){};]*)\)\s*\{", text[begin:end]):
            for parameter in function.group(2).split(","):
                if re.fullmatch(r"\s*(?:const\s+)?(?:float|double|bfloat16)\s+\w+\s*", parameter):
                    line = text.count("\n", 0, begin + function.start()) + 1
                    raise Refusal(
                        f"function {function.group(1)} takes {parameter.strip()!r} by value",
                        expected="pointers and 32-bit integers as arguments",
                        where=f"{path}, line {line}",
                        next_step="pass it as a define, or through a buffer",
                    )


def _extern_c_spans(text: str) -> list[tuple[int, int]]:
    """Begin and end of what extern "C" covers: a braced block, or one function's head."""
    spans = []
    for match in re.finditer(r'extern\s*"C"\s*', text):
        if text[match.end() : match.end() + 1] == "{":
            spans.append((match.end() + 1, _closing(text, match.end(), "{", "}")))
        else:
            spans.append((match.end(), text.find("{", match.end()) + 1))
    return spans


def _blank_out(text: str, *, strings: bool) -> str:
    """Comments and preprocessor lines, and strings if asked, as spaces, so that positions and lines stay."""
    parts = [r"//[^\n]*", r"/\*.*?\*/", r"^[ \t]*#[^\n]*(?:\\\n[^\n]*)*"]
    if strings:
        parts.append(r'"(?:\\.|[^"\\\n])*"')
    pattern = re.compile("|".join(parts), re.DOTALL | re.MULTILINE)
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
