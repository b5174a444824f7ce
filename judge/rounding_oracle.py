# SPDX-License-Identifier: Apache-2.0
"""A second implementation of the decoder, which rounds where the design stores; independent of the FP32 oracle.

It shares no code with `reference.oracle.ops` or `decoder`: only the config's numbers and the weights' values. Two uses:

- as `Numerics(store="exact")` it computes in FP64 and proves the oracle (phase 0);
- with the design's numerics it is the honest floor of the block and model gates, and with a `Mistake` it is the
  seeded fault that those gates must catch.

Store points, all bf16: residual stream, norm output, q, k and v, RoPE table and output, attention probabilities,
attention output, every projection, the MLP's product. Logits leave in FP32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from judge.rounding import quantise_bfp16, round_bf16
from reference.oracle.architecture import NormPlace, QKNorm
from reference.oracle.config import ModelConfig

# K elements between two roundings of an accumulator that is (wrongly) kept in bf16: one K tile.
ACCUMULATOR_TILE = 64


# (tensor, "bf16" | "bfp16" | "exact") -> its values as an operand
Operands = dict[tuple[str, str], np.ndarray]


class ReadsWeights(Protocol):
    """What is needed of `reference.oracle.Weights`."""

    def fp32(self, name: str) -> np.ndarray: ...

    def __contains__(self, name: str) -> bool: ...


@dataclass(frozen=True)
class Numerics:
    """How numbers are stored and multiplied.

    linear: operands of the layers' products, "bf16" or "bfp16"; step: the same for a single token (decode).
    head, attention: operands of the LM head and of attention's two products.
    store: rounding to bf16 at store points, "even" or "floor"; "exact" is FP64 throughout without any rounding.
    accumulator: "fp32", or "bf16" for one that is rounded after each K tile.
    """

    linear: str = "bf16"
    step: str = "bf16"
    head: str = "bf16"
    attention: str = "bf16"
    store: str = "even"
    accumulator: str = "fp32"

    @property
    def exact(self) -> bool:
        return self.store == "exact"


EXACT = Numerics(store="exact")
PRECISIONS = {
    "bf16": Numerics(),
    "bfp16": Numerics(linear="bfp16", step="bfp16", head="bfp16"),
    "mixed": Numerics(linear="bfp16"),
}


@dataclass(frozen=True)
class Mistake:
    """A fault in the design: none of these is set in an honest run.

    rope_interleaved: pairs (2i, 2i + 1) are turned. kv_tiled: query head h reads KV head h mod G. mask_ahead: positions
    of the future that a query sees. dropped_residual: index of the layer whose attention result replaces the stream.
    late_rows: how many positions too late decode appends its K and V rows.
    """

    rope_interleaved: bool = False
    kv_tiled: bool = False
    mask_ahead: int = 0
    dropped_residual: int = -1
    late_rows: int = 0


@dataclass
class Cache:
    """Rotated keys and values by layer, [G, capacity, d], and how many positions are in."""

    capacity: int
    length: int = 0
    keys: dict[int, np.ndarray] = field(default_factory=dict)
    values: dict[int, np.ndarray] = field(default_factory=dict)


Tap = Callable[[str, np.ndarray], None]


class RoundingDecoder:
    """One model under one set of numerics.

    Args:
        config: of `reference.oracle.load_config`.
        weights: anything with `fp32(name)`; norms, biases and matrices are rounded to bf16 first unless exact.
        operands: prepared weights, which decoders of the same weights may share.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ReadsWeights,
        numerics: Numerics = PRECISIONS["bf16"],
        mistake: Mistake = Mistake(),
        operands: Operands | None = None,
    ) -> None:
        self.config, self.numerics, self.mistake = config, numerics, mistake
        self._weights = weights
        self._dtype = np.float64 if numerics.exact else np.float32
        self._operands = {} if operands is None else operands

    def logits(self, ids: Sequence[int], tap: Tap | None = None, cache: Cache | None = None) -> np.ndarray:
        """Logits [n, vocab] of n tokens after what the cache holds; the cache takes them in."""
        cache = Cache(len(ids)) if cache is None else cache
        x = self._store(self._matrix("model.embed_tokens.weight", "bf16")[np.asarray(ids)])
        for index in range(self.config.num_hidden_layers):
            x = self.layer(index, x, cache, tap)
        cache.length += len(ids)
        x = self._norm(x, "model.norm.weight")
        name = "lm_head.weight" if "lm_head.weight" in self._weights else "model.embed_tokens.weight"
        return self._product(x, name, self.numerics.head)

    def decode(self, prompt: Sequence[int], forced: Sequence[int]) -> np.ndarray:
        """Logits [len(forced), vocab]: the prompt in one prefill, then one decode step for each forced token."""
        cache = Cache(len(prompt) + len(forced) + self.mistake.late_rows)
        self.logits(prompt, cache=cache)
        return np.stack([self.logits([token], cache=cache)[0] for token in forced])

    def greedy(self, prompt: Sequence[int], count: int) -> tuple[tuple[int, ...], np.ndarray]:
        """`count` greedy ids and the logits [count, vocab] that chose them, as the runner does it.

        All but the last token of the prompt are prefilled; the last one and every new one are decode steps.
        """
        cache = Cache(len(prompt) + count + self.mistake.late_rows)
        self.logits(prompt[:-1], cache=cache)
        ids, rows, token = [], [], prompt[-1]
        while len(ids) < count:
            rows.append(self.logits([token], cache=cache)[0])
            token = int(rows[-1].argmax())
            ids.append(token)
        return tuple(ids), np.stack(rows)

    def layer(self, index: int, x: np.ndarray, cache: Cache, tap: Tap | None = None) -> np.ndarray:
        """One layer on the residual stream [n, hidden]; `cache.length` is left as it is."""
        at, arch = f"model.layers.{index}", self.config.architecture
        pre = arch.norm_place is NormPlace.PRE

        def see(name: str, value: np.ndarray) -> np.ndarray:
            if tap is not None:
                tap(f"layers.{index}.{name}", value)
            return value

        see("input", x)
        attn_norm, mlp_norm = f"{at}.{arch.attn_norm}.weight", f"{at}.{arch.mlp_norm}.weight"
        h = self._attention(index, self._norm(x, attn_norm) if pre else x, cache, see)
        h = h if pre else self._norm(h, attn_norm)
        x = see("residual1", self._store(h if index == self.mistake.dropped_residual else x + h))
        h = self._norm(x, mlp_norm) if pre else x
        gate = self._projection(h, f"{at}.mlp.gate_proj", self.config.mlp_bias)
        up = self._projection(h, f"{at}.mlp.up_proj", self.config.mlp_bias)
        act = see("act", self._store(gate / (1 + np.exp(-gate)) * up))
        h = see("down.out", self._projection(act, f"{at}.mlp.down_proj", self.config.mlp_bias))
        h = h if pre else self._norm(h, mlp_norm)
        return see("residual2", self._store(x + h))

    def _attention(self, index: int, h: np.ndarray, cache: Cache, see: Callable[..., np.ndarray]) -> np.ndarray:
        config, at = self.config, f"model.layers.{index}.self_attn"
        past = cache.length
        q, k, v = (
            self._projection(h, f"{at}.{name}_proj", config.qkv_bias).reshape(len(h), -1, config.head_dim)
            for name in "qkv"
        )
        see("qkv.v", v)
        if config.architecture.qk_norm is not QKNorm.NONE:
            q, k = self._qk_norm(q, f"{at}.q_norm.weight"), self._qk_norm(k, f"{at}.k_norm.weight")
        q, k = self._rotate(q, past), see("k_rope", self._rotate(k, past))
        keys, values = self._append(index, k, v, cache)
        heads = [self._head(q[:, head], keys, values, head, past) for head in range(config.num_attention_heads)]
        out = see("attn.out", self._store(np.concatenate(heads, axis=1)))
        return see("o_proj.out", self._projection(out, f"{at}.o_proj", config.o_bias))

    def _head(self, q: np.ndarray, keys: np.ndarray, values: np.ndarray, head: int, past: int) -> np.ndarray:
        """One query head [n, d] against its KV head [G, past + n, d]."""
        groups = keys.shape[0]
        size = self.config.num_attention_heads // groups
        group = head % groups if self.mistake.kv_tiled else head // size
        k, v = keys[group], values[group]
        scores = self._operand(q) @ self._operand(k).T / np.sqrt(self._dtype(self.config.head_dim))
        own = np.arange(past, past + len(q))[:, None]
        scores = np.where(np.arange(len(k))[None, :] <= own + self.mistake.mask_ahead, scores, -np.inf)
        weight = self._store(np.exp(scores - scores.max(axis=1, keepdims=True)))
        # The sum is over the stored probabilities: what multiplies V must add up to one.
        return self._operand(weight) @ self._operand(v.T).T / weight.sum(axis=1, keepdims=True)

    def _append(self, index: int, k: np.ndarray, v: np.ndarray, cache: Cache) -> tuple[np.ndarray, np.ndarray]:
        """What attention reads: cached rows, then the current ones; the current rows are put into the cache."""
        shape = (k.shape[1], cache.capacity, k.shape[2])
        both = []
        for store, rows in ((cache.keys, k), (cache.values, v)):
            held = store.setdefault(index, np.zeros(shape, self._dtype))
            both.append(np.concatenate([held[:, : cache.length], rows.transpose(1, 0, 2)], axis=1))
            start = cache.length + (self.mistake.late_rows if cache.length else 0)
            held[:, start : start + len(rows)] = rows.transpose(1, 0, 2)
        return both[0], both[1]

    def _rotate(self, x: np.ndarray, past: int) -> np.ndarray:
        """RoPE of [n, heads, d] at positions past, past + 1, ..."""
        angles = np.outer(np.arange(past, past + len(x)), _frequencies(self.config))
        cos, sin = (self._store(part.astype(self._dtype))[:, None, :] for part in (np.cos(angles), np.sin(angles)))
        out = np.empty_like(x)
        half = x.shape[2] // 2
        if self.mistake.rope_interleaved:
            first, second = slice(0, None, 2), slice(1, None, 2)
        else:
            first, second = slice(0, half), slice(half, None)
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., second] * cos + x[..., first] * sin
        return self._store(out)

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        scale = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self._dtype(self.config.rms_norm_eps))
        return self._store(x * scale * self._small(name))

    def _qk_norm(self, x: np.ndarray, name: str) -> np.ndarray:
        if self.config.architecture.qk_norm is QKNorm.PER_HEAD:
            return self._norm(x, name)
        return self._norm(x.reshape(len(x), -1), name).reshape(x.shape)

    def _projection(self, x: np.ndarray, name: str, bias: bool) -> np.ndarray:
        form = self.numerics.step if len(x) == 1 else self.numerics.linear
        y = self._product(x, f"{name}.weight", form)
        return self._store(y + self._small(f"{name}.bias") if bias else y)

    def _product(self, x: np.ndarray, name: str, form: str) -> np.ndarray:
        """x [n, in] times the transpose of the named weight [out, in]."""
        x = quantise_bfp16(x) if form == "bfp16" and not self.numerics.exact else x
        weight = self._matrix(name, form)
        if self.numerics.accumulator == "fp32":
            return x @ weight.T
        total = np.zeros((len(x), len(weight)), np.float32)
        for start in range(0, x.shape[1], ACCUMULATOR_TILE):
            part = slice(start, start + ACCUMULATOR_TILE)
            total = self._store(total + x[:, part] @ weight[:, part].T)
        return total

    def _matrix(self, name: str, form: str) -> np.ndarray:
        form = "exact" if self.numerics.exact else form
        kept = self._operands.get((name, form))
        if kept is None:
            kept = self._small(name)
            kept = quantise_bfp16(kept) if form == "bfp16" else kept
            self._operands[name, form] = kept
        return kept

    def _small(self, name: str) -> np.ndarray:
        value = self._weights.fp32(name)
        return value.astype(np.float64) if self.numerics.exact else round_bf16(value)

    def _operand(self, x: np.ndarray) -> np.ndarray:
        """An operand of attention's products, with the contracted axis last."""
        return quantise_bfp16(x) if self.numerics.attention == "bfp16" and not self.numerics.exact else x

    def stored(self, x: np.ndarray) -> np.ndarray:
        """Rows as the design holds them: an input buffer is a store point too."""
        return self._store(x)

    def _store(self, x: np.ndarray) -> np.ndarray:
        """A value as it is after a store point."""
        return x.astype(np.float64) if self.numerics.exact else round_bf16(x, self.numerics.store)


def _frequencies(config: ModelConfig) -> np.ndarray:
    """Radians a position for each pair of a head, FP64 [d / 2], from the definitions of the three RoPE kinds."""
    rope, pairs = config.rope, config.head_dim // 2
    turning = np.array([rope.theta ** (-i / pairs) for i in range(pairs)])
    if rope.kind == "default":
        return turning
    if rope.kind == "linear":
        return turning / rope.factor
    wavelength = 2 * np.pi / turning
    longest = rope.original_max_position_embeddings / rope.low_freq_factor
    shortest = rope.original_max_position_embeddings / rope.high_freq_factor
    # Linear in the number of turns between the two wavelengths: all of the scaling at `longest`, none at `shortest`.
    blend = (1 / wavelength - 1 / longest) / (1 / shortest - 1 / longest)
    blend = np.minimum(1, np.maximum(0, blend))
    return turning * blend + turning / rope.factor * (1 - blend)
