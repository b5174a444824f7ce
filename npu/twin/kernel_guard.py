# SPDX-License-Identifier: Apache-2.0
"""What happens when a kernel crashes or does not return: the call ends as a fault of its core, and the program goes on."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from npu.twin.hostcc import CoreState, compile_kernel
from npu.twin.memory import MARGIN_BYTES, Memory

SOURCE_FILE = Path(__file__).parent / "kernel_guard.cc"
CALL_SECONDS = 60.0  # how long one kernel call may last: real ones take milliseconds on the twin
_NEVER_RETURNED = 0xFFFFFFFF
_MEMORY = (signal.SIGSEGV, signal.SIGBUS)
_WORDS = {
    signal.SIGFPE: "divides an integer by zero, or the smallest one by -1",
    signal.SIGILL: "executes an illegal instruction: undefined behaviour that the compiler has found, or a path that ends in nothing",
    signal.SIGABRT: "calls abort, or a check of the C++ library has failed",
}


@lru_cache(maxsize=4)
def _library(cache: Path) -> ctypes.CDLL:
    """The guard, compiled once per content into `cache`."""
    library = ctypes.CDLL(str(compile_kernel(SOURCE_FILE, {}, cache=cache, flags=("-pthread",)).resolve()))
    library.twin_guard.argtypes = (ctypes.c_double,)
    library.twin_guard.restype = None
    return library


def guard_kernels(cache: Path, seconds: float) -> int:
    """Take crashes of kernels over in this process, and end calls that last longer than `seconds`.

    Returns:
        The address that a core's state holds as `watch`.
    """
    library = _library(cache)
    library.twin_guard(seconds)
    return ctypes.cast(library.twin_watch, ctypes.c_void_p).value or 0


def explain(state: CoreState, memories: Iterable[Memory], seconds: float) -> str:
    """Why a core's kernel ended: its trap's own words, or what the signal was about."""
    number = state.fault_signal
    if number == 0:
        return state.trap_message.decode(errors="replace")
    if number == _NEVER_RETURNED:
        return f"has not returned after {seconds:g} s: a loop that does not end? (--timeout gives it longer)"
    if number in _MEMORY:
        verb = "stored" if state.fault_write else "read"
        return f"{verb} out of bounds: {_place(state.fault_address or 0, memories)}"
    return _WORDS.get(signal.Signals(number), f"was ended by {signal.Signals(number).name}")


def _place(address: int, memories: Iterable[Memory]) -> str:
    """Where an address lies, seen from the nearest buffer."""
    near = min(memories, key=lambda memory: _distance(memory, address), default=None)
    if near is None or _distance(near, address) > MARGIN_BYTES:
        return f"address {address:#x}, far from every buffer"
    if address < near.address:
        return f"{near.address - address} bytes before {near} ({near.nbytes} bytes)"
    return f"{address - near.address - near.nbytes} bytes behind {near} ({near.nbytes} bytes)"


def _distance(memory: Memory, address: int) -> int:
    return max(memory.address - address, address - memory.address - memory.nbytes, 0)
