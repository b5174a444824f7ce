# SPDX-License-Identifier: Apache-2.0
"""Text to ids and back, from tokenizer.json, as the Hugging Face tokenizer does it.

The `tokenizers` package reads the file; this module adds which ids end a generation, which ids
may be emitted, and decoding of a stream that never shows half a character. Whether BOS is put in
front, the post-processor of tokenizer.json decides alone: where that file exists, transformers 5
drops add_bos_token and add_eos_token of tokenizer_config.json (`tokenization_utils_base.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from reference.oracle.config import ModelConfig
from reference.oracle.keys import read_json_object
from refusal import Refusal

_REPLACEMENT = "\ufffd"  # what lossy UTF-8 decoding puts for bytes that do not form a character (yet)


class Tokenizer:
    """The tokenizer of one model directory.

    Attributes:
        eos_ids: every id that ends a generation, from generation_config.json, config.json and
            tokenizer_config.json together; each may hold one id or a list.
        id_limit: ids from here on have no text; logits rows at and above it are padding.
        special_tokens: `bos_token` and the like, as tokenizer_config.json names them.
        chat_template: the template text, or None.

    Raises:
        Refusal: no or broken tokenizer.json, or ids beyond the rows of the embedding.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.model_dir = config.model_dir
        self._settings = _optional_json(self.model_dir / "tokenizer_config.json")
        self._backend = _load_backend(self.model_dir / "tokenizer.json")
        self.special_tokens = _special_tokens(self._settings)
        self.id_limit = self._checked_limit(config.vocab_size)
        self.eos_ids = self._all_eos_ids()
        self.chat_template = _chat_template(self.model_dir, self._settings)
        self.generation_settings = _optional_json(self.model_dir / "generation_config.json")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text; with special tokens, BOS where the model's tokenizer puts one.

        A chat prompt already holds its special tokens as text: encode it with `add_special_tokens=False`.
        """
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of all ids at once."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_id(self, token: str) -> int | None:
        """The id of a token by its exact spelling, or None."""
        return self._backend.token_to_id(token)

    def stream(self, *, skip_special_tokens: bool = True) -> TextStream:
        """A decoder for ids that come one by one."""
        return TextStream(self, skip_special_tokens)

    def mask_padding(self, logits: np.ndarray) -> np.ndarray:
        """A copy of logits [..., vocab] with -inf at ids that have no text."""
        masked = np.array(logits)
        masked[..., self.id_limit :] = -np.inf
        return masked

    def _checked_limit(self, vocab_size: int) -> int:
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise Refusal("an empty vocabulary", where=str(self.model_dir / "tokenizer.json"))
        token, largest = max(vocabulary.items(), key=lambda item: item[1])
        if largest >= vocab_size:
            raise Refusal(
                f"token {token!r} has id {largest}",
                expected=f"at most {vocab_size - 1}: the embedding has {vocab_size} rows",
                where=str(self.model_dir / "tokenizer.json"),
                next_step="use the tokenizer that belongs to these weights",
            )
        return largest + 1

    def _all_eos_ids(self) -> frozenset[int]:
        found: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            found |= _ids(_optional_json(self.model_dir / name).get("eos_token_id"), self.model_dir / name)
        token = self.special_tokens.get("eos_token")
        if token is not None and (token_id := self.token_id(token)) is not None:
            found.add(token_id)
        return frozenset(found)


class TextStream:
    """Text of a growing id list, given out only once no later id can change it.

    The parts that `push` and `finish` return, joined, are `Tokenizer.decode` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special_tokens
        self.ids: list[int] = []
        self._shown = ""

    def push(self, token: int) -> str:
        """The text that became certain with this id; empty while a character is incomplete."""
        self.ids.append(token)
        text = self._tokenizer.decode(self.ids, skip_special_tokens=self._skip)
        # Bytes of an unfinished character decode to replacement characters at the end: wait for the rest.
        return self._show(text.rstrip(_REPLACEMENT))

    def finish(self) -> str:
        """What is left, also if it ends within a character."""
        return self._show(self._tokenizer.decode(self.ids, skip_special_tokens=self._skip))

    def _show(self, text: str) -> str:
        if not text.startswith(self._shown):  # shorter again: a held-back tail reached into it
            return ""
        new, self._shown = text[len(self._shown) :], text
        return new


def load_tokenizer(config: ModelConfig) -> Tokenizer:
    """The tokenizer of a config's model directory, checked against its vocabulary size."""
    return Tokenizer(config)


def _load_backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise Refusal(
            "no tokenizer.json",
            expected="the fast tokenizer's file",
            where=str(path.parent),
            next_step="download tokenizer.json of the model, or convert its slow tokenizer with transformers",
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exception
        raise Refusal(f"not a tokenizer: {error}", where=str(path), next_step="download it again") from None
    # Files may carry the settings of the training run; a prompt is neither cut nor padded.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _ids(value: Any, where: Path) -> set[int]:
    """An id, a list of ids, or null, as a set."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    for item in values:
        if isinstance(item, bool) or not isinstance(item, int):
            raise Refusal(f"eos_token_id = {value!r}", expected="an id or a list of ids", where=str(where))
    return set(values)


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """`*_token` entries; each is a string or an object with `content`."""
    tokens = {}
    for key, value in settings.items():
        content = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and not key.startswith("add_") and isinstance(content, str):
            tokens[key] = content
    return tokens


def _chat_template(model_dir: Path, settings: dict[str, Any]) -> str | None:
    """chat_template.jinja, else `chat_template` of tokenizer_config.json: a text, or a list of named ones."""
    path = model_dir / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {item["name"]: item["template"] for item in template}
        return named.get("default")
    return template
