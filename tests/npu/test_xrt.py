# SPDX-License-Identifier: Apache-2.0
"""XrtDevice against a strict stand-in of pyxrt whose array is the twin: order of calls, sync, faults, lock, contexts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from judge.gates import judge_kernel
from judge.policy import load_policy
from kernels.designs.design import NUMPY_DTYPE, single_design_artifact
from kernels.designs.rowwise import AddDesign, RmsNormDesign
from npu.device import DeviceFault
from npu.toolchain import find_toolchain
from npu.xrt import CONTEXTS, DeviceLock, XrtDevice, XrtFault
from pipeline import worker
from pipeline.exercise import exercise
from refusal import Refusal
from tests.npu.test_toolchain import wrapped
from tests.stand_ins import npu_tools
from tests.stand_ins.fake_xrt import FakeXrt
from tests.twin_device import twin

BF16 = NUMPY_DTYPE["bf16"]
ADD = AddDesign(64, 128)
WIDTH = 64 * 128


@pytest.fixture
def xrt() -> FakeXrt:
    return FakeXrt(twin())


@pytest.fixture
def device(xrt, tmp_path, monkeypatch):
    monkeypatch.setattr("npu.xrt.DISPATCH_SECONDS", 300.0)  # the twin is no NPU
    toolchain = find_toolchain(npu_tools.install(tmp_path / "tools"))
    made = XrtDevice(tmp_path / "cache", pyxrt=xrt, toolchain=toolchain, lock_folder=tmp_path)
    yield made
    made.close()


def loaded(device, artifact, entry):
    """A session with three bound buffers and inputs of ones and twos."""
    session = device.open(artifact)
    for index, name in enumerate("abc"):
        session.allocate(name, 2 * WIDTH)
        if name != "c":
            session.write(name, 0, np.full(WIDTH, index + 1, BF16))
    session.bind(entry, dict(enumerate("abc")))
    return session


@pytest.mark.parametrize("artifact, entry", [(single_design_artifact(ADD), "run"), (wrapped(ADD), "entry")])
def test_both_flows_compute_what_the_twin_computes(device, artifact, entry):
    session = loaded(device, artifact, entry)
    session.run(entry)
    assert (session.read("c", 0, (WIDTH,), BF16).astype(np.float32) == 3).all()
    assert [record.tier for record in session.log()] == ["npu"]


def test_full_elf_calls_come_in_the_documented_order(device, xrt):
    session = loaded(device, wrapped(ADD), "entry")
    session.run("entry")
    session.read("c", 0, (WIDTH,), BF16)
    made = [call for call in xrt.calls if call not in ("bo", "write", "sync to")]
    assert made == [
        "device(0)", "elf", "hw_context", "kernel(main:entry)", "run", "set_arg(0)", "set_arg(1)", "set_arg(2)", "start",
        "wait2", "sync from", "read",
    ]  # fmt: skip


def test_xclbin_calls_pass_opcode_instructions_and_bytes_first(device, xrt):
    session = loaded(device, single_design_artifact(ADD), "run")
    session.run("run")
    made = [call for call in xrt.calls if call not in ("bo", "write", "sync to")]
    assert made[1:5] == ["xclbin", "register_xclbin", "hw_context", "kernel(MLIR_AIE)"]
    assert [call for call in made if call.startswith("set_arg")] == [f"set_arg({i})" for i in range(6)]


def test_host_writes_of_odd_ranges_keep_what_the_device_wrote_beside_them(device):
    session = loaded(device, wrapped(ADD), "entry")
    session.run("entry")
    session.write("c", 6, np.full(1, 7, BF16))  # inside a cache line of the output
    session.write("a", 0, np.full(WIDTH, 5, BF16))
    got = session.read("c", 0, (WIDTH,), BF16).astype(np.float32)
    assert got[3] == 7
    assert (np.delete(got, 3) == 3).all()
    session.run("entry")
    assert (session.read("c", 0, (WIDTH,), BF16).astype(np.float32) == 7).all()


def test_fresh_buffers_are_poison(device):
    session = loaded(device, wrapped(ADD), "entry")
    assert (session.read("c", 0, (WIDTH,), np.uint16) == 0x7FA5).all()


@pytest.mark.parametrize("fault, state", [("timeout", "TIMEOUT"), ("silent timeout", "TIMEOUT"), ("error", "ERROR")])
def test_after_anything_but_completed_no_byte_is_given_out(device, xrt, fault, state):
    session = loaded(device, wrapped(ADD), "entry")
    xrt.fault = fault
    with pytest.raises(XrtFault, match=state) as caught:
        session.run("entry")
    assert caught.value.state == state
    xrt.fault = ""
    for attempt in (lambda: session.read("c", 0, (4,), BF16), lambda: session.run("entry")):
        with pytest.raises(DeviceFault, match="open the artifact again"):
            attempt()
    assert list(session.log()) == []


def test_a_stale_second_dispatch_fails_the_kernel_gate(device, xrt):
    """Faults RT-02: results are right once. The kernel gate compares three dispatches with changing data."""
    honest, _ = exercise(ADD, device, seed=3)
    assert judge_kernel("add", honest, load_policy()).passed
    xrt.fault = "stale"
    stale, _ = exercise(ADD, device, seed=3)
    verdict = judge_kernel("add", stale, load_policy())
    assert not verdict.passed
    assert "stale" in {str(failure.name) for failure in verdict.failures}


def test_a_wrong_sequence_never_reaches_the_device(device, xrt):
    session = loaded(device, wrapped(ADD), "entry")
    before = list(xrt.calls)
    for attempt in (lambda: session.run("nope"), lambda: session.bind("nope", {})):
        with pytest.raises(DeviceFault, match=r"no sequence @nope.*entry"):
            attempt()
    assert xrt.calls == before


def test_a_buffer_too_small_for_its_argument_is_refused(device):
    session = loaded(device, wrapped(ADD), "entry")
    session.allocate("c", 2 * WIDTH - 64)
    with pytest.raises(DeviceFault, match="argument 2 takes 16384 bytes"):
        session.run("entry")
    with pytest.raises(DeviceFault, match="differs at"):
        session.bind("entry", {0: "a", 1: "b"})


def test_a_dispatch_beyond_its_limit_is_a_failure_not_a_slow_run(device, monkeypatch):
    session = loaded(device, wrapped(ADD), "entry")
    monkeypatch.setattr("npu.xrt.DISPATCH_SECONDS", 0.0)
    with pytest.raises(XrtFault, match="a hang"):
        session.run("entry")


def test_the_lock_refuses_a_second_process_and_is_shared_within_one(tmp_path):
    lock = DeviceLock(0, tmp_path)
    lock.acquire()
    lock.acquire()  # a second device object of this process does not dead-lock
    program = (
        "import sys; from pathlib import Path; from npu.xrt import DeviceLock\n"
        "try: DeviceLock(0, Path(sys.argv[1])).acquire(); print('taken')\n"
        "except Exception as error: print(error)"
    )

    def second() -> str:
        command = [sys.executable, "-c", program, str(tmp_path)]
        pack = Path(__file__).resolve().parents[2]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=pack).stdout

    assert "in use by process" in second()
    lock.release()
    assert "in use by process" in second()
    lock.release()
    assert second().strip() == "taken"


def test_contexts_are_a_budget(device):
    artifact = single_design_artifact(ADD)
    held = [device.open(artifact) for _ in range(CONTEXTS)]
    with pytest.raises(Refusal, match="hardware contexts"):
        device.open(artifact)
    held.pop().close()
    held.append(device.open(artifact))
    held.clear()  # sessions that nobody holds give their contexts back
    device.open(artifact)


def test_a_pyxrt_that_is_too_old_for_a_full_elf_is_named(device, xrt):
    def old(owner, uuid):
        raise TypeError("__init__(): incompatible constructor arguments")

    xrt.hw_context = old
    with pytest.raises(Refusal, match=r"cannot load a elf artifact.*2026-01-23"):
        device.open(wrapped(ADD))


def test_a_buffer_that_cannot_be_pinned_says_what_limits_it(device, xrt):
    session = device.open(wrapped(ADD))

    def full(owner, size):
        raise RuntimeError("mmap failed: Resource temporarily unavailable")

    xrt.ext.bo = full
    with pytest.raises(DeviceFault, match="ulimit -l"):
        session.allocate("a", 1 << 20)


def test_a_second_kernel_passes_its_gate_through_xrt(device):
    dispatches, _ = exercise(RmsNormDesign(64, 128, 96, 1e-5), device, seed=1)
    assert judge_kernel("rmsnorm", dispatches, load_policy()).passed


def test_without_pyxrt_and_tools_xrt_is_refused_with_all_names_and_never_becomes_the_twin(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("PEANO_INSTALL_DIR", raising=False)
    monkeypatch.setattr("npu.toolchain.sys.path", [])
    with pytest.raises(Refusal) as refused:
        worker.open_device("xrt", tmp_path)
    for name in ("pyxrt", "aiecc", "Peano"):
        assert name in str(refused.value)
