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
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from npu.device import Device
from pipeline.conduct import conduct, run_phase
from pipeline.context import PhaseContext, cache_directory
from pipeline.deployment import Deployment, now
from pipeline.faults import FAULT, denied
from pipeline.files import read_as, write_json
from refusal import Refusal

POLL_SECONDS = 0.2
PACK = Path(__file__).resolve().parent.parent
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Started:
    """worker.pid: the process that was started last. identity: see `process_identity`; "" in a file of an older pack."""

    pid: int
    time: str = ""
    identity: str = ""


@dataclass(frozen=True)
class Ended:
    """worker.json: the exit code of the worker that ended last, and what it was refused, "" for nothing."""

    code: int
    time: str = ""
    refused: str = ""


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
    started = Started(process.pid, now(), process_identity(process.pid))
    write_json(deployment.folder / "worker.pid", asdict(started))


def running(deployment: Deployment) -> bool:
    """Whether a worker holds the deployment's lock, or has just been started."""
    try:
        with lock(deployment).acquire(timeout=0):
            pass
    except Timeout:
        return True
    started = read_as(deployment.folder / "worker.pid", Started)
    return started is not None and result(deployment) is None and _alive(started)


def result(deployment: Deployment) -> int | None:
    """The exit code of the last worker, None while there is none."""
    found = read_as(deployment.folder / "worker.json", Ended)
    return None if found is None else found.code


def refused(deployment: Deployment) -> str:
    """What the last worker was refused, "" for nothing."""
    found = read_as(deployment.folder / "worker.json", Ended)
    return "" if found is None else found.refused


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
    raise Refusal(f"device {name!r}", expected="twin or xrt", where="--device", next_step="add --device twin")


def lock(deployment: Deployment) -> FileLock:
    """The lock that a worker holds for as long as it works on a deployment."""
    return FileLock(deployment.folder / "worker.lock")


@dataclass
class Ending:
    """How a worker ends: its exit code, 2 until it is known, and what it was refused."""

    code: int = 2
    refused: str = ""


@contextlib.contextmanager
def ending(deployment: Deployment) -> Iterator[Ending]:
    """Write worker.json last, whatever happens inside; what is refused goes into the log, and so does a fault of the pack.

    On a disk that takes no file nothing can be written down: then the error stream alone says so.
    """
    end = Ending()
    try:
        yield end
    except Exception as error:
        refusal = error if isinstance(error, Refusal) else denied(error)
        end.code = FAULT if refusal is None else 2
        end.refused = "" if refusal is None else str(refusal)
        said = f"fault of the pack: {type(error).__name__}: {error}" if refusal is None else f"refused: {refusal}"
        deployment.log(said)
        print(said if refusal is not None else traceback.format_exc(), file=sys.stderr, flush=True)
    finally:
        with contextlib.suppress(OSError):
            record_end(deployment, end.code, end.refused)


def record_end(deployment: Deployment, code: int, refused: str = "") -> None:
    """Say that the work has ended, and how: the last file that is written."""
    write_json(deployment.folder / "worker.json", asdict(Ended(code, now(), refused)))


def process_identity(pid: int) -> str:
    """What tells a process from every other that had its number or will have it; "" where there is none.

    The boot's id and the ticks since boot at which the process started (field 22 of /proc/PID/stat, see proc(5)).
    """
    found = _stat(pid)
    return "" if not found else f"{_BOOT.read_text().strip()} {found[19]}"


def _alive(started: Started) -> bool:
    """Whether that process still runs: a number alone may be another's by now."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(started.pid, os.WNOHANG)
    found = _stat(started.pid)
    # Z, X: one that ended and that nobody has waited for; the first process of a container often does not.
    return bool(found) and found[0] not in "ZX" and process_identity(started.pid) == started.identity


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, from the state (field 3) on; none where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


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
