# SPDX-License-Identifier: Apache-2.0
"""A kernel that leaves its buffers, crashes or never returns is a fault by its name, in both tiers, and the program goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from npu.device import DeviceFault
from npu.mlir.load import load_program
from npu.twin.device import TwinDevice, TwinSession
from npu.twin.hostcc import KernelLibrary, compile_kernel
from npu.twin.memory import Placement, TileMemory
from tests.npu.twin import engine_designs as d

SOURCE = Path(__file__).parent / "cases" / "crashes.cc"
DATA = np.arange(100, 228, dtype=np.int32)
BROKEN = np.where(DATA == 164, 7, DATA)  # the first element of the fifth call
OUT = np.zeros(128, np.int32)
TIERS = ("event", "replay")

FAULTS = {
    "stores_far": r"stored out of bounds: \d+ bytes behind buffer",
    "reads_far": r"read out of bounds: \d+ bytes behind buffer",
    "runs_on": r"stored out of bounds: 64 bytes behind buffer 'of_out_buff_\d' of core\(0,2\) \(64 bytes\)",
    "reads_on": r"read out of bounds: 64 bytes behind buffer 'of_in_cons_buff_\d' of core\(0,2\) \(64 bytes\)",
    "runs_back": r"stored out of bounds: \d+ bytes before buffer 'of_out_buff_\d' of core\(0,2\)",
    "stores_nowhere": r"stored out of bounds: address 0x10, far from every buffer",
    "divides": r"divides an integer by zero",
    "aborts": r"calls abort",
    "gives_up": r"executes an illegal instruction",
    "recurses": r"stored out of bounds: address",
    "spins": r"has not returned after 0\.3 s",
}


def opened(kernel: str, cache: Path, tier: str) -> TwinSession:
    if not (cache / "kernels").exists():
        (cache / "kernels").symlink_to(d.CACHE)
    library = KernelLibrary(compile_kernel(SOURCE, {}, cache=d.CACHE))
    device = TwinDevice(cache, tier="event" if tier == "event" else "auto", call_seconds=0.3)
    return device.open_program(load_program(d.map_design(kernel)), "main", {"k.o": library})


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kernel", FAULTS)
def test_a_broken_kernel_is_a_fault_and_the_next_dispatch_is_right(kernel: str, tier: str, tmp_path: Path) -> None:
    d.CACHE.mkdir(parents=True, exist_ok=True)
    session = opened(kernel, tmp_path, tier)
    assert (d.run(session, [DATA], OUT) == DATA + 1).all()
    session.write("in0", 0, BROKEN)
    with pytest.raises(DeviceFault, match=rf"core\(0,2\), kernel {kernel}: (.*)({FAULTS[kernel]})"):
        session.run("seq")
    assert list(session.log())[-1].tier == "event" if tier == "event" else session._replays
    session.write("in0", 0, DATA)
    session.run("seq")
    assert (session.read("out", 0, OUT.shape, OUT.dtype) == DATA + 1).all()


@pytest.mark.parametrize("tier", TIERS)
def test_a_load_a_little_ahead_is_let_be_as_kernels_read_ahead(tier: str, tmp_path: Path) -> None:
    session = opened("reads_ahead", tmp_path, tier)
    assert (d.run(session, [DATA], OUT) == DATA + 1).all()
    session.write("in0", 0, BROKEN)
    session.run("seq")
    assert (session.read("out", 0, OUT.shape, OUT.dtype) == BROKEN + 1).all()


def test_a_store_before_the_band_is_seen_when_the_dispatch_ends(tmp_path: Path) -> None:
    """Between the band and the page before lies slack that only the event tier looks at."""
    session = opened("stores_a_little_before", tmp_path, "event")
    d.run(session, [DATA], OUT)
    session.write("in0", 0, BROKEN)
    with pytest.raises(DeviceFault, match=r"stored out of bounds: the guard word 800 bytes before the start of buffer"):
        session.run("seq")


def test_every_buffer_ends_with_a_page_and_nothing_can_be_touched_beside_its_pages() -> None:
    device = load_program(d.map_design()).devices[0]
    placement = Placement.of(device)
    for buffer in device.buffers:
        start = placement.offsets[buffer.name]
        assert start % 64 == 0
        first, last = next(span for span in placement.spans if span[0] <= start < span[1])
        assert first <= start - 64
        assert 64 <= last - start - buffer.type.nbytes < 128
    edges = sorted(edge for span in placement.spans for edge in span)
    assert all(b - a >= 4096 for a, b in zip(edges[1::2], edges[2::2], strict=False))
    memory = TileMemory(placement)
    maps = Path("/proc/self/maps").read_text()
    forbidden = memory.bytes.ctypes.data + placement.spans[0][1]
    line = next(row for row in maps.splitlines() if row.startswith(f"{forbidden:x}-"))
    assert line.split()[1].startswith("---"), line


CRASH = """
import ctypes, pathlib, sys
from npu.twin.kernel_guard import guard_kernels
guard_kernels(pathlib.Path(sys.argv[1]), 1.0)
ctypes.string_at(16)
"""


def test_a_crash_of_the_program_itself_stays_one() -> None:
    """The guard answers for kernels alone: it must hide no fault of anybody else."""
    command = [sys.executable, "-c", CRASH, str(d.CACHE)]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], env=os.environ, capture_output=True, check=False)
    assert done.returncode == -signal.SIGSEGV


def test_a_process_that_was_forked_has_a_watch_of_its_own(tmp_path: Path) -> None:
    session = opened("spins", tmp_path, "event")
    d.run(session, [DATA], OUT)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            session.write("in0", 0, BROKEN)
            session.run("seq")
        except DeviceFault as fault:
            code = 0 if "has not returned" in str(fault) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
