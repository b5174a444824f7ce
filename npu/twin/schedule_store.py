# SPDX-License-Identifier: Apache-2.0
"""Schedules on disk, under a content address: device program, sequences, argument overlap, kernels, engine version.

A file is written beside its place and renamed, and begins with the sha256 of the rest: a file that is cut short or
altered is not read but recorded again. The engine's version is the content of the engine's own sources, so a schedule
recorded by other code has another address.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np

from npu.program import DeviceProgram
from npu.twin.cores import BoundFunction
from npu.twin.schedule import Schedule

MAGIC = b"twin schedule 1\n"
_ENGINE_FILES = (
    "caller.py", "control_port.py", "core_body.py", "cores.py", "dma.py", "engine.py",
    "kernel_guard.cc", "kernel_guard.py", "levels.py", "memory.py", "packets.py", "pattern.py",
    "replay.cc", "scalar_ops.py", "schedule.py", "schedule_store.py", "sequence.py", "stream.py", "tables.py", "waiting_call.py",
    "vector_ops.py",
)  # fmt: skip
_SCALARS = ("functions", "staging_bytes", "kernel_calls", "ddr_bytes", "channel_bytes")


@lru_cache(maxsize=1)
def engine_version() -> str:
    """sha256 over the engine's sources."""
    digest = hashlib.sha256()
    for name in _ENGINE_FILES:
        content = (Path(__file__).parent / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def device_digest(device: DeviceProgram) -> str:
    """sha256 over everything a DeviceProgram says."""
    return hashlib.sha256(repr(device).encode()).hexdigest()


def schedule_key(
    device_sha256: str,
    sequences: tuple[str, ...],
    regions: tuple[tuple[tuple[int, int], ...], ...],
    functions: dict[str, BoundFunction],
) -> str:
    """Content address of a schedule. regions: `memory.Regions.key` of each sequence's arguments."""
    kernels = sorted((name, f.key) for name, f in functions.items())
    parts = [engine_version(), device_sha256, sequences, regions, kernels]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class ScheduleStore:
    """A directory of schedules."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, key: str) -> Path:
        return self.directory / f"{key}.schedule"

    def load(self, key: str) -> Schedule | None:
        """The schedule stored under `key`; None if there is none, or only a damaged one."""
        try:
            raw = self.path(key).read_bytes()
        except FileNotFoundError:
            return None
        head = len(MAGIC)
        if raw[:head] != MAGIC or hashlib.sha256(raw[head + 32 :]).digest() != raw[head : head + 32]:
            return None
        with np.load(io.BytesIO(raw[head + 32 :]), allow_pickle=False) as stored:
            scalars = json.loads(bytes(stored["scalars"]).decode())
            arrays = {name: stored[name] for name in Schedule.ARRAYS}
        if scalars.pop("key") != key:
            return None
        scalars["channel_bytes"] = tuple((name, count) for name, count in scalars["channel_bytes"])
        for name in ("functions", "kernel_calls", "ddr_bytes"):
            scalars[name] = tuple(scalars[name])
        return Schedule(**arrays, **scalars)

    def save(self, key: str, schedule: Schedule) -> None:
        """Write atomically: a reader sees the whole file or none."""
        scalars = {name: getattr(schedule, name) for name in _SCALARS} | {"key": key}
        arrays = {name: getattr(schedule, name) for name in Schedule.ARRAYS}
        text = np.frombuffer(json.dumps(scalars).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, scalars=text, **arrays)
        content = buffer.getvalue()
        self.directory.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=key[:16], suffix=".partial", dir=self.directory)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(MAGIC + hashlib.sha256(content).digest() + content)
            Path(name).replace(self.path(key))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
