# SPDX-License-Identifier: Apache-2.0
"""XrtDevice: the NPU itself, through pyxrt. No NPU was there when this was written: see docs/on-hardware.md.

Two ways onto the array, chosen by what the artifact is (`npu.toolchain.flow_of`):

    elf      hw_context(device, elf), ext.kernel(context, "<device>:<sequence>"), ext.bo, run.set_arg(i, bo)
    xclbin   register_xclbin, hw_context(device, uuid), kernel(context, "MLIR_AIE"), run.set_arg: 3 (the transaction
             opcode), the instruction buffer, its bytes, then the buffers

Rules: a dispatch has run only if its state is COMPLETED, exactly; after anything else the session gives out no byte. What the
host writes is synced to the device at once, what it reads is synced from it first, by ranges of whole cache lines.
One process holds an NPU at a time. Fresh buffers are poisoned, never zero.

Imports the standard library, NumPy, `refusal` and npu.{artifact,device,toolchain} alone: `emit` ships this file.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import importlib.util
import os
import tempfile
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npu.artifact import Artifact
from npu.device import DeviceFault, DispatchRecord
from npu.toolchain import Built, Signature, Toolchain, build, find_toolchain, missing_tools, signatures
from refusal import Refusal

COMPLETED = 4
STATES = {
    1: "NEW", 2: "QUEUED", 3: "RUNNING", 4: "COMPLETED", 5: "ERROR", 6: "ABORT", 7: "SUBMITTED", 8: "TIMEOUT",
    9: "NORESPONSE", 10: "SKERROR", 11: "SKCRASHED",
}  # fmt: skip
TRANSACTION_OPCODE = 3
FIRST_BUFFER = {"elf": 0, "xclbin": 3}  # kernel argument of the sequence's argument 0
CONTEXTS = 8  # a process gets 8 to 10 hardware contexts
CACHE_LINE = 64
POISON = np.uint16(0x7FA5)  # a signalling NaN in bf16, and in FP32 when repeated
DISPATCH_SECONDS = 1.0  # a dispatch beyond this has hung and come back, it is not slow (faults RT-01)


class XrtFault(DeviceFault):
    """A dispatch ended in a state other than COMPLETED. `state` is its name."""

    def __init__(self, state: str, text: str) -> None:
        super().__init__(text)
        self.state = state


@dataclass
class _Buffer:
    """A buffer object and whether the device may have written it since the host last read all of it."""

    bo: Any
    nbytes: int
    device_wrote: bool = False


class DeviceLock:
    """The lock of one NPU: one process at a time; a second one is refused, it does not wait."""

    _held: dict[Path, tuple[int, int]] = {}  # noqa: RUF012  path -> (file descriptor, holders in this process)

    def __init__(self, index: int, folder: Path | None = None) -> None:
        self.path = (folder or Path(tempfile.gettempdir())) / f"llm-to-npu-device-{index}.lock"

    def acquire(self) -> None:
        """Take the lock, or one more share of it in the process that has it.

        Raises:
            Refusal: another process has it.
        """
        if self.path in self._held:
            descriptor, holders = self._held[self.path]
            self._held[self.path] = (descriptor, holders + 1)
            return
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except PermissionError:  # another user made it; flock needs no write access
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise Refusal(
                f"the NPU is in use by {holder or 'another process'}", expected="one process at a time",
                where=str(self.path), next_step="wait for it to end, then run the same command again",
            ) from None  # fmt: skip
        self._sign(descriptor)
        self._held[self.path] = (descriptor, 1)

    @staticmethod
    def _sign(descriptor: int) -> None:
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} since {time.strftime('%H:%M:%S')}".encode(), 0)
        except OSError:
            return  # opened for reading only: the lock holds all the same

    def release(self) -> None:
        """Give one share back; the last one opens the lock."""
        descriptor, holders = self._held.get(self.path, (-1, 0))
        if holders > 1:
            self._held[self.path] = (descriptor, holders - 1)
        elif holders == 1:
            del self._held[self.path]
            os.close(descriptor)


class XrtSession:
    """One artifact in one hardware context. See `npu.device.Session` for the methods that it shares with the twin."""

    def __init__(self, device: XrtDevice, artifact: Artifact, built: Built) -> None:
        self._xrt, self._device, self._built = device.pyxrt, device.handle, built
        self._entry_device = artifact.entry_device
        self._entries = signatures(artifact.text)[artifact.entry_device]
        self._buffers: dict[str, _Buffer] = {}
        self._bindings: dict[str, dict[int, str]] = {}
        self._kernels: dict[str, Any] = {}
        self._instructions: dict[str, tuple[Any, int]] = {}
        self._runs: dict[str, Any] = {}
        self._records: list[DispatchRecord] = []
        self._fault = ""
        self.host_bytes_written = 0
        self.last_seconds = 0.0  # start to completion of the last dispatch
        self._context = self._open_context()

    def _open_context(self) -> Any:
        if self._built.flow == "elf":
            return self._xrt.hw_context(self._device, self._xrt.elf(str(self._built.products["elf"])))
        package = self._xrt.xclbin(str(self._built.products["xclbin"]))
        return self._xrt.hw_context(self._device, self._device.register_xclbin(package))

    # ---- buffers -----------------------------------------------------------------------------

    def bind(self, entry: str, buffers: dict[int, str]) -> None:
        """Say which named buffer is argument i of sequence `entry`."""
        count = len(self._signature(entry).arguments)
        wrong = sorted(set(buffers) ^ set(range(count)))
        if wrong:
            raise DeviceFault(f"@{entry} takes arguments 0..{count - 1}; binding differs at {wrong}")
        self._bindings[entry] = dict(buffers)
        self._runs.pop(entry, None)

    def _signature(self, entry: str) -> Signature:
        """A wrong kernel name would time out or hang on the device, so it is refused here."""
        if entry not in self._entries:
            raise DeviceFault(f"no sequence @{entry} in @{self._entry_device}; there are {sorted(self._entries)}")
        return self._entries[entry]

    def allocate(self, name: str, nbytes: int) -> None:
        """Make a buffer of poison, on the host's side and on the device's."""
        self._require_sound()
        try:
            bo = self._new_buffer(nbytes)
        except (RuntimeError, MemoryError) as error:
            raise DeviceFault(
                f"no buffer '{name}' of {nbytes} bytes: {error}; buffers are pinned, see ulimit -l"
            ) from error
        self._buffers[name] = _Buffer(bo, nbytes)
        poison = np.full(-(-nbytes // 2), POISON).view(np.uint8)[:nbytes]
        bo.write(poison, 0)
        self._sync(bo, "TO", 0, nbytes)
        self._runs.clear()

    def _new_buffer(self, nbytes: int) -> Any:
        if self._built.flow == "elf":
            return self._xrt.ext.bo(self._device, nbytes)
        group = self._kernel(next(iter(self._entries))).group_id(FIRST_BUFFER["xclbin"])
        return self._xrt.bo(self._device, nbytes, self._xrt.bo.host_only, group)

    def _sync(self, bo: Any, direction: str, offset: int, nbytes: int) -> None:
        which = getattr(self._xrt.xclBOSyncDirection, f"XCL_BO_SYNC_BO_{direction}_DEVICE")
        bo.sync(which, nbytes, offset)

    def _range(self, name: str, offset: int, nbytes: int) -> tuple[_Buffer, int, int]:
        """The buffer, and the range widened to whole cache lines."""
        self._require_sound()
        if name not in self._buffers:
            raise DeviceFault(f"no host buffer '{name}'; allocated are {sorted(self._buffers)}")
        buffer = self._buffers[name]
        if offset < 0 or offset + nbytes > buffer.nbytes:
            raise DeviceFault(f"bytes {offset}..{offset + nbytes} of host buffer '{name}'; it has {buffer.nbytes}")
        first = offset // CACHE_LINE * CACHE_LINE
        last = min(-(-(offset + nbytes) // CACHE_LINE) * CACHE_LINE, buffer.nbytes)
        return buffer, first, last - first

    def write(self, name: str, offset_bytes: int, data: np.ndarray) -> None:
        """Copy `data` into the buffer and make it visible to the device."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        buffer, first, width = self._range(name, offset_bytes, raw.nbytes)
        if buffer.device_wrote and width != raw.nbytes:
            # The rest of the first and last line is the device's: what the host has of it may be old.
            self._sync(buffer.bo, "FROM", first, width)
        buffer.bo.write(raw, offset_bytes)
        self._sync(buffer.bo, "TO", first, width)
        self.host_bytes_written += raw.nbytes

    def read(self, name: str, offset_bytes: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Copy out of the buffer what the device has written."""
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        buffer, first, width = self._range(name, offset_bytes, nbytes)
        self._sync(buffer.bo, "FROM", first, width)
        raw = np.asarray(buffer.bo.read(nbytes, offset_bytes)).view(np.uint8)
        if raw.nbytes != nbytes:
            raise DeviceFault(f"{raw.nbytes} bytes came back of '{name}', {nbytes} were asked for")
        return raw.copy().view(kind).reshape(shape)

    # ---- running -----------------------------------------------------------------------------

    def _kernel(self, entry: str) -> Any:
        name = f"{self._entry_device}:{entry}" if self._built.flow == "elf" else "MLIR_AIE"
        if name not in self._kernels:
            make = self._xrt.ext.kernel if self._built.flow == "elf" else self._xrt.kernel
            self._kernels[name] = make(self._context, name)
        return self._kernels[name]

    def _prepare(self, entry: str) -> Any:
        signature, binding = self._signature(entry), self._bindings.get(entry)
        if binding is None:
            raise DeviceFault(f"@{entry} is not bound; call bind('{entry}', {{argument: buffer}}) first")
        run = self._xrt.run(self._kernel(entry))
        if self._built.flow == "xclbin":
            instructions, nbytes = self._load_instructions(entry)
            run.set_arg(0, TRANSACTION_OPCODE)
            run.set_arg(1, instructions)
            run.set_arg(2, nbytes)
        for index, need in enumerate(signature.arguments):
            buffer, _, _ = self._range(binding[index], 0, 0)
            if buffer.nbytes < need:
                raise DeviceFault(
                    f"@{entry} argument {index} takes {need} bytes; buffer '{binding[index]}' has {buffer.nbytes}"
                )
            run.set_arg(FIRST_BUFFER[self._built.flow] + index, buffer.bo)
        return run

    def _load_instructions(self, entry: str) -> tuple[Any, int]:
        if entry not in self._instructions:
            words = np.fromfile(self._built.products[f"insts:{entry}"], np.uint8)
            group = self._kernel(entry).group_id(1)
            bo = self._xrt.bo(self._device, words.nbytes, self._xrt.bo.cacheable, group)
            bo.write(words, 0)
            self._sync(bo, "TO", 0, words.nbytes)
            self._instructions[entry] = (bo, words.nbytes)
        return self._instructions[entry]

    def run(self, entry: str) -> None:
        """Run one sequence to completion; XrtFault on any other outcome, and then nothing more can be read."""
        self._require_sound()
        if entry not in self._runs:
            self._runs[entry] = self._prepare(entry)
        run, signature, said = self._runs[entry], self._signature(entry), ""
        started = time.perf_counter()
        try:
            run.start()
            run.wait2()
        except Exception as error:  # pyxrt raises what XRT throws, of several types; the state decides, not the type
            said = f": {error}"
        self.last_seconds = time.perf_counter() - started
        # The enumeration is not ordered: ERROR, ABORT and TIMEOUT lie above COMPLETED.
        state = int(run.state())
        name = STATES.get(state, f"state {state}")
        limit = DISPATCH_SECONDS * max(1, signature.runs)
        if state != COMPLETED or said:
            self._fail(name if state != COMPLETED else "EXCEPTION", f"@{entry} ended as {name} ({state}){said}")
        if self.last_seconds > limit:
            self._fail("SLOW", f"@{entry} took {self.last_seconds:.2f} s; {limit:g} s is a hang, not a slow run")
        for buffer_name in self._bindings[entry].values():
            self._buffers[buffer_name].device_wrote = True
        arguments = tuple((index, 0, nbytes) for index, nbytes in enumerate(signature.arguments))
        self._records.append(DispatchRecord(entry, self._entry_device, entry, arguments, "npu"))

    def _fail(self, state: str, text: str) -> None:
        self._fault = text
        raise XrtFault(state, f"{text}; the array's state is lost, no output is given out")

    def _require_sound(self) -> None:
        if self._fault:
            raise DeviceFault(f"an earlier dispatch failed ({self._fault}); open the artifact again")

    def log(self) -> Iterable[DispatchRecord]:
        """What ran so far, in order. Bytes are zero: XRT does not count them."""
        return iter(tuple(self._records))

    def close(self) -> None:
        """Give the hardware context and the buffers back."""
        self._fault = self._fault or "the session was closed"
        self._runs.clear()
        self._kernels.clear()
        self._instructions.clear()
        self._buffers.clear()
        self._context = None


class XrtDevice:
    """An NPU.

    cache: directory for builds. pyxrt, toolchain: found where they are None. index: XRT's device number.
    lock_folder: where the lock of the device lies.
    """

    name = "xrt"

    def __init__(
        self,
        cache: Path,
        *,
        pyxrt: Any = None,
        toolchain: Toolchain | None = None,
        index: int = 0,
        lock_folder: Path | None = None,
    ) -> None:
        if pyxrt is None or toolchain is None:
            require_npu(needs_pyxrt=pyxrt is None, needs_tools=toolchain is None)
        self.cache = cache
        self.pyxrt = importlib.import_module("pyxrt") if pyxrt is None else pyxrt
        self.toolchain = find_toolchain() if toolchain is None else toolchain
        self._lock = DeviceLock(index, lock_folder)
        self._lock.acquire()
        self._release = weakref.finalize(self, self._lock.release)
        self._sessions: weakref.WeakSet[XrtSession] = weakref.WeakSet()
        try:
            self.handle = self.pyxrt.device(index)
        except Exception as error:
            self._release()
            raise Refusal(
                f"XRT cannot open device {index}: {error}", expected="an NPU that XRT sees", where="pyxrt.device",
                next_step="xrt-smi examine; see docs/on-hardware.md",
            ) from error  # fmt: skip

    def open(self, artifact: Artifact) -> XrtSession:
        """Build (or find) the artifact and load it into a hardware context of its own.

        Raises:
            Refusal: it does not compile, or all contexts of this process are in use.
        """
        built = build(artifact, self.toolchain, self.cache)
        if self._open_sessions() >= CONTEXTS:
            gc.collect()
        if self._open_sessions() >= CONTEXTS:
            raise Refusal(
                f"{CONTEXTS} hardware contexts are open", expected=f"at most {CONTEXTS} in a process", where="XrtDevice",
                next_step="close a session before opening another",
            )  # fmt: skip
        try:
            session = XrtSession(self, artifact, built)
        except (TypeError, AttributeError) as error:
            raise Refusal(
                f"this pyxrt cannot load a {built.flow} artifact: {error}", where="pyxrt",
                expected="hw_context from an ELF (XRT of 2026-01-23 or later) and the submodule ext",
                next_step="install a newer XRT; see docs/on-hardware.md",
            ) from error  # fmt: skip
        except RuntimeError as error:  # what XRT throws when the driver refuses a context
            raise DeviceFault(f"XRT did not load the {built.flow} artifact {built.key[:12]}: {error}") from error
        self._sessions.add(session)
        return session

    def _open_sessions(self) -> int:
        return sum(session._context is not None for session in self._sessions)

    def close(self) -> None:
        """Close every session and let others have the NPU."""
        for session in list(self._sessions):
            session.close()
        self._release()


def require_npu(*, needs_pyxrt: bool = True, needs_tools: bool = True) -> None:
    """Refuse, naming everything that is missing at once."""
    missing = ["pyxrt (XRT's Python module)"] if needs_pyxrt and importlib.util.find_spec("pyxrt") is None else []
    if needs_tools:
        missing += missing_tools(os.environ)[0]
    if missing:
        raise Refusal(
            f"device 'xrt' without {', '.join(missing)}", expected="an NPU with XRT, mlir-aie and Peano", where="--device",
            next_step="see docs/on-hardware.md, or --device twin (values by the twin, times predicted)",
        )  # fmt: skip
