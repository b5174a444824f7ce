#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a git commit of this repository, or of a project with deployments, must not hold. Run by git before each commit.

    make hooks                                       installs it as a plain hook
    pre-commit install                               installs it through the pre-commit tool (.pre-commit-config.yaml)
    python3 hooks/pre_commit.py [CHECK ...]          runs all checks, or the named ones, on what is staged

    artefacts   weights, compiled kernels or a deployment's work in the commit
    evidence    a chain of records that is broken, staged or in deployments/ here
    documents   a deployment's documents that are not what its evidence gives
    manifest    manifest.json is not what the commit ships
    lint        ruff on the staged Python files

Exit 0: nothing was found. Exit 1: each finding is one line, with the command that mends it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

PACK = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PACK))

from scripts.environment import enter

enter()

from judge.evidence import verify_chain
from pipeline import documents, manifest
from pipeline.deployment import Deployment
from refusal import Refusal

LARGEST_BYTES = 5 << 20
ARTEFACTS = ("*.safetensors", "*.gguf", "*.bin", "*.pt", "*.pth", "*.onnx", "*.xclbin", "*.elf", "*.so", "*.o", "*.npz")
WORK = ("deployments", "models")


def staged(project: Path) -> list[str]:
    """Paths that the commit adds or changes."""
    listed = git(project, "diff", "--cached", "--name-only", "--diff-filter=ACMR", "-z").decode()
    return [path for path in listed.split("\0") if path]


def git(project: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=project, capture_output=True, check=True).stdout


def artefacts(project: Path) -> list[str]:
    """Weights, compiled things, large files and what a deployment wrote."""
    found = []
    for path in staged(project):
        size = int(git(project, "cat-file", "-s", f":{path}"))
        if path.split("/")[0] in WORK:
            found.append(f"{path}: what a deployment wrote does not belong into a commit; git rm --cached {path}")
        elif any(fnmatch(path.rsplit("/", 1)[-1], pattern) for pattern in ARTEFACTS):
            found.append(f"{path}: weights or compiled work do not belong into a commit; git rm --cached {path}")
        elif size > LARGEST_BYTES:
            found.append(f"{path}: {size} bytes, at most {LARGEST_BYTES}; git rm --cached {path}")
    return found


def evidence(project: Path) -> list[str]:
    """Every chain here, and every one that is staged, as it is staged."""
    found = []
    for path in sorted(project.glob("deployments/*/evidence.jsonl")):
        found += broken(path, str(path.relative_to(project)))
    for name in staged(project):
        if name.endswith("evidence.jsonl"):
            with tempfile.NamedTemporaryFile(suffix=".jsonl") as copy:
                copy.write(git(project, "show", f":{name}"))
                copy.flush()
                found += broken(Path(copy.name), f"{name} (staged)")
    return found


def broken(path: Path, name: str) -> list[str]:
    """The first broken record of a chain."""
    state = verify_chain(path)
    if state.intact:
        return []
    return [f"{name}: record {state.broken} (line {state.line}): {state.problem}; restore it from version control"]


def stale_documents(project: Path) -> list[str]:
    """Generated parts that no longer follow from the evidence; chains that are broken are another check's matter."""
    found = []
    for path in sorted(project.glob("deployments/*/evidence.jsonl")):
        if not verify_chain(path).intact:
            continue
        try:
            names = documents.stale(Deployment(path.parent))
        except Refusal as refusal:
            found.append(f"{path.parent.name}: {refusal}")
            continue
        mend = f"python -m pipeline.documents {path.parent}"
        found += [f"{path.parent.name}/{name}: not what the evidence gives; {mend}" for name in names]
    return found


def stale_manifest(project: Path) -> list[str]:
    """manifest.json as staged against the files as staged; only in the pack's own repository."""
    if not (project / "judge" / "policy.toml").exists() or not manifest.staged(project):
        return []
    differing = manifest.compare(manifest.staged_manifest(project), manifest.staged(project))
    return [f"manifest.json, {line}; make manifest && git add manifest.json" for line in differing.lines()]


def lint(project: Path) -> list[str]:
    """ruff's findings in the staged Python files."""
    files = [path for path in staged(project) if path.endswith(".py") and (project / path).exists()]
    if not files:
        return []
    found = []
    for arguments, mend in (
        (["check", "--output-format", "concise"], "ruff check --fix"),
        (["format", "--check"], "ruff format"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, *files], cwd=project, capture_output=True, text=True, check=False
        )
        if done.returncode:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if ".py" in line or "ruff" in line]
            found += [f"{line}; {mend}" for line in lines or ["ruff failed"]]
    return found


CHECKS: dict[str, Callable[[Path], list[str]]] = {
    "artefacts": artefacts, "evidence": evidence, "documents": stale_documents, "manifest": stale_manifest, "lint": lint,
}  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run the named checks, or all, on the repository that the working directory is in."""
    unknown = [name for name in arguments if name not in CHECKS]
    if unknown:
        print(f"refused: check {unknown[0]!r}, expected {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    project = Path(
        subprocess.run(
            ["git", "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    found = [f"{name}: {line}" for name in arguments or CHECKS for line in CHECKS[name](project)]
    for line in found:
        print(line, file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
