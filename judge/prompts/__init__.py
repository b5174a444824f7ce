# SPDX-License-Identifier: Apache-2.0
"""The prompts that gates generate from, and their hash: whoever changes one changes the evidence's inputs."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import msgspec

from refusal import Refusal

PROMPTS_PATH = Path(__file__).with_name("prompts.toml")


class Prompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One prompt by name."""

    name: str
    text: str


class Prompts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """greedy: continued as plain text by the gates. chat: user turns for a chat template. `sha256` is the file's."""

    greedy: tuple[Prompt, ...]
    chat: tuple[Prompt, ...]
    sha256: str = ""


def load_prompts(path: Path = PROMPTS_PATH) -> Prompts:
    """Read the prompts.

    Raises:
        Refusal: fewer than three greedy prompts, an empty or repeated one, or a name that stands twice.
    """
    data = path.read_bytes()
    try:
        found = msgspec.convert(tomllib.loads(data.decode()), Prompts)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise Refusal(f"not a list of prompts: {error}", where=str(path)) from error
    prompts = found.greedy + found.chat
    if len(found.greedy) < 3 or not found.chat:
        counts = f"{len(found.greedy)} greedy and {len(found.chat)} chat prompts"
        raise Refusal(counts, expected="at least three and one", where=str(path))
    if not all(prompt.name and prompt.text.strip() for prompt in prompts):
        raise Refusal("a prompt without name or text", where=str(path))
    for what in ("name", "text"):
        if len({getattr(prompt, what) for prompt in prompts}) != len(prompts):
            raise Refusal(f"two prompts have the same {what}", expected="all different", where=str(path))
    return msgspec.structs.replace(found, sha256=hashlib.sha256(data).hexdigest())
