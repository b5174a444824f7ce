# SPDX-License-Identifier: Apache-2.0
"""Reading a JSON object such that no key goes unnoticed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from refusal import Refusal


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; a missing, broken or non-object file is refused, and so is a key given twice."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Refusal(
            f"no {path.name}",
            expected="a Hugging Face model directory",
            where=str(path.parent),
            next_step="point at the directory that holds config.json, tokenizer.json and the safetensors files",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"cannot be read: {error}", where=str(path)) from None
    try:
        value = json.loads(text, object_pairs_hook=_unique_pairs)
    except ValueError as error:
        raise Refusal(
            f"not valid JSON: {error}", expected="a JSON object", where=str(path), next_step="download that file again"
        ) from None
    if not isinstance(value, dict):
        raise Refusal(
            f"a JSON {type(value).__name__}",
            expected="a JSON object",
            where=str(path),
            next_step="download that file again",
        )
    return value


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key given twice: {next(n for n in names if names.count(n) > 1)!r}")
    return result


# What is left to do about a value that is no mistake of the file.
DEQUANTISE = "take the model's unquantised weights (bf16, f16 or f32): quantised ones are not read"
UNFIT = "if the file is as the model's source has it, this pack does not cover the model: take another one"


class KeyReader:
    """Takes typed values out of a JSON object and remembers what was taken.

    Every getter consumes its key and raises `Refusal` on a missing key (unless
    `absent` says what absence means), a null, or a wrong type. `derived` lists
    the absent keys whose meaning was used.
    """

    def __init__(self, values: dict[str, Any], *, where: str) -> None:
        self.values = values
        self.where = where
        self.derived: dict[str, Any] = {}
        self._open = set(values)

    def peek(self, key: str) -> Any:
        """The value, or None; the key stays unconsumed."""
        return self.values.get(key)

    def is_null(self, key: str) -> bool:
        """Whether the key is there with the value null."""
        return key in self.values and self.values[key] is None

    def has(self, key: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self.values.get(key) is not None

    def drop(self, key: str) -> None:
        """Consume a key without effect."""
        self._open.discard(key)

    def take(self, key: str) -> Any:
        """Consume a key of any type; None if absent."""
        self._open.discard(key)
        return self.values.get(key)

    def only(self, key: str, value: Any) -> None:
        """Consume a key that may be absent, null or exactly `value`."""
        found = self.take(key)
        if found is not None and found != value:
            raise self.refuse(
                key,
                expected=f"{json.dumps(value)}, the only value that is implemented",
                next_step=DEQUANTISE if key == "quantization_config" else "",
            )

    def count(self, key: str, absent: int | None = None) -> int:
        """A positive integer."""
        value = self._required(key, absent)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.refuse(key, expected="a positive integer")
        return value

    def positive(self, key: str) -> float:
        """A finite number above zero."""
        value = self._required(key, None)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.refuse(key, expected="a finite number above 0")
        return float(value)

    def boolean(self, key: str, absent: bool | None = None) -> bool:
        """true or false."""
        value = self._required(key, absent)
        if not isinstance(value, bool):
            raise self.refuse(key, expected="true or false")
        return value

    def string(self, key: str) -> str:
        """A string."""
        value = self._required(key, None)
        if not isinstance(value, str):
            raise self.refuse(key, expected="a string")
        return value

    def refuse(self, key: str, *, expected: str, next_step: str = "") -> Refusal:
        """The refusal that names this key and its value."""
        found = f"{key} = {json.dumps(self.values[key])}" if key in self.values else f"no key {key!r}"
        return Refusal(found, expected=expected, where=self.where, next_step=next_step or UNFIT)

    def accept(self, names: Iterable[str]) -> dict[str, Any]:
        """Consume keys that the caller vouches for; a key that is not open is refused."""
        accepted = {}
        for name in names:
            if name not in self._open:
                why = "it is understood already" if name in self.values else "config.json has no such key"
                raise Refusal(f"--accept-key {name}: {why}", expected="an unknown key of this model", where=self.where)
            accepted[name] = self.take(name)
        return accepted

    def refuse_unknown(self, *, acceptable: bool = True) -> None:
        """Refuse when any key was not consumed, naming each with its value.

        Args:
            acceptable: False for an object inside config.json, whose keys no `--accept-key` reaches.
        """
        if not self._open:
            return
        pairs = [f"{key} = {json.dumps(self.values[key])}" for key in sorted(self._open)]
        flags = " ".join(f"--accept-key {key}" for key in sorted(self._open))
        raise Refusal(
            f"unknown key{'s' if len(pairs) > 1 else ''} {', '.join(pairs)}",
            expected="keys whose effect on inference is known",
            where=self.where,
            next_step=f"if they change nothing at inference, deploy with {flags}" if acceptable else UNFIT,
        )

    def _required(self, key: str, absent: Any) -> Any:
        self._open.discard(key)
        value = self.values.get(key)
        if value is not None:
            return value
        if absent is None:
            raise self.refuse(
                key, expected="a value; there is no safe default", next_step=f"set {key!r} as the model was trained"
            )
        self.derived[key] = absent
        return absent
