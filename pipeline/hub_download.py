# SPDX-License-Identifier: Apache-2.0
"""Downloads a model from the Hub: one pinned commit, only the files that a deployment reads, resumed where it was stopped.

The Hub is asked what the revision is; what cannot be deployed, or does not fit the disk, is refused before a byte is
fetched. The download itself runs in a process of its own, so that no verb keeps its caller: the verb follows it for a
while and says how to go on. Files go to Hugging Face's cache; each large one is held against the Hub's SHA-256.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from pipeline.files import read_as, write_json, write_whole
from pipeline.model_source import HubId, Progress, refuse_other_formats
from reference.oracle.weights import INDEX, SINGLE, default_cache_dir, file_sha256
from refusal import Refusal

FOLLOW_SECONDS = 75  # a verb ends within 90 seconds
POLL_SECONDS = 0.5
REPORT_SECONDS = 5.0
SPARE_BYTES = 200 << 20  # beside the files themselves
_WANTED = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|vocab|provenance)\.json"
    r"|merges\.txt|chat_template\.(jinja|json)|LICENSE.*"
)
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
PACK = Path(__file__).resolve().parent.parent


class RemoteFile(msgspec.Struct, frozen=True):
    """A file of the repository. sha256 is "" for a small one that is not kept under LFS."""

    name: str
    size: int
    sha256: str = ""


class Plan(msgspec.Struct, frozen=True):
    """What is downloaded, and where to."""

    id: str
    revision: str
    commit: str
    root: str
    files: tuple[RemoteFile, ...]

    @property
    def folder(self) -> Path:
        return Path(self.root) / HubId(self.id).folder

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def ledger(self) -> Path:
        """Where the downloading process says how it stands."""
        return default_cache_dir() / "downloads" / f"{HubId(self.id).folder}-{self.commit[:12]}.json"


class Downloading(Exception):
    """The download goes on in the background; nothing is wrong."""

    def __init__(self, hub: HubId, done: int, total: int) -> None:
        self.hub = hub
        super().__init__(f"downloading {hub}: {done >> 20} of {total >> 20} MiB so far; it goes on in the background")


def fetch(hub: HubId, root: Path, progress: Progress, seconds: float = FOLLOW_SECONDS) -> str:
    """Download what is missing of a model; returns the commit.

    Raises:
        Refusal: gated, offline, not found, another format, too little disk, a file with another hash.
        Downloading: not finished within `seconds`.
    """
    plan = plan_of(hub, root)
    require_disk(plan)
    progress(f"{hub}: commit {plan.commit[:12]}, {len(plan.files)} files, {plan.total >> 20} MiB, into {plan.folder}")
    _start(plan)
    return _follow(plan, hub, progress, seconds)


def plan_of(hub: HubId, root: Path) -> Plan:
    """Ask the Hub for the revision's commit and files; nothing is downloaded."""
    library = _library(hub)
    try:
        info = library.HfApi().model_info(hub.id, revision=hub.revision, files_metadata=True, timeout=20)
    except Exception as error:
        raise explained(error, hub) from error
    names = {sibling.rfilename for sibling in info.siblings}
    refuse_other_formats(hub.id, (name for name in names if "/" not in name), None)
    files = tuple(
        RemoteFile(s.rfilename, s.size or 0, s.lfs.sha256 if s.lfs else "")
        for s in sorted(info.siblings, key=lambda s: s.rfilename)
        if is_wanted(s.rfilename, names)
    )
    if not {"config.json"} < {file.name for file in files} or not any(f.name.endswith(".safetensors") for f in files):
        raise Refusal(f"{hub} has no config.json with {SINGLE} or its shards", expected="a decoder LLM in safetensors",
                      where="MODEL", next_step="give another model")  # fmt: skip
    return Plan(hub.id, hub.revision, info.sha, str(root), files)


def is_wanted(name: str, names: set[str]) -> bool:
    """Whether a deployment reads this file: shards where there is an index, else the single file; no other copies."""
    if INDEX in names:
        return name == INDEX or bool(_SHARD.fullmatch(name) or _WANTED.fullmatch(name))
    return name == SINGLE or bool(_WANTED.fullmatch(name))


def require_disk(plan: Plan) -> None:
    """Refuse a download that the disk cannot hold; bytes that are there already count."""
    place = plan.folder
    while not place.exists():
        place = place.parent
    free, needed = shutil.disk_usage(place).free, max(0, plan.total - received(plan)) + SPARE_BYTES
    if free < needed:
        raise Refusal(
            f"{free >> 20} MiB of disk free", expected=f"{needed >> 20} MiB for {plan.id}", where=str(place),
            next_step="free some space, or set HF_HOME to a folder on a larger disk",
        )  # fmt: skip


def received(plan: Plan) -> int:
    """Bytes that are on disk: finished blobs and begun ones."""
    blobs = plan.folder / "blobs"
    found = 0
    for path in blobs.iterdir() if blobs.is_dir() else ():
        try:
            found += path.stat().st_blocks * 512 if path.suffix == ".incomplete" else path.stat().st_size
        except FileNotFoundError:
            continue  # finished and renamed while we looked
    return min(found, plan.total)


def explained(error: Exception, hub: HubId) -> Exception:
    """A refusal for what the Hub, or the network, said; any other error as it is."""
    from huggingface_hub import errors

    page, again = f"the page of {hub.id} on the Hub", f"scripts/deploy.py {hub}"
    where = f"the Hub, {hub}"
    if isinstance(error, errors.GatedRepoError):
        return Refusal(f"{hub.id} is gated", expected="an account that has accepted its licence", where=where,
                       next_step=f"accept the licence on {page}, then: hf auth login && {again}")  # fmt: skip
    if isinstance(error, errors.RevisionNotFoundError):
        return Refusal(f"{hub.id} has no revision {hub.revision!r}", expected="a branch, a tag or a commit", where=where,
                       next_step=f"scripts/deploy.py {hub.id}  # the revision main")  # fmt: skip
    if isinstance(error, errors.RepositoryNotFoundError):
        return Refusal(f"no model {hub.id!r}, or a private one", expected="ORGANISATION/NAME as the Hub spells it",
                       where=where, next_step=f"correct the name; for a private model: hf auth login && {again}")  # fmt: skip
    if isinstance(error, errors.HFValidationError):
        return Refusal(str(error), expected="ORGANISATION/NAME", where=where, next_step="correct the name")
    unreachable = isinstance(error, OSError) or type(error).__module__.split(".")[0] in ("httpx", "httpx2", "requests")
    if unreachable or isinstance(error, errors.HfHubHTTPError):
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return Refusal(
            f"the Hub cannot be reached ({first})", expected=f"network, or {hub.id} in the local cache", where=where,
            next_step=f"{again}  # when online; or copy the model directory here and: scripts/deploy.py DIRECTORY",
        )  # fmt: skip
    return error


def _library(hub: HubId) -> ModuleType:
    try:
        import huggingface_hub
    except ImportError as error:
        raise Refusal(
            "huggingface_hub is not installed", expected="it, for a download", where=f"hub id {hub}",
            next_step=f"{sys.executable} -m pip install huggingface_hub && scripts/deploy.py {hub}",
        ) from error  # fmt: skip
    return huggingface_hub


def _start(plan: Plan) -> None:
    """Start the downloading process unless one is at it."""
    plan.ledger.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(plan.ledger.with_suffix(".lock"))
    try:
        with lock.acquire(timeout=0):
            write_json(plan.ledger, {"plan": msgspec.to_builtins(plan), "state": "begun", "began": time.time()})
    except Timeout:
        return
    environment = os.environ | {"PYTHONPATH": str(PACK), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    with plan.ledger.with_suffix(".err").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.hub_download", str(plan.ledger)],
            stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True, env=environment,
        )  # fmt: skip
    _CHILDREN.append(process)


_CHILDREN: list[subprocess.Popen[bytes]] = []  # polled, so that an ended child is seen as ended


def _follow(plan: Plan, hub: HubId, progress: Progress, seconds: float) -> str:
    began = reported = time.monotonic()
    start_bytes = received(plan)
    while time.monotonic() - began < seconds:
        ledger = _read_ledger(plan.ledger)
        if ledger.get("state") == "done":
            progress(f"{hub}: whole, {plan.total >> 20} MiB, commit {plan.commit[:12]}")
            return plan.commit
        if ledger.get("state") == "failed":
            raise Refusal(**ledger["refusal"])
        if any(child.poll() is not None and _read_ledger(plan.ledger).get("state") == "begun" for child in _CHILDREN):
            _CHILDREN.clear()
            said = plan.ledger.with_suffix(".err").read_text(errors="replace").strip()[-500:]
            raise Refusal(f"the download of {hub} ended early{': ' + said if said else ''}", expected="it to finish",
                          where=str(plan.folder), next_step=f"scripts/deploy.py {hub}  # goes on where it stopped")  # fmt: skip
        now = time.monotonic()
        if now - reported >= REPORT_SECONDS:
            done, reported = received(plan), now
            rate = (done - start_bytes) / (now - began)
            left = f", about {(plan.total - done) / rate:.0f} s left" if rate > 0 else ""
            progress(f"{hub}: {done >> 20} of {plan.total >> 20} MiB{left}")
        time.sleep(POLL_SECONDS)
    raise Downloading(hub, received(plan), plan.total)


def _read_ledger(path: Path) -> dict[str, Any]:
    return read_as(path, dict) or {}


def download(plan: Plan) -> None:
    """Fetch every file of the plan; runs in the downloading process.

    Raises:
        Refusal: as `fetch`, and a file whose SHA-256 is not the Hub's.
    """
    hub = HubId(plan.id, plan.revision)
    library = _library(hub)
    for file in sorted(plan.files, key=lambda file: file.size):
        try:
            path = Path(library.hf_hub_download(plan.id, file.name, revision=plan.commit, cache_dir=plan.root))
        except Exception as error:
            raise explained(error, hub) from error
        found = file_sha256(path) if file.sha256 else ""
        if found != file.sha256:
            path.resolve().unlink()
            path.unlink(missing_ok=True)
            raise Refusal(f"{file.name} has SHA-256 {found}", expected=file.sha256, where=str(plan.folder),
                          next_step=f"scripts/deploy.py {hub}  # fetches this file again")  # fmt: skip
    # Only now does the revision point at the commit: a stopped download is never taken for a whole one.
    if plan.revision != plan.commit:
        write_whole(plan.folder / "refs" / plan.revision, plan.commit)


def main(arguments: list[str]) -> int:
    """The downloading process: LEDGER."""
    ledger = Path(arguments[0])
    try:
        lock = FileLock(ledger.with_suffix(".lock")).acquire(timeout=10)
    except Timeout:
        return 0  # another process is at it
    with lock:
        content = json.loads(ledger.read_text())
        try:
            download(msgspec.convert(content["plan"], Plan))
        except Refusal as refusal:
            said = {"found": refusal.found, "expected": refusal.expected, "where": refusal.where}
            write_json(ledger, content | {"state": "failed", "refusal": said | {"next_step": refusal.next_step}})
            return 2
        write_json(ledger, content | {"state": "done"})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
