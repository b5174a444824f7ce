# SPDX-License-Identifier: Apache-2.0
"""A strict pyxrt without an NPU: dispatches run on the twin, and what XRT leaves undefined is an error here.

A buffer object has two memories, the host's and the device's, which only `sync` brings together. Starting a run while an
argument holds host writes that were never synced, and reading what the device wrote without syncing it, raise. Signatures
follow pyxrt's stub file of 2025-12: argument counts and types that pybind would refuse are refused.
"""

from __future__ import annotations

import enum
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from npu.artifact import Artifact, KernelObject
from npu.twin.device import TwinDevice

COMPLETED, ERROR, TIMEOUT = 4, 5, 8


class Undisciplined(Exception):
    """A use that real hardware answers with wrong data instead of an error."""


class Direction(enum.IntEnum):
    """xclBOSyncDirection."""

    XCL_BO_SYNC_BO_TO_DEVICE = 0
    XCL_BO_SYNC_BO_FROM_DEVICE = 1


class FakeXrt:
    """The module: use it where `pyxrt` is expected.

    fault: what goes wrong: "" nothing; "timeout" half of the last argument is written, wait2 raises; "silent timeout" the
    same without an exception; "error" state ERROR; "stale" every run after the first repeats the first one's output.
    calls: the names of the calls, in order.
    """

    xclBOSyncDirection = Direction

    def __init__(self, twin: TwinDevice) -> None:
        self.twin, self.fault = twin, ""
        self.calls: list[str] = []
        self.contexts = 0
        note = self._note

        class device:
            def __init__(self, index: int) -> None:
                note(f"device({int(index)})")

            def register_xclbin(self, package: Any) -> Any:
                note("register_xclbin")
                return package

        self.device = device
        self.elf = lambda path: self._load(path, "elf")
        self.xclbin = lambda path: self._load(path, "xclbin")
        self.hw_context = lambda owner, image: _Context(self, image)
        self.kernel = lambda context, name: _Kernel(self, context, name, image="xclbin")
        self.bo = type("bo", (_Bo,), {"host_only": "host_only", "cacheable": "cacheable", "xrt": self})
        extended = type("bo", (_ExtBo,), {"xrt": self})
        self.ext = SimpleNamespace(bo=extended, kernel=lambda c, name: _Kernel(self, c, name, image="elf"))
        self.run = lambda kernel: _Run(self, kernel)

    def _note(self, call: str) -> None:
        self.calls.append(call)

    def _load(self, path: str, kind: str) -> dict:
        assert isinstance(path, str), "pyxrt takes a str, not a Path"
        self._note(kind)
        image = json.loads(Path(path).read_text())
        assert image["kind"] == kind, f"{path} is {image['kind']}, not {kind}"
        return image


class _Context:
    def __init__(self, xrt: FakeXrt, image: dict) -> None:
        xrt._note("hw_context")
        self.image = image
        self.folder = Path(tempfile.mkdtemp(prefix="fake-xrt-"))
        self.sessions: dict[str, Any] = {}

    def session(self, twin: TwinDevice, device: str) -> Any:
        """The twin's session of the image, with `device` as the entry."""
        if device not in self.sessions:
            objects = tuple(self._object(name, made) for name, made in self.image["objects"].items())
            self.sessions[device] = twin.open(Artifact(self.image["text"], objects, device))
        return self.sessions[device]

    def _object(self, name: str, made: dict) -> KernelObject:
        path = self.folder / name / made["file"]
        path.parent.mkdir(exist_ok=True)
        path.write_text(made["source"])
        return KernelObject(name, path, tuple(sorted(made["defines"].items())))


class _Kernel:
    def __init__(self, xrt: FakeXrt, context: _Context, name: str, image: str) -> None:
        xrt._note(f"kernel({name})")
        assert context.image["kind"] == image, f"a kernel of a {image} in a context of a {context.image['kind']}"
        self.context, self.name, self.image = context, name, image

    def group_id(self, index: int) -> int:
        """The memory group of an argument: another number for instructions, as on the device."""
        return {1: 1}.get(index, 131072)


class _Bo:
    """bo(device, size, flags, group)."""

    xrt: FakeXrt

    def __init__(self, device: Any, size: int, flags: Any, group: int) -> None:
        assert flags in ("host_only", "cacheable"), flags
        assert group == {"host_only": 131072, "cacheable": 1}[flags], f"{flags} in group {group}"
        self._make(size)

    def _make(self, size: int) -> None:
        self.xrt._note("bo")
        rng = np.random.default_rng(size)  # fresh memory holds anything
        self.host, self.device = (rng.integers(0, 256, int(size), np.uint8) for _ in range(2))
        self.unsynced = np.zeros(int(size), bool)  # the host wrote, the device does not see it
        self.unread = np.zeros(int(size), bool)  # the device may have written, the host does not see it

    def size(self) -> int:
        return len(self.host)

    def write(self, data: Any, seek: int) -> None:
        raw = np.frombuffer(data, np.uint8)
        assert seek + len(raw) <= len(self.host), "write beyond the buffer"
        self.host[seek : seek + len(raw)] = raw
        self.unsynced[seek : seek + len(raw)] = True
        self.xrt._note("write")

    def read(self, size: int, skip: int) -> np.ndarray:
        assert skip + size <= len(self.host), "read beyond the buffer"
        if self.unread[skip : skip + size].any():
            raise Undisciplined("read of bytes that the device may have written, without a sync from it")
        self.xrt._note("read")
        return self.host[skip : skip + size].copy().view(np.int8)

    def sync(self, direction: Direction, size: int, offset: int) -> None:
        part = slice(offset, offset + size)
        assert offset + size <= len(self.host), "sync beyond the buffer"
        if direction == Direction.XCL_BO_SYNC_BO_TO_DEVICE:
            lost = self.unread[part] & ~self.unsynced[part]
            if lost.any():
                raise Undisciplined("a sync to the device writes old bytes over what the device wrote")
            self.device[part] = self.host[part]
            self.unsynced[part] = self.unread[part] = False
            self.xrt._note("sync to")
        else:
            if self.unsynced[part].any():
                raise Undisciplined("a sync from the device drops what the host wrote")
            self.host[part] = self.device[part]
            self.unread[part] = False
            self.xrt._note("sync from")


class _ExtBo(_Bo):
    """ext.bo(device, size)."""

    def __init__(self, device: Any, size: int) -> None:
        self._make(size)


class _Run:
    def __init__(self, xrt: FakeXrt, kernel: _Kernel) -> None:
        xrt._note("run")
        self.xrt, self.kernel = xrt, kernel
        self.arguments: dict[int, Any] = {}
        self.now, self.count, self.first = 1, 0, None

    def set_arg(self, index: int, value: Any) -> None:
        assert type(index) is int
        assert isinstance(value, int | _Bo), f"pybind has no set_arg for {type(value).__name__}"
        signature = self.kernel.context.image.get("signature")
        if signature is not None and index >= signature.get(self.kernel.name.split(":")[0], 0):
            raise IndexError(f"argument {index} of a kernel with {signature}")
        self.arguments[index] = value
        self.xrt._note(f"set_arg({index})")

    def start(self) -> None:
        self.xrt._note("start")
        device, sequence, buffers = self._what()
        for place, bo in enumerate(buffers):
            if bo.unsynced.any():
                raise Undisciplined(f"argument {place} holds host writes that the device does not see")
        before = buffers[-1].device.copy()
        self.now = self._execute(device, sequence, buffers)
        output = buffers[-1].device
        if "timeout" in self.xrt.fault:
            output[len(output) // 2 :] = before[len(output) // 2 :]
            self.now = TIMEOUT
        elif self.xrt.fault == "error":
            self.now = ERROR
        elif self.xrt.fault == "stale" and self.count:
            output[:] = self.first
        if not self.count:
            self.first = output.copy()
        self.count += 1
        for bo in buffers:
            bo.unread[:] = True

    def _what(self) -> tuple[str, str, list[_Bo]]:
        """Entry device, sequence and buffers, by the calling convention of the image."""
        image, ordered = self.kernel.context.image, [self.arguments[i] for i in sorted(self.arguments)]
        assert sorted(self.arguments) == list(range(len(ordered))), f"arguments {sorted(self.arguments)}"
        if image["kind"] == "elf":
            device, _, sequence = self.kernel.name.partition(":")
            return device, sequence, ordered
        opcode, instructions, nbytes, *buffers = ordered
        assert (opcode, nbytes) == (3, instructions.size()), f"opcode {opcode}, {nbytes} bytes"
        assert not instructions.unsynced.any(), "instructions were never synced"
        return image["device"], json.loads(instructions.device.tobytes())["sequence"], buffers

    def _execute(self, device: str, sequence: str, buffers: list[_Bo]) -> int:
        session = self.kernel.context.session(self.xrt.twin, device)
        names = {index: f"{id(bo)}" for index, bo in enumerate(buffers)}
        known = session._buffers
        for index, bo in enumerate(buffers):
            if names[index] not in known:
                session.allocate(names[index], bo.size())
            session.write(names[index], 0, bo.device)
        try:
            session.bind(sequence, names)
        except Exception:  # a wrong instance name: the real device times out
            return TIMEOUT
        session.run(sequence)
        for index, bo in enumerate(buffers):
            bo.device[:] = session.read(names[index], 0, (bo.size(),), np.uint8)
        return COMPLETED

    def wait2(self) -> None:
        self.xrt._note("wait2")
        if self.now != COMPLETED and not self.xrt.fault.startswith("silent"):
            raise RuntimeError("run did not complete")

    def state(self) -> int:
        return self.now
