# SPDX-License-Identifier: Apache-2.0
"""A tape of what the host does with a device: buffers, bindings, writes, runs, reads. Recorded on one device, played on another.

`RecordingDevice` stands before any device. What is written and what comes back goes through `keep`, which stores an array
and returns its name; the tape itself holds names alone, so a model's weights never stand in memory twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npu.artifact import Artifact
from npu.device import Device, Session

Keep = Callable[[np.ndarray], str]


@dataclass
class Tape:
    """JSON values alone. steps: {"do": "write" | "run" | "read", ...} in order; buffers: name -> bytes."""

    artifact: Artifact
    buffers: dict[str, int] = field(default_factory=dict)
    bindings: dict[str, list[str]] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)

    def reads(self) -> list[dict[str, Any]]:
        """The read steps, in order."""
        return [step for step in self.steps if step["do"] == "read"]


def bits(values: np.ndarray) -> np.ndarray:
    """The array flat, bf16 as uint16: a form that NumPy alone can store and load."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return flat.view(np.uint16) if flat.dtype.name == "bfloat16" else flat


class RecordingSession:
    """A session that also writes a tape."""

    def __init__(self, session: Session, tape: Tape, keep: Keep) -> None:
        self._session, self.tape, self._keep = session, tape, keep

    def bind(self, entry: str, buffers: dict[int, str]) -> None:
        """As the session's."""
        self._session.bind(entry, buffers)
        self.tape.bindings[entry] = [buffers[index] for index in sorted(buffers)]

    def allocate(self, name: str, nbytes: int) -> None:
        """As the session's."""
        self._session.allocate(name, nbytes)
        self.tape.buffers[name] = nbytes

    def write(self, name: str, offset_bytes: int, data: np.ndarray) -> None:
        """As the session's."""
        self._session.write(name, offset_bytes, data)
        self.tape.steps.append({"do": "write", "buffer": name, "offset": offset_bytes, "file": self._keep(bits(data))})

    def read(self, name: str, offset_bytes: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """As the session's."""
        got = self._session.read(name, offset_bytes, shape, dtype)
        raw = bits(got)
        self.tape.steps.append(
            {"do": "read", "buffer": name, "offset": offset_bytes, "count": int(raw.size), "dtype": raw.dtype.name,
             "bf16": np.dtype(dtype).name == "bfloat16", "twin": self._keep(raw)}
        )  # fmt: skip
        return got

    def run(self, entry: str) -> None:
        """As the session's."""
        self._session.run(entry)
        self.tape.steps.append({"do": "run", "entry": entry})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class RecordingDevice:
    """A device whose last opened session leaves its tape in `tape`."""

    def __init__(self, device: Device, keep: Keep) -> None:
        self._device, self._keep = device, keep
        self.name = device.name
        self.tape: Tape | None = None

    def open(self, artifact: Artifact) -> RecordingSession:
        """As the device's."""
        self.tape = Tape(artifact)
        return RecordingSession(self._device.open(artifact), self.tape, self._keep)
