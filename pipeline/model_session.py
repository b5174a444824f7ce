# SPDX-License-Identifier: Apache-2.0
"""A model loaded on a device: arenas allocated, weights packed, entries bound, KV cache in place.

Host work is a closed list: tokenise, embedding rows, appending K and V rows, sampling. Each write of the host into an
arena goes through `_write`, which counts its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from kernels.designs.attention_decode import KEY_GROUP, PARAMS
from kernels.designs.design import NUMPY_DTYPE, OpDesign, single_design_artifact
from npu.device import Device
from npu.legality.check import is_legal, require_legal
from npu.mlir.load import load_program
from planner.memory import ARENAS, Slice
from planner.module import write_module
from planner.packing import WeightPacker, rope_rows
from planner.plan import Choices, Entry, Plan, make_plan
from reference.oracle.config import ModelConfig
from reference.oracle.weights import Weights
from refusal import Refusal

BF16 = NUMPY_DTYPE["bf16"]
Progress = Callable[[str], None]


def legality_of(cache: Path) -> Callable[[OpDesign], bool]:
    """A predicate for the planner: whether the legality check has nothing against a design."""

    return lambda design: _legal(design, cache)


@lru_cache(maxsize=1024)
def _legal(design: OpDesign, cache: Path) -> bool:
    return is_legal(load_program(single_design_artifact(design).text, cache=cache))


class ModelSession:
    """One model on one device.

    Args:
        config, weights: the checkpoint. device: twin or xrt. choices: the plan's choices.
        cache: directory for programs, kernels and schedules. progress: called with one line a step.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        device: Device,
        choices: Choices,
        *,
        cache: Path,
        progress: Progress = lambda line: None,
        plan: Plan | None = None,
    ) -> None:
        self.config, self.device = config, device
        progress("planning: operator graph, tiles, arenas")
        self.plan = plan or make_plan(config, choices, legal=legality_of(cache))
        self.packer = WeightPacker(config, weights, self.plan.widths)
        progress(f"writing one module: {len(self.plan.designs)} designs, {len(self.plan.entries)} entries")
        self.artifact = write_module(self.plan)
        require_legal(load_program(self.artifact.text, cache=cache))
        progress("compiling kernels for the device")
        self.session = device.open(self.artifact)
        self.host_bytes = 0
        self.host_bytes_per_token = 0  # of the last decode step
        self._allocate(progress)
        self.length = 0  # keys in the cache

    def _allocate(self, progress: Progress) -> None:
        for name, type_ in zip(ARENAS, self.plan.arenas.types(), strict=True):
            self.session.allocate(name, type_.nbytes)
        for entry in self.plan.entries:
            self.session.bind(entry.name, dict(enumerate(ARENAS)))
        progress(f"packing weights: {2 * self.plan.arenas.sizes['weights'] / 1e6:.0f} MB")
        for item in self.plan.weights:
            self.session.write("weights", item.slice.offset_bytes, self.packer.pack(item))
        # Dead keys of a bucket are fetched and masked; they must be finite.
        self.session.write("kv", 0, np.zeros(self.plan.arenas.sizes["kv"], BF16))

    # ---- slices ----

    def write(self, part: Slice, values: np.ndarray) -> None:
        """Write a whole slice (or its start), counted as host bytes."""
        self._write(part.arena, part.offset_bytes, values)

    def read(self, part: Slice, shape: tuple[int, ...]) -> np.ndarray:
        """Read the start of a slice as FP32, `shape` elements."""
        dtype = NUMPY_DTYPE[ARENAS[part.arena]]
        return self.session.read(part.arena, part.offset_bytes, shape, dtype).astype(np.float32)

    def _write(self, arena: str, offset_bytes: int, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values)
        self.host_bytes += values.nbytes
        self.session.write(arena, offset_bytes, values)

    # ---- steps ----

    def reset(self) -> None:
        """Forget the context: the next token stands at position 0."""
        self.length = 0

    def prefill(self, ids: Sequence[int]) -> Entry | None:
        """Run the prompt through the layers from position 0 and fill the cache; returns the entry that ran.

        Tokens beyond the largest bucket are decoded one by one. No logits: the caller decodes the last token.
        """
        self.reset()
        if not ids:
            return None
        if len(ids) > self.plan.choices.context:
            raise Refusal(
                f"{len(ids)} tokens", expected=f"at most the cache's capacity {self.plan.choices.context}", where="prefill",
                next_step="shorten the prompt or deploy with a larger --context",
            )  # fmt: skip
        buckets = sorted(self.plan.choices.prefill_buckets)
        now = min(len(ids), buckets[-1])
        entry = self.plan.entry(f"prefill_{next(b for b in buckets if b >= now)}")
        self._run_prefill(entry, ids[:now])
        for token in ids[now:]:
            self.decode(token)
        return entry

    def _run_prefill(self, entry: Entry, ids: Sequence[int]) -> None:
        rows = int(entry.name.rsplit("_", 1)[1])
        hidden = np.zeros((rows, self.plan.widths.hidden), BF16)
        hidden[: len(ids)] = self.packer.embedding(np.asarray(ids))
        self.run_rows(entry, hidden)
        self.append_prefill(entry, len(ids))

    def run_rows(self, entry: Entry, hidden: np.ndarray) -> None:
        """Run a prefill or score entry on given input rows [M, padded hidden], bf16."""
        self.write(entry.values["input"], hidden)
        self.session.run(entry.name)

    def append_prefill(self, entry: Entry, count: int) -> None:
        """Copy the first `count` rotated K rows and V rows of every layer into the cache."""
        w = self.plan.widths
        rows = int(entry.name.rsplit("_", 1)[1])
        heads = w.heads + 2 * w.kv_heads
        for place, index in enumerate(self.plan.layers):
            part = entry.values[f"layers.{index}.rope.out"]
            row = self.session.read("activations", part.offset_bytes, (rows, w.qkv), BF16)[:count]
            kv = row[:, w.heads * w.head_dim : heads * w.head_dim].reshape(count, 2, w.kv_heads, w.head_dim)
            self._append(place, 0, kv)
        self.length = count

    def _append(self, place: int, first: int, kv: np.ndarray) -> None:
        """Write rows kv [n, 2 (K|V), KV heads, D] at positions first.. of one layer's cache."""
        w = self.plan.widths
        base, context = self.plan.cache[place], self.plan.choices.context
        groups = context // KEY_GROUP
        done = 0
        while done < len(kv):
            group, row = divmod(first + done, KEY_GROUP)
            count = min(KEY_GROUP - row, len(kv) - done)
            for head in range(w.kv_heads):
                for which in range(2):
                    offset = (((head * groups + group) * 2 + which) * KEY_GROUP + row) * w.head_dim
                    block = kv[done : done + count, which, head]
                    self._write("kv", 2 * (base.offset + offset), block)
            done += count

    def decode(self, token: int) -> np.ndarray:
        """One token at the next position; returns FP32 logits [vocab] and appends its K and V rows."""
        hidden = self.packer.embedding(np.asarray([token]))
        entry = self.decode_rows(hidden)
        return self.read(entry.values["logits"], (self.plan.widths.vocab_valid,))

    def decode_rows(self, hidden: np.ndarray) -> Entry:
        """One step from a given input row [1, padded hidden], bf16; returns the entry that ran."""
        position = self.length
        if position >= self.plan.choices.context:
            raise Refusal(
                f"position {position}", expected=f"below the cache's capacity {self.plan.choices.context}", where="decode",
                next_step="shorten the prompt or deploy with a larger --context",
            )  # fmt: skip
        before = self.host_bytes
        bucket = next(b for b in sorted(self.plan.choices.decode_buckets) if b >= position)
        entry = self.plan.entry(f"decode_{bucket}")
        self.write(entry.values["input"], hidden)
        self.write(entry.values["params"], self._params(position))
        self.session.run(entry.name)
        self.append_decode(entry, position)
        self.host_bytes_per_token = self.host_bytes - before
        return entry

    def _params(self, position: int) -> np.ndarray:
        words = np.zeros(PARAMS // 2, np.int32)
        words[0] = position
        return np.concatenate([words.view(BF16), rope_rows(self.config, position, 1).reshape(-1)])

    def append_decode(self, entry: Entry, position: int) -> None:
        """Copy the token's rotated K row and V row of every layer into the cache."""
        w = self.plan.widths
        part = entry.values["attention_rows"]
        heads = w.heads + 2 * w.kv_heads
        rows = self.session.read("activations", part.offset_bytes, (len(self.plan.layers), heads * w.head_dim), BF16)
        kv = rows[:, w.heads * w.head_dim :].reshape(len(self.plan.layers), 1, 2, w.kv_heads, w.head_dim)
        for place in range(len(self.plan.layers)):
            self._append(place, position, kv[place])
        self.length = position + 1

    # ---- whole sequences, for gates ----

    def score(self, ids: Sequence[int]) -> np.ndarray:
        """Teacher-forced logits [n, vocab] of n tokens by the prefill path; n is at most the score bucket."""
        bucket = self.plan.choices.score_bucket
        if bucket is None or len(ids) > bucket:
            raise Refusal(f"{len(ids)} tokens to score", expected=f"at most the score bucket {bucket}", where="score")
        entry = self.prefill(list(ids))
        assert entry is not None
        rows = int(entry.name.rsplit("_", 1)[1])
        hidden = np.zeros((bucket, self.plan.widths.hidden), BF16)
        part = entry.values["output"]
        kept = min(rows, bucket)  # rows beyond the tokens are padding
        hidden[:kept] = self.session.read("activations", part.offset_bytes, (kept, hidden.shape[1]), BF16)
        score = self.plan.entry(f"score_{bucket}")
        self.run_rows(score, hidden)
        logits = score.values["logits"]
        width = logits.elements // bucket
        return self.read(logits, (bucket, width))[: len(ids), : self.plan.widths.vocab_valid]
