# SPDX-License-Identifier: Apache-2.0
"""Work on blocks of rows by several threads, with the BLAS library held to one thread meanwhile.

OpenBLAS waits for its own threads by spinning. Between two products the spinning thread takes the
core that attention or an elementwise loop could use, and on a busy machine small products get ten
times slower. So the oracle splits all work over rows itself, on threads that sleep when they wait:
numpy lets go of the interpreter lock inside its loops. Measured on 2 cores, prefill of 256 tokens.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

# Names of the thread controls in the builds of OpenBLAS that numpy is linked with.
_SPELLINGS = (
    "scipy_openblas_{}_num_threads64_",
    "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)
_toggle = threading.RLock()
# While BLAS is held to one thread: how many it had before.
_allowed: dict[str, int] = {}


class _OpenBLAS:
    """The thread controls of the OpenBLAS that is loaded into this process; inert where there is none."""

    def __init__(self) -> None:
        self._get = self._set = None
        for path in _loaded_libraries("openblas"):
            library = ctypes.CDLL(path)
            for spelling in _SPELLINGS:
                if hasattr(library, spelling.format("set")):
                    self._get = getattr(library, spelling.format("get"))
                    self._set = getattr(library, spelling.format("set"))
                    return

    @property
    def threads(self) -> int:
        return int(self._get()) if self._get else 1

    def limit(self, threads: int) -> None:
        if self._set:
            self._set(ctypes.c_int(threads))


def _loaded_libraries(part: str) -> list[str]:
    """Paths of the shared objects mapped into this process whose file name has `part` in it."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if line.count(" ") > 4 and "/" in line}
    return sorted(path for path in paths if part in Path(path).name)


@cache
def _openblas() -> _OpenBLAS:
    return _OpenBLAS()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="oracle-rows")


@contextmanager
def one_blas_thread() -> Iterator[int]:
    """Hold BLAS to one thread; yields how many it had. May be nested."""
    with _toggle:
        blas = _openblas()
        threads = _allowed.get("threads") or blas.threads
        outermost = not _allowed
        if outermost:
            _allowed["threads"] = threads
            blas.limit(1)
        try:
            yield threads
        finally:
            if outermost:
                _allowed.clear()
                blas.limit(threads)


def for_row_blocks(rows: int, block: int, work: Callable[[int, int], None]) -> None:
    """Call work(start, stop) for consecutive blocks of at most `block` rows, on as many threads as BLAS had.

    Blocks must be independent of each other. The last ones are started first, since causal work
    grows with the row. The caller's thread takes part.
    """
    spans = deque((start, min(start + block, rows)) for start in range(0, rows, block))

    def drain() -> None:
        while True:
            try:
                start, stop = spans.pop()
            except IndexError:
                return
            work(start, stop)

    with one_blas_thread() as threads:
        others = min(threads, len(spans)) - 1
        waiting = [_pool(threads).submit(drain) for _ in range(others)]
        drain()
        for done in waiting:
            done.result()


def share_of_rows(rows: int, shares: int, quantum: int) -> int:
    """The block size that gives each thread `shares` blocks, in multiples of `quantum` rows."""
    with one_blas_thread() as threads:
        return -(-rows // (threads * shares * quantum)) * quantum
