# SPDX-License-Identifier: Apache-2.0
"""From a model argument to a directory: a directory, or a hub id in the local Hugging Face cache, or a download.

    ~/my models/llama                a directory: relative, with `~`, with spaces, behind links
    org/name, org/name@revision      a hub id; the revision is a branch, a tag or a commit (default: main)
    hf://org/name                    the same, where a directory of that spelling could be meant

The cache's layout is Hugging Face's own (huggingface_hub, guide "Understand caching"): models--org--name/ holds
refs/<revision> with a commit, snapshots/<commit>/<file> with links into blobs/. It is read with the standard library;
only a download needs huggingface_hub. The commit is pinned: it is part of the deployment's description.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from reference.oracle.weights import INDEX, SINGLE
from refusal import Refusal

DEFAULT_REVISION = "main"
_HUB_ID = re.compile(r"(?P<prefix>hf://)?(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SNAPSHOT = re.compile(r"models--(?P<org>.+?)--(?P<name>.+)")
# First parts of the Hub's own pages: no organisation can have these names, so that they begin a path.
NO_ORGANISATION = ("models", "datasets", "spaces", "docs")
EXPECTED = "a Hugging Face model directory (config.json and *.safetensors), or a hub id such as Qwen/Qwen3-0.6B"
Progress = Callable[[str], None]


@dataclass(frozen=True)
class HubId:
    """A repository of the Hub and a revision of it."""

    id: str
    revision: str = DEFAULT_REVISION

    @property
    def folder(self) -> str:
        """Its folder's name in the cache."""
        return "models--" + self.id.replace("/", "--")

    def __str__(self) -> str:
        return self.id if self.revision == DEFAULT_REVISION else f"{self.id}@{self.revision}"


@dataclass(frozen=True)
class ModelSource:
    """Where a model is. hub_id and commit are "" for a directory that is no snapshot of the cache."""

    directory: Path
    name: str
    hub_id: str = ""
    commit: str = ""


def resolve(argument: str, *, download: bool = True, progress: Progress = print) -> ModelSource:
    """The model that an argument names, as a directory that holds safetensors and a config.

    Args:
        download: fetch a hub id that the local cache lacks; False refuses it and says how to fetch.

    Raises:
        Refusal: nothing there, another format, gated, offline, not found, too little disk.
        pipeline.hub_download.Downloading: the download goes on in the background.
    """
    if not argument.strip():
        raise Refusal(
            "an empty MODEL", expected=EXPECTED, where="MODEL", next_step="give a model directory or a hub id"
        )
    path, hub = Path(argument).expanduser(), parse_hub_id(argument)
    if path.is_dir():
        source = _of_directory(path)
    elif path.is_file():
        raise _not_a_directory(argument, path)
    elif hub is None or (path.parent.is_dir() and not argument.startswith("hf://")):
        raise _no_directory(argument, path, hub)
    else:
        source = cached(hub)
        if source is None:
            try:
                source = _fetch(hub, download, progress)
            except Refusal as refusal:
                raise _neither(argument, refusal) from refusal
    refuse_other_formats(source.directory.name, {entry.name for entry in source.directory.iterdir()}, source.directory)
    return source


def parse_hub_id(argument: str) -> HubId | None:
    """The hub id that an argument spells, or None."""
    found = _HUB_ID.fullmatch(argument)
    if found is None or ".." in argument or (not found["prefix"] and found["id"].split("/")[0] in NO_ORGANISATION):
        return None
    return HubId(found["id"], found["revision"] or DEFAULT_REVISION)


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """The Hub's cache folder, by Hugging Face's own rules (huggingface_hub, "Environment variables")."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(variable):
            return Path(environment[variable]).expanduser()
    if environment.get("HF_HOME"):
        return Path(environment["HF_HOME"]).expanduser() / "hub"
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home()) / ".cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def cached(hub: HubId, root: Path | None = None) -> ModelSource | None:
    """A whole snapshot in the local cache, or None. A snapshot whose download was stopped is not whole."""
    folder = (root or cache_root()) / hub.folder
    commit = commit_of(folder, hub.revision)
    snapshot = folder / "snapshots" / commit
    if not commit or not snapshot.is_dir():
        return None
    found = {entry.name for entry in snapshot.iterdir()}
    # A repository of another format is whole in its own way, and is refused for its format, not fetched again.
    if absent_files(snapshot) and not _format_of(found):
        return None
    return ModelSource(snapshot.resolve(), hub.id.split("/")[1], hub.id, commit)


def commit_of(folder: Path, revision: str) -> str:
    """The commit of a revision in a repository's cache folder; "" where the cache does not know it."""
    if _COMMIT.fullmatch(revision):
        return revision
    reference = folder / "refs" / revision
    return reference.read_text().strip() if reference.is_file() else ""


def absent_files(directory: Path) -> list[str]:
    """What a model directory lacks: its config, or weight files, also behind links that lead nowhere."""
    absent = [] if (directory / "config.json").is_file() else ["config.json"]
    index = directory / INDEX
    if not index.is_file():
        return absent if (directory / SINGLE).is_file() else [*absent, SINGLE]
    try:
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError):
        return absent  # the weights' own check says what is wrong with the index
    return absent + [name for name in shards if not (directory / name).is_file()]


def refuse_other_formats(label: str, names: Iterable[str], directory: Path | None) -> None:
    """Refuse a LoRA adapter, and weights in another format only, with the command that converts them.

    Args:
        label: how the message calls the model. names: file names. directory: where they are, None for the Hub.
    """
    names = set(names)
    kind = _format_of(names)
    place = directory if directory is not None else label
    if kind == "adapter":
        raise Refusal(f"{label} is a LoRA adapter", expected="a whole model", where="MODEL",
                      next_step=_convert("peft", "AutoPeftModelForCausalLM", place, "-merged", ".merge_and_unload()"))  # fmt: skip
    if kind == "gguf":
        file = sorted(name for name in names if name.endswith(".gguf"))[0]
        raise Refusal(f"{label} holds GGUF weights only", expected="*.safetensors", where="MODEL",
                      next_step=_convert_gguf(place, file))  # fmt: skip
    if kind == "bin":
        raise Refusal(f"{label} holds PyTorch .bin weights only", expected="*.safetensors", where="MODEL",
                      next_step=_convert("transformers", "AutoModelForCausalLM", place, "-safetensors", ""))  # fmt: skip


def _format_of(names: set[str]) -> str:
    """ "adapter", "gguf" or "bin" where that is all there is, else ""."""
    if "adapter_config.json" in names:
        return "adapter"
    if any(name.endswith(".safetensors") for name in names):
        return ""
    if any(name.endswith(".gguf") for name in names):
        return "gguf"
    return "bin" if any(name.endswith((".bin", ".pth", ".pt")) for name in names) else ""


def _convert(package: str, loader: str, place: Path | str, ending: str, then: str) -> str:
    """A command that writes a safetensors directory beside the one that was found, then what to deploy."""
    target = f"{Path(place).name}{ending}"
    code = (
        f"from {package} import {loader} as M; from transformers import AutoTokenizer as T; "
        f"M.from_pretrained({str(place)!r}){then}.save_pretrained({target!r}); "
        f"T.from_pretrained({str(place)!r}).save_pretrained({target!r})"
    )
    return f"python -c {shlex.quote(code)} && scripts/deploy.py {shlex.quote(target)}"


def _convert_gguf(place: Path | str, file: str) -> str:
    target = f"{Path(place).name or 'model'}-safetensors"
    given = f"{str(place)!r}, gguf_file={file!r}"
    code = (
        "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; "
        f"M.from_pretrained({given}).save_pretrained({target!r}); T.from_pretrained({given}).save_pretrained({target!r})"
    )
    return f"python -c {shlex.quote(code)} && scripts/deploy.py {shlex.quote(target)}"


def _of_directory(path: Path) -> ModelSource:
    """A directory; one inside the Hub's cache keeps its id and commit. A repository's cache folder means its main."""
    real = path.resolve()
    repository = _SNAPSHOT.fullmatch(real.name)
    if repository and (real / "snapshots").is_dir():
        hub = HubId(f"{repository['org']}/{repository['name']}")
        source = cached(hub, real.parent)
        if source is None:
            raise Refusal(f"{real.name} holds no whole snapshot of {DEFAULT_REVISION}", expected="a finished download",
                          where="MODEL", next_step=f"scripts/deploy.py hf://{hub}  # goes on with the download")  # fmt: skip
        return source
    repository = _SNAPSHOT.fullmatch(real.parent.parent.name)
    if repository and real.parent.name == "snapshots" and _COMMIT.fullmatch(real.name):
        return ModelSource(real, repository["name"], f"{repository['org']}/{repository['name']}", real.name)
    return ModelSource(real, real.name)


def _not_a_directory(argument: str, path: Path) -> Refusal:
    gguf = path.suffix == ".gguf"
    if gguf:
        step = _convert_gguf(path.parent, path.name)
    elif (path.parent / "config.json").is_file():
        step = f"scripts/deploy.py {shlex.quote(str(path.parent))}"
    else:
        step = "give the directory that holds config.json and the weights"
    return Refusal(f"{argument!r} is a file", expected="a model directory, or a hub id such as Qwen/Qwen3-0.6B",
                   where="MODEL", next_step=step)  # fmt: skip


def _neither(argument: str, refusal: Refusal) -> Refusal:
    """What the Hub, or its cache, has said of an argument that may have been meant as a path."""
    if argument.startswith("hf://"):
        return refusal
    return Refusal(f"no directory {argument!r} here; as a hub id: {refusal.found}", expected=refusal.expected, where=refusal.where,
                   next_step=refusal.next_step)  # fmt: skip


def _no_directory(argument: str, path: Path, hub: HubId | None) -> Refusal:
    there = sorted(entry.name for entry in path.parent.iterdir() if entry.is_dir())[:8] if path.parent.is_dir() else []
    beside = f" ({path.parent} holds {', '.join(there)})" if there and str(path.parent) != "." else ""
    step = f"correct the path; for the Hub: scripts/deploy.py hf://{hub}" if hub else (
        "correct the path, or give a hub id as ORGANISATION/NAME"
    )  # fmt: skip
    return Refusal(
        f"no directory {argument!r}{beside}",
        expected=EXPECTED,
        where="MODEL", next_step=step,
    )  # fmt: skip


def _fetch(hub: HubId, download: bool, progress: Progress) -> ModelSource:
    if not download:
        raise Refusal(f"{hub} is not in the local Hugging Face cache", expected=f"a whole snapshot under {cache_root()}",
                      where="MODEL", next_step=f"scripts/deploy.py {hub}  # downloads it")  # fmt: skip
    from pipeline.hub_download import fetch  # the only part that needs huggingface_hub

    commit = fetch(hub, cache_root(), progress)
    source = cached(HubId(hub.id, commit))
    if source is None:
        raise Refusal(f"the download of {hub} is not whole", expected="config.json and every weight file",
                      where=str(cache_root() / hub.folder), next_step=f"scripts/deploy.py {hub}  # goes on")  # fmt: skip
    return source
