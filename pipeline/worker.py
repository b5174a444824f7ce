# SPDX-License-Identifier: Apache-2.0
"""The detached worker: long work outlives the verb that began it, and the session that called the verb.

A verb starts at most one worker a deployment (file lock), follows its log for a while, and returns. The worker writes
progress to worker.log and its end to worker.json, last and whole: no such file, or one without `code`, means not finished.
Kill it at any moment: the next verb starts another, which goes on from the last recorded phase.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from npu.device import Device
from pipeline.conduct import conduct, run_phase
from pipeline.context import PhaseContext, cache_directory
from pipeline.deployment import Deployment, now
from pipeline.files import read_json, write_json
from refusal import Refusal

POLL_SECONDS = 0.2
PACK = Path(__file__).resolve().parent.parent


def start(deployment: Deployment, *, until: int | None = None, again: int | None = None) -> None:
    """Start a worker unless one is running. again: judge this one phase again instead of going on."""
    if running(deployment):
        return
    command = [sys.executable, "-m", "pipeline.worker", str(deployment.folder.absolute())]
    command += [] if until is None else ["--until", str(until)]
    command += [] if again is None else ["--again", str(again)]
    launch(deployment, command, os.environ | {"PYTHONPATH": str(PACK), "PYTHONUNBUFFERED": "1"})


def launch(deployment: Deployment, command: list[str], environment: Mapping[str, str]) -> None:
    """Start a detached process as the deployment's worker; it takes the lock itself and writes worker.json at its end."""
    (deployment.folder / "worker.json").unlink(missing_ok=True)
    with (deployment.folder / "worker.err").open("wb") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True, env=environment
        )
    write_json(deployment.folder / "worker.pid", {"pid": process.pid, "time": now()})


def running(deployment: Deployment) -> bool:
    """Whether a worker holds the deployment's lock, or has just been started."""
    try:
        with lock(deployment).acquire(timeout=0):
            pass
    except Timeout:
        return True
    started = read_json(deployment.folder / "worker.pid")
    return bool(started) and result(deployment) is None and _alive(started["pid"])


def result(deployment: Deployment) -> int | None:
    """The exit code of the last worker, None while there is none."""
    found = read_json(deployment.folder / "worker.json")
    return None if found is None else found["code"]


def follow(deployment: Deployment, seconds: float, position: int = 0) -> Iterator[str]:
    """Yield the log's lines from byte `position` as they come, until the worker ends or the time is up."""
    log, deadline = deployment.folder / "worker.log", time.monotonic() + seconds
    while True:
        ended = not running(deployment)
        if log.exists():
            with log.open("rb") as stream:
                stream.seek(position)
                for raw in stream.read().splitlines(keepends=True):
                    if raw.endswith(b"\n"):
                        position += len(raw)
                        yield raw.decode(errors="replace").rstrip("\n").split(" ", 1)[-1]
        if ended or time.monotonic() >= deadline:
            return
        time.sleep(POLL_SECONDS)


def log_size(deployment: Deployment) -> int:
    """Bytes of the log so far, to follow only what comes."""
    log = deployment.folder / "worker.log"
    return log.stat().st_size if log.exists() else 0


def crash_report(deployment: Deployment) -> str:
    """What a worker that ended without a result left on its error stream."""
    errors = deployment.folder / "worker.err"
    text = errors.read_text(errors="replace").strip() if errors.exists() else ""
    return text[-2000:]


def open_device(name: str, cache: Path) -> Device:
    """The device called `name`; it never becomes another one.

    Raises:
        Refusal: an NPU that is not there.
    """
    if name == "twin":
        from npu.twin.device import TwinDevice

        return TwinDevice(cache)
    if name == "xrt":
        from npu.xrt import XrtDevice

        return XrtDevice(cache)
    raise Refusal(f"device {name!r}", expected="twin or xrt", where="--device", next_step="--device twin")


def lock(deployment: Deployment) -> FileLock:
    """The lock that a worker holds for as long as it works on a deployment."""
    return FileLock(deployment.folder / "worker.lock")


@dataclass
class Ending:
    """How a worker ends: its exit code, 2 until it is known."""

    code: int = 2


@contextlib.contextmanager
def ending(deployment: Deployment) -> Iterator[Ending]:
    """Write worker.json last, whatever happens inside; a refusal goes into the log."""
    end = Ending()
    try:
        yield end
    except Refusal as refusal:
        deployment.log(f"refused: {refusal}")
    finally:
        record_end(deployment, end.code)


def record_end(deployment: Deployment, code: int) -> None:
    """Say that the work has ended, and how: the last file that is written."""
    write_json(deployment.folder / "worker.json", {"code": code, "time": now()})


def _alive(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return (
        state not in "ZX"
    )  # one that ended and that nobody has waited for: the first process of a container often does not


def main(arguments: list[str]) -> int:
    """The worker process: FOLDER [--until PHASE | --again PHASE]."""
    folder, *options = arguments
    chosen = dict(zip(options[::2], (int(value) for value in options[1::2]), strict=True))
    deployment = Deployment(Path(folder))
    os.chdir(deployment.folder.parent.parent)
    with lock(deployment).acquire(timeout=30), ending(deployment) as end:
        end.code = _work(deployment, chosen)
    return end.code


def _work(deployment: Deployment, chosen: dict[str, int]) -> int:
    cache = cache_directory()
    device = open_device(deployment.description.device, cache)
    # A phase that is judged again runs everything again.
    ctx = PhaseContext(deployment, device, cache, deployment.log, reuse="--again" not in chosen)
    if "--again" in chosen:
        return run_phase(ctx, chosen["--again"])
    return conduct(ctx, chosen.get("--until"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
