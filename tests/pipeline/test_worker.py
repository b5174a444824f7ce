# SPDX-License-Identifier: Apache-2.0
"""The worker: killed at any moment it goes on from the last recorded phase; of two, one works; a fault is a failed gate."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from judge import evidence
from judge.evidence import Entry, Kind
from kernels.rope import stage as rope
from npu.device import DeviceFault
from pipeline import worker
from pipeline.conduct import pending, run_phase
from pipeline.context import CACHE_VARIABLE
from pipeline.deployment import Deployment
from pipeline.verbs.deploy import standing
from refusal import Refusal
from tests.faults.deployed import SMALL, context
from tests.faults.plant import planted_source
from tests.twin_device import twin

CHOICES = replace(SMALL, score_bucket=None)
PATIENCE = 300  # seconds until a test gives up on a worker; nothing is measured


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setenv(CACHE_VARIABLE, str(twin().cache))
    return context(tmp_path / "deployments", CHOICES).deployment


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fail when it never holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the worker did not get there"
        time.sleep(0.02)


def log_of(deployment: Deployment) -> str:
    path = deployment.folder / "worker.log"
    return path.read_text() if path.exists() else ""


def gates(deployment: Deployment) -> list[str]:
    return [r.entry.subject for r in evidence.records(deployment.evidence) if r.entry.kind == Kind.GATE]


def recorded(deployment: Deployment, phase: int) -> None:
    """A record that a phase passed, as an earlier worker left it."""
    record(deployment, phase, True)


def record(deployment: Deployment, phase: int, passed: bool) -> None:
    body = {"passed": passed, "gates": {}, "data": {}}
    evidence.append(
        deployment.evidence,
        Entry(
            Kind.GATE, f"phase-{phase}", body, inputs=deployment.description.inputs, device="twin", tier="event+replay"
        ),
    )


# ---- killed and started again ----


@pytest.mark.slow
def test_a_worker_killed_in_mid_phase_goes_on_from_the_last_recorded_phase(deployment: Deployment) -> None:
    recorded(deployment, 0)
    worker.start(deployment, until=1)
    until(lambda: "phase 1: kernel 2 of" in log_of(deployment))
    os.kill(json.loads((deployment.folder / "worker.pid").read_text())["pid"], signal.SIGKILL)
    until(lambda: not worker.running(deployment))

    assert worker.result(deployment) is None  # no conclusion from a worker that was killed
    assert evidence.verify_chain(deployment.evidence).intact
    assert list(deployment.passed()) == [0]
    assert deployment.state().phases == {"1": "running"}  # whole, and no claim
    for path in deployment.folder.glob("*.json"):
        json.loads(path.read_text())

    begun = len(log_of(deployment))
    worker.start(deployment, until=1)
    until(lambda: not worker.running(deployment))
    assert worker.result(deployment) == 0, worker.crash_report(deployment)
    assert gates(deployment) == ["phase-0", "phase-1"]  # phase 0 was not run again
    assert "phase 0" not in log_of(deployment)[begun:]
    assert "phase 1: kernel 1 of" in log_of(deployment)[begun:]  # a phase is whole or not at all
    assert deployment.state().phases == {"1": "passed"}


def test_a_torn_last_line_of_the_evidence_is_no_record(deployment: Deployment) -> None:
    recorded(deployment, 0)
    whole = deployment.evidence.read_bytes()
    recorded(deployment, 1)
    deployment.evidence.write_bytes(deployment.evidence.read_bytes()[:-20])
    assert list(deployment.passed()) == [0]
    assert pending(deployment)[0] == 1
    recorded(deployment, 1)
    assert deployment.evidence.read_bytes().startswith(whole)
    assert list(deployment.passed()) == [0, 1]


# ---- one at a time ----


@pytest.mark.slow
def test_of_two_workers_started_at_once_one_works(deployment: Deployment) -> None:
    command = [sys.executable, "-m", "pipeline.worker", str(deployment.folder), "--until", "0"]
    environment = os.environ | {"PYTHONPATH": str(worker.PACK)}
    both = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [process.wait(PATIENCE) for process in both] == [0, 0]
    assert gates(deployment) == ["phase-0"]
    assert log_of(deployment).count("phase 0: oracle of the fixture") == 1


def test_a_second_start_leaves_the_running_worker_alone(deployment: Deployment) -> None:
    with worker.lock(deployment).acquire():
        assert worker.running(deployment)
        worker.start(deployment, until=0)
    assert not (deployment.folder / "worker.pid").exists()
    assert not worker.running(deployment)


# ---- faults ----


class BrokenDevice:
    """A device whose every dispatch ends in another state than completed."""

    name = "twin"

    def open(self, artifact: Any) -> BrokenSession:
        return BrokenSession()


class BrokenSession:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None

    def run(self, entry: str) -> None:
        raise DeviceFault(f"{entry}: ERT_CMD_STATE_TIMEOUT")


def test_a_dispatch_that_does_not_complete_fails_the_phase_and_nothing_takes_its_place(tmp_path: Path) -> None:
    ctx = context(tmp_path, CHOICES)
    ctx.device = BrokenDevice()
    recorded(ctx.deployment, 0)
    assert run_phase(ctx, 1) == 1
    last = list(evidence.records(ctx.deployment.evidence))[-1].entry
    assert last.subject == "phase-1"
    assert last.body["passed"] is False
    assert "ERT_CMD_STATE_TIMEOUT" in last.body["fault"]
    assert list(ctx.deployment.passed()) == [0]
    assert ctx.deployment.state().phases == {"1": "failed"}


def test_a_phase_before_its_predecessors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="phase 2 before phase 0"):
        run_phase(context(tmp_path, CHOICES), 2)


def test_a_failed_phase_is_pending_again_and_so_are_those_after_it(deployment: Deployment) -> None:
    for phase in (0, 1, 2):
        recorded(deployment, phase)
    record(deployment, 1, False)
    assert pending(deployment)[:2] == [1, 2]


@pytest.mark.slow
def test_a_planted_kernel_fails_its_phase_by_name_and_the_repaired_one_passes(tmp_path: Path) -> None:
    ctx, said = context(tmp_path / "deployments", CHOICES), []
    ctx.progress = said.append
    recorded(ctx.deployment, 0)
    edit = ("turned_high = aie::mac(turned_high", "turned_high = aie::msc(turned_high")
    with planted_source(rope, edit, folder=tmp_path):
        assert run_phase(ctx, 1) == 1
    body = list(evidence.records(ctx.deployment.evidence))[-1].entry.body
    failed = [name for name, gate in body["gates"].items() if not gate["passed"]]
    assert [name.split("_")[0] for name in failed] == ["rope"]
    assert f"phase 1: this design alone: scripts/run.py --design {failed[0]} --name {ctx.deployment.name}" in said
    assert body["data"]["diagnosis"]["next"] == ctx.deployment.state().next
    assert any(line.strip().endswith("other metrics within their limits") or "MISS" in line for line in said)
    assert not any(line.strip().startswith("ok ") for line in said), "what held is counted, not listed"
    assert list(ctx.deployment.passed()) == [0]
    assert run_phase(ctx, 1) == 0
    assert list(ctx.deployment.passed()) == [0, 1]


def test_a_worker_that_ended_and_that_nobody_has_waited_for_is_not_running(deployment: Deployment) -> None:
    """As in a container whose first process does not wait for orphans."""
    careless = (
        "import subprocess, time; child = subprocess.Popen(['true']); print(child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", careless], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        started = {"pid": pid, "time": "", "identity": worker.process_identity(pid)}
        (deployment.folder / "worker.pid").write_text(json.dumps(started))
        until(lambda: not worker.running(deployment))
        assert Path(f"/proc/{pid}/stat").exists()  # still there, as nobody has waited for it
        parent.kill()


def started_as(deployment: Deployment, **values: object) -> None:
    (deployment.folder / "worker.pid").write_text(json.dumps({"pid": os.getpid(), "time": ""} | values))


def test_a_process_that_was_started_as_worker_runs_before_it_takes_the_lock(deployment: Deployment) -> None:
    started_as(deployment, identity=worker.process_identity(os.getpid()))
    assert worker.running(deployment)


def test_the_number_of_a_killed_worker_that_another_process_got_is_no_worker(deployment: Deployment) -> None:
    boot, ticks = worker.process_identity(os.getpid()).split()
    for other in (f"{boot} {int(ticks) - 1}", f"{boot[::-1]} {ticks}", ""):
        started_as(deployment, identity=other)
        assert not worker.running(deployment), other
    started_as(deployment)  # as an older pack wrote it: a worker that still works holds the lock
    assert not worker.running(deployment)


def test_a_process_that_is_gone_has_no_identity() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
        assert worker.process_identity(process.pid) == ""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "x"), 2, "refused: x: No space left"),
        (Refusal("nothing"), 2, "refused: nothing"),
        (TypeError("unsupported"), 4, "fault of the pack: TypeError: unsupported"),
    ],
)
def test_a_worker_tells_what_was_refused_from_a_fault_of_the_pack(
    error: Exception, code: int, said: str, deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    with worker.ending(deployment):
        raise error
    assert worker.result(deployment) == code
    assert said in log_of(deployment)
    assert ("Traceback" in capsys.readouterr().err) == (code == 4)
    assert standing(deployment).code == code


def test_a_worker_on_a_full_disk_ends_without_a_result_and_says_why(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "worker.json")

    monkeypatch.setattr(worker, "write_json", full)
    with worker.ending(deployment):
        full()
    assert worker.result(deployment) is None
    assert "No space left" in capsys.readouterr().err
