# SPDX-License-Identifier: Apache-2.0
"""Whole files or none: a reader never sees a half-written one, whenever the writer is killed.

What is read may have been edited or torn by others: a file that is not what it should be is refused by name.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from refusal import Refusal

T = TypeVar("T")


def write_whole(path: Path, data: str | bytes) -> None:
    """Write beside the target, sync to disk, rename over it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = data.encode() if isinstance(data, str) else data
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, whole."""
    write_whole(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def require_file(path: Path, expected: str, where: str) -> Path:
    """The path of a file that a user named; `~` is the home directory.

    Args:
        expected: what the file should be. where: the argument or option that names it.

    Raises:
        Refusal: there is no such file, or it is a directory.
    """
    path = path.expanduser()
    if path.is_file():
        return path
    near = path if path.is_dir() else path.parent
    names = sorted(entry.name for entry in near.iterdir() if entry.is_file()) if near.is_dir() else []
    shown = ", ".join(name for name in names if not name.startswith("."))[:200]
    raise Refusal(
        (f"{path} is a directory" if path.is_dir() else f"no file {path}") + (f" ({near} holds {shown})" if shown else ""),
        expected=expected, where=where, next_step="correct the path, and run the same command again",
    )  # fmt: skip


def require_place(path: Path, where: str) -> Path:
    """The path of a file that is to be written, or written over; `~` is the home directory.

    Raises:
        Refusal: a directory stands there, or one of its parents is no directory.
    """
    path = path.expanduser()
    blocked = next((parent for parent in path.parents if parent.exists() and not parent.is_dir()), None)
    if path.is_dir() or blocked is not None:
        raise Refusal(f"{blocked} is a file" if blocked is not None else f"{path} is a directory",
                      expected="the path of a file to write", where=where, next_step=f"give another path after {where}")  # fmt: skip
    return path


def read_text(path: Path) -> str:
    """The text of a UTF-8 file.

    Raises:
        Refusal: it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(f"byte {error.start} is not UTF-8", expected="text in UTF-8", where=str(path),
                      next_step=f"write {path} as UTF-8 again") from error  # fmt: skip


def read_json(path: Path, remedy: str = "") -> Any | None:
    """The value of a JSON file, or None where there is no file.

    Args:
        remedy: what makes a broken file good again.

    Raises:
        Refusal: it is not JSON.
    """
    if not path.exists():
        return None
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # not UTF-8 is a ValueError too
        raise _broken(path, str(error), remedy) from error


def read_as(path: Path, type_: type[T], remedy: str = "") -> T | None:
    """The value of a JSON file as a typed one, or None where there is no file.

    Raises:
        Refusal: it is not JSON, or not of that type.
    """
    return convert(read_json(path, remedy), type_, path, remedy) if path.exists() else None


def convert(value: Any, type_: type[T], path: Path, remedy: str = "") -> T:
    """Plain JSON values as a typed one; a Refusal that names the file where they do not fit."""
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise _broken(path, str(error), remedy) from error


def _broken(path: Path, problem: str, remedy: str) -> Refusal:
    return Refusal(f"not as it was written: {problem}", expected="the JSON that a verb wrote there", where=str(path),
                   next_step=remedy or f"restore or remove {path}")  # fmt: skip
