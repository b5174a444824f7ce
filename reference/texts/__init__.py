# SPDX-License-Identifier: Apache-2.0
"""Real English text for the gates: public domain, with its source in sources.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from refusal import Refusal

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Text:
    """One text. `tokens` is the number of tokens that a gate takes from its beginning."""

    name: str
    content: str
    tokens: int
    source: str
    author: str
    rights: str


def texts() -> tuple[Text, ...]:
    """All texts in the order of sources.toml: the long one first."""
    with (_HERE / "sources.toml").open("rb") as file:
        entries = tomllib.load(file)["text"]
    return tuple(Text(content=_content(_HERE / entry.pop("file")), **entry) for entry in entries)


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(f"byte {error.start} is not UTF-8", expected="the text as shipped", where=str(path),
                      next_step="install the pack again") from error  # fmt: skip


def text(name: str) -> Text:
    """The text of that name.

    Raises:
        Refusal: no such text.
    """
    found = {item.name: item for item in texts()}
    if name not in found:
        raise Refusal(f"no text {name!r}", expected=f"one of {', '.join(found)}", where="reference/texts")
    return found[name]
