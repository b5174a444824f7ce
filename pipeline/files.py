# SPDX-License-Identifier: Apache-2.0
"""Whole files or none: a reader never sees a half-written one, whenever the writer is killed."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


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


def read_json(path: Path) -> Any | None:
    """The value of a JSON file, or None where there is no file."""
    return json.loads(path.read_text()) if path.exists() else None
