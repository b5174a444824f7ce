# SPDX-License-Identifier: Apache-2.0
"""Threads of the oracle: as many as there are idle cores, on blocks of rows.

OpenBLAS waits for its own threads by spinning. That is fast on an idle machine; on a busy one each
product waits for a thread that has no core, and a decode step gets ten times slower and more. So a
step first looks how many cores are free and takes those only:

- few rows (decode): products are bound by memory and short, BLAS splits them with its own threads;
- many rows (prefill): BLAS is held to one thread, and blocks of rows of every operator run on our
  own threads, which sleep when they wait. Otherwise the spinning threads of BLAS would take the
  cores that attention and elementwise work need between two products.

How a product is cut into blocks depends on its shape and on the machine, never on how many cores
are free: so the same input gives the same bits on a busy machine as on an idle one.
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

# Steps of fewer rows leave their products to the threads of BLAS.
FEW_ROWS = 16
# A block of a product with so many columns spends little of its time on packing the rows again.
_WIDE_COLUMNS = 6144
# Names of the thread controls in the builds of OpenBLAS that numpy is linked with.
_SPELLINGS = (
    "scipy_openblas_{}_num_threads64_",
    "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)
# The thread settings of BLAS belong to the process, so one step at a time may change them.
_step = threading.RLock()
_width = 1  # threads that for_row_blocks may use now


class _OpenBLAS:
    """The thread controls of the OpenBLAS that is loaded into this process; inert where there is none."""

    def __init__(self) -> None:
        self._set = None
        self.threads = 1
        for path in _loaded_libraries("openblas"):
            library = ctypes.CDLL(path)
            for spelling in _SPELLINGS:
                if hasattr(library, spelling.format("set")):
                    self._set = getattr(library, spelling.format("set"))
                    self.threads = int(getattr(library, spelling.format("get"))())
                    return

    def limit(self, threads: int) -> None:
        if self._set:
            self._set(ctypes.c_int(threads))


def _loaded_libraries(part: str) -> list[str]:
    """Paths of the shared objects mapped into this process whose file name has `part` in it."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "/" in line}
    return sorted(path for path in paths if part in Path(path).name)


@cache
def _openblas() -> _OpenBLAS:
    return _OpenBLAS()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="oracle-rows")


def others_running() -> int:
    """Threads of other processes that want a core now (Linux: runnable ones, without our own)."""
    try:
        running = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
        if running <= 1:
            return 0
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path("/proc/self/task").glob("*/stat")]
    except (OSError, ValueError, IndexError):
        return 0
    return max(0, running - states.count("R"))


@contextmanager
def free_cores(rows: int) -> Iterator[None]:
    """Give one step of `rows` rows the cores that are free; BLAS and `for_row_blocks` follow it. May be nested."""
    global _width
    with _step:
        blas, before = _openblas(), _width
        free = max(1, blas.threads - others_running())
        _width = 1 if rows < FEW_ROWS else free
        blas.limit(free if rows < FEW_ROWS else 1)
        try:
            yield
        finally:
            _width = before
            blas.limit(blas.threads)


def for_row_blocks(rows: int, block: int, work: Callable[[int, int], None]) -> None:
    """Call work(start, stop) for consecutive blocks of at most `block` rows, on the threads of this step.

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

    others = min(_width, len(spans)) - 1
    waiting = [_pool(_width).submit(drain) for _ in range(others)]
    drain()
    for done in waiting:
        done.result()


def product_block(rows: int, columns: int, quantum: int = 16) -> int:
    """The block size for a product of `rows` rows with a matrix of `columns` outputs.

    BLAS packs the rows anew for each block, so a product is cut into one block for each thread of the machine,
    and into more, which share out better, only where the blocks stay wide. In multiples of `quantum` columns;
    few rows are not cut.
    """
    if rows < FEW_ROWS:
        return columns
    threads = _openblas().threads
    blocks = threads * max(1, columns // (threads * _WIDE_COLUMNS))
    return -(-columns // (blocks * quantum)) * quantum
