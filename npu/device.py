# SPDX-License-Identifier: Apache-2.0
"""Device: what runs an artifact. Two implementations: `npu.twin.device.TwinDevice` and `npu.xrt.XrtDevice`.

The host owns buffers (sequence arguments, "arenas") through a Session. It writes and reads byte ranges; each write is
counted, since host bytes per token are a promise. `run` returns after completion and raises on anything but success.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from npu.artifact import Artifact


@dataclass(frozen=True)
class DispatchRecord:
    """One line of the device's log: what ran, on which slices, and what it moved.

    kernel_calls: calls per core ((col, row) -> calls); vector_ops and mul_adds the same, counted by the headers.
    ddr_read_bytes / ddr_write_bytes: bytes that crossed the shims. tier: "event" | "replay" | "npu".
    """

    entry: str
    design: str
    sequence: str
    arguments: tuple[tuple[int, int, int], ...]  # (argument, offset_bytes, nbytes)
    tier: str
    ddr_read_bytes: int = 0
    ddr_write_bytes: int = 0


class Session(Protocol):
    """One loaded artifact with its buffers."""

    def bind(self, entry: str, buffers: dict[int, str]) -> None:
        """Say which named buffer is argument i of sequence `entry`."""

    def allocate(self, name: str, nbytes: int) -> None:
        """Make a buffer; its content is undefined (the twin fills it with signalling NaN)."""

    def write(self, name: str, offset_bytes: int, data: np.ndarray) -> None:
        """Copy `data` into the buffer and make it visible to the device."""

    def read(self, name: str, offset_bytes: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Copy out of the buffer what the device has written."""

    def run(self, entry: str) -> None:
        """Run one sequence of the entry device to completion; raises DeviceFault on any other outcome."""

    def log(self) -> Iterable[DispatchRecord]:
        """What ran so far, in order."""


class Device(Protocol):
    """A place where artifacts run."""

    name: str  # "twin" | "xrt"

    def open(self, artifact: Artifact) -> Session:
        """Build (or find) the artifact and load it."""


class DeviceFault(Exception):
    """The device did not complete a dispatch: deadlock, fault found by the twin, time-out, error state."""
