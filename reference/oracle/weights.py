# SPDX-License-Identifier: Apache-2.0
"""Lazy weights of a model directory: one safetensors file, or shards with an index.

Nothing is loaded before it is asked for; every header, size and index entry is
checked at once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from reference.oracle.keys import read_json_object
from reference.oracle.safetensors_file import SafetensorsFile
from refusal import Refusal

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Weights:
    """Tensors by name over the checked files of one model directory.

    Raises:
        Refusal: no safetensors, a truncated file, an index and shards that disagree.
    """

    def __init__(self, model_dir: Path | str) -> None:
        self.model_dir = Path(model_dir)
        paths, weight_map = _locate(self.model_dir)
        self._files = [SafetensorsFile(path) for path in paths]
        self._owner: dict[str, SafetensorsFile] = {}
        for file in self._files:
            for name in file.entries:
                if name in self._owner:
                    raise Refusal(
                        f"tensor {name} is in {self._owner[name].path.name} and in {file.path.name}",
                        expected="each tensor once",
                        where=str(self.model_dir),
                    )
                self._owner[name] = file
        if weight_map is not None:
            self._check_index(weight_map)

    @property
    def files(self) -> tuple[Path, ...]:
        """The safetensors files, sorted by name."""
        return tuple(file.path for file in self._files)

    @property
    def names(self) -> frozenset[str]:
        """All tensor names."""
        return frozenset(self._owner)

    def __contains__(self, name: str) -> bool:
        return name in self._owner

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        return self._file(name).entries[name].shape

    def dtype(self, name: str) -> str:
        """Stored dtype by its safetensors name, such as BF16."""
        return self._file(name).entries[name].dtype

    def get(self, name: str) -> np.ndarray:
        """A read-only view in the stored dtype (bf16 as ml_dtypes.bfloat16)."""
        return self._file(name).tensor(name)

    def fp32(self, name: str) -> np.ndarray:
        """A tensor in FP32: exact, since bf16 and f16 are subsets. A view if it is stored in FP32."""
        return to_fp32(self.get(name))

    def sha256(self, cache_dir: Path | None = None) -> dict[str, str]:
        """SHA-256 of each weight file by file name."""
        return {path.name: file_sha256(path, cache_dir) for path in self.files}

    def _file(self, name: str) -> SafetensorsFile:
        try:
            return self._owner[name]
        except KeyError:
            raise Refusal(f"no tensor {name}", where=str(self.model_dir)) from None

    def _check_index(self, weight_map: dict[str, str]) -> None:
        where = str(self.model_dir / INDEX)
        for name, shard in weight_map.items():
            owner = self._owner.get(name)
            if owner is None or owner.path.name != shard:
                has = f"in {owner.path.name}" if owner else "in no shard"
                raise Refusal(f"tensor {name} is {has}", expected=f"in {shard}, as the index says", where=where)
        extra = sorted(self.names - weight_map.keys())
        if extra:
            raise Refusal(f"shards hold tensors that the index does not name: {shortened(extra)}", where=where)


def to_fp32(values: np.ndarray) -> np.ndarray:
    """F32, F16 or BF16 values as FP32, exactly.

    bf16 is the upper half of an FP32 word, so it is shifted into place: bit-exact for
    every pattern (subnormals, NaN payloads), and several times faster than a cast.
    """
    if values.dtype == np.float32:
        return values
    if values.dtype == np.float16:
        return values.astype(np.float32)
    words = values.view(np.uint16).astype(np.uint32)
    words <<= 16
    return words.view(np.float32)


def _locate(model_dir: Path) -> tuple[list[Path], dict[str, str] | None]:
    single, index = model_dir / SINGLE, model_dir / INDEX
    if single.exists() and index.exists():
        raise Refusal(
            f"both {SINGLE} and {INDEX}",
            expected="one of them; which one holds the model cannot be told",
            where=str(model_dir),
            next_step="remove the one that is left over",
        )
    if single.exists():
        return [single], None
    if not index.exists():
        others = sorted(
            p.name for pattern in ("*.bin", "*.pth", "*.gguf", "*.safetensors") for p in model_dir.glob(pattern)
        )
        raise Refusal(
            f"no safetensors weights{f' (found {shortened(others)})' if others else ''}",
            expected=f"{SINGLE}, or shards with {INDEX}",
            where=str(model_dir),
            next_step="download the safetensors files of the model",
        )
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise Refusal("no weight_map of tensor names to shards", where=str(index))
    shards = sorted(set(weight_map.values()))
    missing = [name for name in shards if Path(name).name != name or not (model_dir / name).is_file()]
    if missing:
        raise Refusal(
            f"the index names shards that are not there: {shortened(missing)}",
            expected=f"{len(shards)} shards beside it",
            where=str(index),
            next_step="finish the download",
        )
    return [model_dir / name for name in shards], weight_map


def shortened(names: Iterable[str], limit: int = 8) -> str:
    """The first names of a list, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def default_cache_dir() -> Path:
    """Where derived facts about files are kept: LLM_TO_NPU_CACHE, else the XDG cache folder."""
    explicit = os.environ.get("LLM_TO_NPU_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llm-to-npu"


def file_sha256(path: Path | str, cache_dir: Path | None = None) -> str:
    """SHA-256 of a file in hex; hashed again only if size, mtime, ctime or inode changed.

    The result is kept in `cache_dir` (default: `default_cache_dir()`), never beside the file,
    so a model directory is not written to. A cache that cannot be written is done without.
    """
    path = Path(path).resolve()
    stat = path.stat()
    stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    side = (cache_dir or default_cache_dir()) / "sha256" / hashlib.sha256(str(path).encode()).hexdigest()
    try:
        kept = json.loads(side.read_text())
        if kept["stamp"] == stamp and kept["path"] == str(path):
            return kept["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _write_side(side, json.dumps({"path": str(path), "stamp": stamp, "sha256": digest}))
    return digest


def _write_side(side: Path, text: str) -> None:
    temporary = side.with_suffix(f".{os.getpid()}.tmp")
    try:
        side.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text)
        temporary.replace(side)
    except OSError:
        temporary.unlink(missing_ok=True)
