# SPDX-License-Identifier: Apache-2.0
"""A kernel call that uses its core's cascade, and so may have to wait for another core in the middle.

The call runs on a thread of its own, and that thread and the engine take turns: never both at once. Where the cascade has
no room or no value, the turn goes back to the engine, which lets other cores run and comes back when the stream has changed.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator

import numpy as np

from npu.device import DeviceFault
from npu.twin.cascade import CascadeLink
from npu.twin.hostcc import CoreState
from npu.twin.stream import Process

VALUE_BYTES = 64  # a cascade moves 512 bits
_EXCHANGE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


class WaitingCall:
    """One call.

    run: makes it, on whatever thread it is called. state: the core's. link: the stream out of (True) or into the core.
    """

    def __init__(self, run: Callable[[], None], state: CoreState, link: Callable[[bool], CascadeLink]) -> None:
        self._run, self._state, self._link = run, state, link
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._exchange = _EXCHANGE(self._on_cascade)  # kept alive for as long as C may call it
        self.waits_for: tuple[CascadeLink, bool] | None = None
        self._ended = self._abandoned = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def steps(self, process: Process) -> Iterator[None]:
        """Run to the end, yielding whenever the call waits for the cascade."""
        self._state.cascade = ctypes.cast(self._exchange, ctypes.c_void_p)
        try:
            self._thread.start()
            self._give_turn(start=True)
            while self.waits_for is not None:
                link, put = self.waits_for
                while link.full if put else not link.values:
                    process.wait = ("cascade", link, put)
                    link.waiters.append(process)
                    yield
                process.wait = None
                self._give_turn()
        finally:
            if not self._ended:  # the dispatch has ended without it
                self._abandoned = True
                self._give_turn()
            self._thread.join()
            self._state.cascade = None
        if self._error is not None:
            raise self._error

    def _give_turn(self, start: bool = False) -> None:
        """Let the call go on until it waits or has ended."""
        if not start:
            self._turn.release()
        self._back.acquire()

    def _work(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._error = self._error or error
        finally:
            self._ended, self.waits_for = True, None
            self._back.release()

    def _on_cascade(self, _state: int, put: int, data: int) -> int:
        """One value out of the kernel or into it; 1 where the call has to stop."""
        try:
            link = self._link(bool(put))
            while link.full if put else not link.values:
                self.waits_for = (link, bool(put))
                self._back.release()
                self._turn.acquire()
                if self._abandoned:
                    return 1
            self.waits_for = None
            if put:
                link.put(np.frombuffer(ctypes.string_at(data, VALUE_BYTES), np.int32).copy())
            else:
                content = np.ascontiguousarray(link.get()).tobytes()
                if len(content) != VALUE_BYTES:
                    raise DeviceFault(f"a cascade value of {len(content)} bytes; a kernel takes {VALUE_BYTES}")
                ctypes.memmove(data, content, VALUE_BYTES)
        except BaseException as error:
            self._error = error
            return 1
        return 0
