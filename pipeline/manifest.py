# SPDX-License-Identifier: Apache-2.0
"""The shipped manifest: which files the pack is, each with its SHA-256. Standard library only.

    python -m pipeline.manifest --write     write manifest.json from the files that are here (also: make manifest)
    python -m pipeline.manifest --check     name every changed, extra or missing file; exit 1 if there is one
    python -m pipeline.manifest --check --staged    the same for what a git commit is about to hold

The rule: every regular file of the pack ships, except what stands in LEFT_OUT (tests, files of development, the project's
own living documents, what is generated) and names that git ignores as products. Links never ship and are never followed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from refusal import Refusal

NAME = "manifest.json"
PACK = Path(__file__).resolve().parent.parent
# Top-level names that do not ship. Of the hidden ones only the plugin's manifests do.
LEFT_OUT = frozenset(
    {
        NAME,
        "tests",
        "models",
        "deployments",
        "plan.md",
        "issues.md",
        "perf_opt_traj.md",
        "node_modules",
        "build",
        "dist",
    }
)
SHIPPED_HIDDEN = frozenset({".claude-plugin"})
PRODUCTS = ("__pycache__", "*.pyc", "*.tmp", "*.so", "*.o", "*.safetensors", "*.gguf", "*.whl", "*.egg-info", ".*")


@dataclass(frozen=True)
class Differences:
    """How files differ from a manifest: paths, sorted."""

    changed: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.extra or self.missing)

    def lines(self) -> list[str]:
        """One line a file: what is wrong with it."""
        return [f"{kind}: {path}" for kind in ("changed", "extra", "missing") for path in getattr(self, kind)]


def ships(path: str) -> bool:
    """Whether a file at this path, relative to the pack with `/` between its parts, belongs to the shipped pack."""
    first, *rest = PurePosixPath(path).parts
    if first in LEFT_OUT or (first.startswith(".") and first not in SHIPPED_HIDDEN):
        return False
    return not any(fnmatch(part, product) for part in (first, *rest)[first in SHIPPED_HIDDEN :] for product in PRODUCTS)


def files_of(pack: Path) -> dict[str, str]:
    """Path -> SHA-256 of every file under `pack` that ships. Links are passed by."""
    found: dict[str, str] = {}
    for folder, names, files in os.walk(pack, followlinks=False):
        inside = Path(folder).relative_to(pack)
        # Folders that cannot ship are not entered; os.walk lists links to folders among names and does not follow them.
        names[:] = sorted(name for name in names if ships((inside / name / "file").as_posix()))
        for name in sorted(files):
            path = (inside / name).as_posix()
            if ships(path) and not Path(folder, name).is_symlink():
                found[path] = sha256_of(Path(folder, name))
    return dict(sorted(found.items()))


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(files: Mapping[str, str]) -> str:
    """The manifest's hash: SHA-256 over its canonical JSON (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(dict(files), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def pack_hash(pack: Path) -> str:
    """The hash of the pack's files as they are: that of its manifest, if nothing was changed since it was written."""
    return digest(files_of(pack))


def read(pack: Path) -> dict[str, str]:
    """The manifest of a pack.

    Raises:
        Refusal: there is none, or it is not a mapping of paths inside the pack to SHA-256.
    """
    path = pack / NAME
    try:
        files = json.loads(path.read_text())["files"]
    except FileNotFoundError as error:
        raise Refusal(
            "no manifest.json", expected="the shipped manifest", where=str(pack), next_step="make manifest"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise Refusal(f"not a manifest: {error}", expected='{"files": {path: sha256}}', where=str(path)) from error
    for name, value in files.items():
        outside = PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts
        if outside or not ships(name) or len(value) != 64:
            raise Refusal(
                f"entry {name!r}: {value!r}", expected="a shipped path inside the pack and its SHA-256", where=str(path)
            )
    return dict(files)


def write(pack: Path) -> int:
    """Write manifest.json from the files that are here; returns how many there are."""
    files = files_of(pack)
    partial = pack / f".{NAME}.partial"
    partial.write_text(json.dumps({"files": files}, indent=1, sort_keys=True) + "\n")
    partial.replace(pack / NAME)
    return len(files)


def compare(manifest: Mapping[str, str], there: Mapping[str, str]) -> Differences:
    """Hold files against a manifest."""
    changed = sorted(path for path in manifest.keys() & there.keys() if manifest[path] != there[path])
    return Differences(
        tuple(changed), tuple(sorted(there.keys() - manifest.keys())), tuple(sorted(manifest.keys() - there.keys()))
    )


def check(pack: Path) -> Differences:
    """Hold the files of a pack against its own manifest."""
    return compare(read(pack), files_of(pack))


def copy_pack(pack: Path, target: Path) -> str:
    """Copy the pack by its manifest, file by file; returns the manifest's hash.

    Nothing else is copied and no link is followed, neither a linked file nor a file behind a linked folder.

    Raises:
        Refusal: a file that is missing, is a link, or has another hash than the manifest says; the first one is named.
    """
    files = read(pack)
    for name, wanted in files.items():
        data = _read_unlinked(pack, name)
        found = hashlib.sha256(data).hexdigest()
        if found != wanted:
            raise Refusal(f"changed: {name} has SHA-256 {found[:12]}", expected=f"{wanted[:12]}, as its manifest says",
                          where=str(pack), next_step="restore the file, or install the pack again")  # fmt: skip
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o755 if os.access(pack / name, os.X_OK) else 0o644)
    (target / NAME).write_text(json.dumps({"files": files}, indent=1, sort_keys=True) + "\n")
    return digest(files)


def _read_unlinked(pack: Path, name: str) -> bytes:
    """The bytes of a file none of whose parts, from the pack down, is a link."""
    path = pack
    for part in PurePosixPath(name).parts:
        path /= part
        if path.is_symlink():
            raise Refusal(
                f"link: {name} ({path.relative_to(pack)} is a link)", expected="a regular file", where=str(pack)
            )
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise Refusal(f"missing: {name}", expected="every file of the manifest", where=str(pack),
                      next_step="restore the file, or install the pack again") from error  # fmt: skip


def staged(pack: Path) -> dict[str, str]:
    """Path -> SHA-256 of what the next git commit holds and ships. Links are left out, as everywhere."""
    listing = _git(pack, "ls-files", "--stage", "-z").decode().split("\0")
    rows = [entry.split("\t", 1) for entry in listing if entry]
    wanted = [(meta.split()[1], path) for meta, path in rows if ships(path) and not meta.startswith("120000")]
    return {path: hashlib.sha256(blob).hexdigest() for path, blob in _blobs(pack, wanted)}


def staged_manifest(pack: Path) -> dict[str, str]:
    """The manifest as the next git commit holds it; empty where it holds none."""
    if not _git(pack, "ls-files", "--", NAME).strip():
        return {}
    return json.loads(_git(pack, "show", f":{NAME}"))["files"]


def _blobs(pack: Path, wanted: list[tuple[str, str]]) -> Iterable[tuple[str, bytes]]:
    answer = _git(pack, "cat-file", "--batch", given="".join(f"{oid}\n" for oid, _ in wanted).encode())
    at = 0
    for _, path in wanted:
        header = answer[at : answer.index(b"\n", at)]
        size = int(header.split()[2])
        start = at + len(header) + 1
        yield path, answer[start : start + size]
        at = start + size + 1


def _git(pack: Path, *arguments: str, given: bytes = b"") -> bytes:
    done = subprocess.run(["git", *arguments], cwd=pack, input=given, capture_output=True, check=False)
    if done.returncode:
        raise Refusal(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}", where=str(pack))
    return done.stdout


def main(arguments: list[str]) -> int:
    """Command line: --write | --check [--staged], [--pack FOLDER]."""
    p = argparse.ArgumentParser(prog="python -m pipeline.manifest", description=__doc__.split("\n")[0])
    p.add_argument("--write", action="store_true")
    p.add_argument("--check", action="store_true")
    p.add_argument("--staged", action="store_true", help="judge what git is about to commit instead of the files here")
    p.add_argument("--pack", type=Path, default=PACK)
    args = p.parse_args(arguments)
    try:
        if args.write:
            print(f"{NAME}: {write(args.pack)} files, hash {digest(read(args.pack))[:12]}")
        if not args.check:
            return 0
        found = compare(staged_manifest(args.pack), staged(args.pack)) if args.staged else check(args.pack)
    except Refusal as refusal:
        print(f"refused: {refusal}", file=sys.stderr)
        return 2
    for line in found.lines():
        print(line)
    print("next: make manifest" if found else f"{NAME} agrees with the files")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
