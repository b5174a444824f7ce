# SPDX-License-Identifier: Apache-2.0
"""A model directory with made-up weights: any shape, no download. Good for speed, memory and faults; its text means nothing.

Weights are drawn so that no fault hides (compare judge/fixture.py): layers differ; norm weights vary along their axis;
attention scores are of several units; and, where the head is untied, activations are so small that eps counts. A tied
model needs logits of some size from its embedding, and layers that outweigh it, or it would repeat its input whatever the
layers do: there eps does not count.

Gates hold made-up weights against thresholds that were measured on the fixture model. Signed figures (gain, bias) of an honest
deployment differ from one made-up model to the next, so a synthetic model may miss one of them and be right: it serves trials of
shape, memory and speed, and is no proof of a kernel.

Values are bf16 quantiles picked by random 16-bit numbers, from a seed of each tensor's own: a layer's weights do not depend
on how many layers there are. Files are written one shard at a time; a run that was stopped goes on from the last whole one.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any, BinaryIO

import numpy as np

from pipeline.files import write_json
from pipeline.synthetic_tokenizer import write_byte_level_tokenizer
from reference.oracle.config import ModelConfig, load_config
from reference.oracle.keys import read_json_object
from reference.oracle.tensors import EMBEDDING, LM_HEAD, expected_tensors
from reference.oracle.weights import INDEX, SINGLE
from refusal import Refusal

SHAPES = Path(__file__).with_name("shapes.json")
SHARD_BYTES = 1 << 30
SPARE_BYTES = 200 << 20
SMALLEST_VOCABULARY = 259  # 256 bytes and three special tokens
_LEVELS = 1 << 16
_CHUNK = 1 << 24  # elements drawn at once
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Draw:
    """How a tensor's values are drawn: normal around 0 with standard deviation `scale`, or uniform in `between`."""

    scale: float = 1.0
    between: tuple[float, float] | None = None


def shapes() -> dict[str, dict[str, Any]]:
    """The built-in shapes: name -> {source, config}."""
    return json.loads(SHAPES.read_text())


def config_values(shape: str, *, layers: int | None = None, tied: bool | None = None) -> dict[str, Any]:
    """The config.json of a synthetic model.

    Args:
        shape: a built-in shape, a config.json, or a directory with one. layers: other than the shape's own number.
        tied: other than the shape's own; False makes activations small, so that eps counts.

    Raises:
        Refusal: no such shape, or a vocabulary too small for a tokenizer.
    """
    path = Path(shape).expanduser()
    known = shapes()
    if shape in known:
        values = dict(known[shape]["config"])
    elif path.is_dir() or path.is_file():
        values = read_json_object(path / "config.json" if path.is_dir() else path)
    else:
        what = "file or directory" if "/" in shape or path.suffix else "shape"
        raise Refusal(f"no {what} {shape!r}", expected=f"one of {', '.join(known)}, or a config.json", where="SHAPE",
                      next_step=f"scripts/synthesize.py {next(iter(known))} TARGET")  # fmt: skip
    if int(values.get("vocab_size", 0)) < SMALLEST_VOCABULARY:
        raise Refusal(f"vocab_size {values.get('vocab_size')}", expected=f"at least {SMALLEST_VOCABULARY}", where=shape,
                      next_step="give a larger vocabulary: the tokenizer is byte-level")  # fmt: skip
    if layers is not None:
        before = values.get("num_hidden_layers")
        values = {k: v[:layers] if isinstance(v, list) and len(v) == before else v for k, v in values.items()}
        values["num_hidden_layers"] = layers
    if tied is not None:
        values["tie_word_embeddings"] = tied
    # The tokenizer is made up too; its special tokens are 0, 1 and 2.
    return values | {"bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}


def synthesize(
    values: Mapping[str, Any],
    target: Path,
    *,
    seed: int = 0,
    shape: str = "",
    progress: Progress = print,
    go_on: Callable[[], bool] = lambda: True,
    shard_bytes: int = SHARD_BYTES,
) -> bool:
    """Write a model directory; returns False if `go_on` said to stop before it was whole.

    The directory appears at once, whole. Until then its parts are in a hidden folder beside it, and a second call with the
    same config and seed goes on from there.

    Raises:
        Refusal: the target exists, the config is not understood, or the disk is too small.
    """
    if target.exists():
        raise Refusal(f"{target} exists", expected="no such directory", where="TARGET",
                      next_step="remove it, or give another directory")  # fmt: skip
    partial = target.parent / f".{target.name}.partial"
    made = {"weights": "synthetic", "made_by": "scripts/synthesize.py", "seed": seed, "shape": shape}
    _begin(partial, dict(values), made)
    config = load_config(partial)
    groups = _shards(config, shard_bytes)
    _require_disk(partial, groups)
    for number, (name, tensors) in enumerate(groups.items(), start=1):
        if (partial / name).exists():
            continue
        if not go_on():
            return False
        size = sum(2 * math.prod(s) for s in tensors.values())
        progress(f"file {number} of {len(groups)}: {name}, {len(tensors)} tensors, {size >> 20} MiB")
        _write_shard(partial / name, tensors, config, seed)
    if len(groups) > 1:
        weight_map = {tensor: name for name, tensors in groups.items() for tensor in tensors}
        total = sum(2 * math.prod(s) for tensors in groups.values() for s in tensors.values())
        write_json(partial / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    write_byte_level_tokenizer(partial, min(config.vocab_size, 4096))
    write_json(partial / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    (partial / "begun.json").unlink()
    partial.rename(target)
    return True


def draws(config: ModelConfig) -> dict[str, Draw]:
    """How each tensor of a config is drawn. `lm_head.weight` is left out where it is tied."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    tied = config.tie_word_embeddings
    # mean(x^2) of the stream near eps; or, where the embedding is the head, logits of about 2.
    stream = 2 / math.sqrt(hidden) if tied else 1.6 * math.sqrt(config.rms_norm_eps)
    # What a layer adds: as large as the stream; where tied, together four times the part that points at the input token.
    adds = stream * (max(2.0, 2 * math.sqrt(hidden / (2 * layers))) if tied else 2.0)
    found = {}
    for name, size in expected_tensors(config).items():
        kind = name.rsplit(".", 2)[-2]
        if name == EMBEDDING:
            draw = Draw(stream)
        elif name == LM_HEAD:
            draw = Draw(2 / math.sqrt(hidden))
        elif kind.endswith("norm"):
            draw = Draw(between=(0.4, 1.8))
        elif name.endswith(".bias"):
            draw = Draw(0.5 * adds if kind in ("o_proj", "down_proj") else 0.5)
        else:
            gain = {"q_proj": 1.5, "k_proj": 1.5, "o_proj": adds, "down_proj": adds}.get(kind, 1.0)
            draw = Draw(gain / math.sqrt(size[1]))
        if not (tied and name == LM_HEAD):
            found[name] = draw
    return found


def tensor_values(name: str, count: int, draw: Draw, seed: int) -> Iterator[np.ndarray]:
    """The bf16 patterns (uint16) of a tensor, in chunks."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:16], "little"))
    table = _table(draw)
    for first in range(0, count, _CHUNK):
        size = min(_CHUNK, count - first)
        yield table[np.frombuffer(rng.bytes(2 * size), np.uint16)]


@lru_cache(maxsize=64)
def _table(draw: Draw) -> np.ndarray:
    """bf16 patterns of 65,536 quantiles of a distribution."""
    places = (np.arange(_LEVELS) + 0.5) / _LEVELS
    if draw.between:
        low, high = draw.between
        values = low + (high - low) * places
    else:
        values = draw.scale * _normal_quantiles()
    words = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype("<u2")  # to nearest, ties to even


@lru_cache(maxsize=1)
def _normal_quantiles() -> np.ndarray:
    inverse = NormalDist().inv_cdf
    return np.array([inverse((i + 0.5) / _LEVELS) for i in range(_LEVELS)])


def _begin(partial: Path, values: dict[str, Any], made: dict[str, Any]) -> None:
    """Make the hidden folder, or take up one that was begun for the same config and seed."""
    stamp = {"config": values, **made}
    kept = partial / "begun.json"
    if partial.exists() and (not kept.exists() or json.loads(kept.read_text()) != json.loads(json.dumps(stamp))):
        shutil.rmtree(partial)
    partial.mkdir(parents=True, exist_ok=True)
    write_json(partial / "config.json", values)
    write_json(partial / "provenance.json", made)
    write_json(kept, stamp)


def _shards(config: ModelConfig, shard_bytes: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """File name -> its tensors with their shapes, in the order of the model."""
    wanted = draws(config)
    groups: list[dict[str, tuple[int, ...]]] = [{}]
    filled = 0
    for name, size in expected_tensors(config).items():
        if name not in wanted:
            continue
        nbytes = 2 * math.prod(size)
        if groups[-1] and filled + nbytes > shard_bytes:
            groups.append({})
            filled = 0
        groups[-1][name] = size
        filled += nbytes
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    return {f"model-{i:05d}-of-{len(groups):05d}.safetensors": group for i, group in enumerate(groups, start=1)}


def _require_disk(partial: Path, groups: Mapping[str, Mapping[str, tuple[int, ...]]]) -> None:
    missing = {name: tensors for name, tensors in groups.items() if not (partial / name).exists()}
    needed = SPARE_BYTES + sum(2 * math.prod(s) for tensors in missing.values() for s in tensors.values())
    free = shutil.disk_usage(partial).free
    if free < needed:
        raise Refusal(f"{free >> 20} MiB of disk free", expected=f"{needed >> 20} MiB", where=str(partial.parent),
                      next_step="free some space, or make fewer layers: --layers N")  # fmt: skip


def _write_shard(path: Path, tensors: Mapping[str, tuple[int, ...]], config: ModelConfig, seed: int) -> None:
    """One safetensors file: 8 bytes of header length, a JSON header, the data (huggingface/safetensors, README, Format)."""
    wanted = draws(config)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, size in tensors.items():
        end = offset + 2 * math.prod(size)
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_suffix(".tmp")
    with partial.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name, size in tensors.items():
            _write_tensor(stream, name, math.prod(size), wanted[name], seed)
    partial.replace(path)


def _write_tensor(stream: BinaryIO, name: str, count: int, draw: Draw, seed: int) -> None:
    for chunk in tensor_values(name, count, draw, seed):
        stream.write(chunk.data)
