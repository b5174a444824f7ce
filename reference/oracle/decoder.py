# SPDX-License-Identifier: Apache-2.0
"""The FP32 decoder: prefill, cached decode, and a tap on every operator.

Taps, in order, with L the layer index, n tokens, H query and G KV heads, d head_dim:

    embed.out                [n, hidden]
    layers.L.input           [n, hidden]   the residual stream that enters the layer
    layers.L.attn_norm.out   [n, hidden]   pre-norm: norm of the input; post-norm: norm of o_proj.out
    layers.L.qkv.q           [n, H, d]     with bias, before q_norm and RoPE
    layers.L.qkv.k, .qkv.v   [n, G, d]
    layers.L.q_norm.out      [n, H, d]     only where the architecture norms q and k
    layers.L.k_norm.out      [n, G, d]
    layers.L.q_rope          [n, H, d]
    layers.L.k_rope          [n, G, d]
    layers.L.attn.keys       [G, t, d]     all positions so far, as attention reads them
    layers.L.attn.values     [G, t, d]
    layers.L.attn.out        [n, H*d]
    layers.L.o_proj.out      [n, hidden]
    layers.L.residual1       [n, hidden]
    layers.L.mlp_norm.out    [n, hidden]   pre-norm: norm of residual1; post-norm: norm of down.out
    layers.L.gate, .up       [n, intermediate]
    layers.L.act             [n, intermediate]   silu(gate) * up
    layers.L.down.out        [n, hidden]
    layers.L.residual2       [n, hidden]   the layer's output
    final_norm.out           [n, hidden]
    logits                   [n, vocab]

In post-norm layers attn_norm.out comes after o_proj.out, and mlp_norm.out after down.out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

import numpy as np

from reference.oracle import ops
from reference.oracle.architecture import NormPlace, QKNorm
from reference.oracle.config import ModelConfig, refuse_long_context
from reference.oracle.layer_weights import LayerWeights, WeightCache
from reference.oracle.row_blocks import free_cores
from reference.oracle.weights import Weights
from refusal import Refusal

Tap = Callable[[str, np.ndarray], None]


class TapRecorder:
    """A tap that keeps copies of the values whose name matches one of the patterns.

    Args:
        patterns: names, or shell patterns such as `layers.3.*`; none keeps everything.
    """

    def __init__(self, *patterns: str) -> None:
        self._patterns = patterns
        self.values: dict[str, np.ndarray] = {}

    def __call__(self, name: str, value: np.ndarray) -> None:
        if not self._patterns or any(fnmatchcase(name, pattern) for pattern in self._patterns):
            self.values[name] = np.array(value)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.values[name]


class KVCache:
    """Rotated keys and values of all layers, [layers, G, capacity, d] each; grows up to `capacity`.

    `length` is the number of positions every layer holds.
    """

    def __init__(self, config: ModelConfig, capacity: int | None = None) -> None:
        self.capacity = config.max_position_embeddings if capacity is None else capacity
        refuse_long_context(config, self.capacity)
        self.length = 0
        self._shape = (config.num_hidden_layers, config.num_key_value_heads, config.head_dim)
        self.keys, self.values = self._empty(0), self._empty(0)

    def _empty(self, rows: int) -> np.ndarray:
        layers, groups, dim = self._shape
        # NaN, so that a row read before it is written shows.
        return np.full((layers, groups, rows, dim), np.nan, np.float32)

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` more positions.

        Raises:
            Refusal: more than `capacity` positions.
        """
        needed = self.length + tokens
        if needed > self.capacity:
            raise Refusal(
                f"{needed} tokens of context",
                expected=f"at most {self.capacity}, the capacity of the KV cache",
                where="KV cache",
                next_step="shorten the prompt or ask for fewer new tokens",
            )
        held = self.keys.shape[2]
        if needed > held:
            rows = min(self.capacity, max(needed, 2 * held, 64))
            self.keys, self.values = self._grown(self.keys, rows), self._grown(self.values, rows)

    def _grown(self, old: np.ndarray, rows: int) -> np.ndarray:
        new = self._empty(rows)
        new[:, :, : self.length] = old[:, :, : self.length]
        return new

    def write(self, layer: int, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Store k and v [n, G, d] after `length`; return keys and values [G, length + n, d] as views."""
        stop = self.length + k.shape[0]
        self.keys[layer, :, self.length : stop] = k.transpose(1, 0, 2)
        self.values[layer, :, self.length : stop] = v.transpose(1, 0, 2)
        return self.keys[layer, :, :stop], self.values[layer, :, :stop]


class Decoder:
    """The forward pass of one model in FP32.

    Args:
        config, weights: from `load_config` and `open_weights`.
        memory_budget: bytes for FP32 weights; None is half of what is free. Weights beyond it
            are converted anew at each use, which is slower and gives the same values.

    `cache` is the decoder's own KV cache: `prefill` without a cache starts it anew, and
    `decode` without a cache goes on with it.
    """

    def __init__(self, config: ModelConfig, weights: Weights, *, memory_budget: int | None = None) -> None:
        self.config = config
        self.weights = WeightCache(config, weights, memory_budget)
        self.cache = KVCache(config)
        self._rope_span: tuple[int, int] | None = None
        self._rope_table = (np.empty(0), np.empty(0))

    def new_cache(self, capacity: int | None = None) -> KVCache:
        """An empty KV cache for `capacity` positions (default: all the model has)."""
        return KVCache(self.config, capacity)

    def prefill(
        self,
        ids: Sequence[int] | np.ndarray,
        *,
        cache: KVCache | None = None,
        tap: Tap | None = None,
        layers: int | None = None,
        last_only: bool = False,
    ) -> np.ndarray:
        """Logits [n, vocab] of n tokens; with `last_only` [1, vocab].

        Args:
            ids: token ids. With an explicit `cache` they stand after what it holds.
            layers: run only the first so many layers before the final norm.

        Raises:
            Refusal: no token, an id outside the vocabulary, or more tokens than the context.
        """
        if cache is None:
            self.cache = cache = self.new_cache()
        x = self.hidden(ids, cache=cache, tap=tap, layers=layers)
        return self.head(x[-1:] if last_only else x, tap=tap)

    def decode(
        self, token: int, *, cache: KVCache | None = None, tap: Tap | None = None, layers: int | None = None
    ) -> np.ndarray:
        """Logits [vocab] after one more token.

        Raises:
            Refusal: nothing was prefilled, or as `prefill`.
        """
        cache = self.cache if cache is None else cache
        if cache.length == 0:
            raise Refusal("decode on an empty KV cache", expected="prefill first", where="Decoder.decode")
        return self.head(self.hidden([token], cache=cache, tap=tap, layers=layers), tap=tap)[0]

    def hidden(
        self,
        ids: Sequence[int] | np.ndarray,
        *,
        cache: KVCache,
        tap: Tap | None = None,
        layers: int | None = None,
    ) -> np.ndarray:
        """The residual stream [n, hidden] after `layers` layers (default: all), before the final norm."""
        checked = self._checked(ids)
        refuse_long_context(self.config, cache.length + len(checked))
        cache.reserve(len(checked))
        x = self.weights.embed(checked)
        _observe(tap, "embed.out", x)
        with free_cores(len(checked)):
            for index in range(self.config.num_hidden_layers if layers is None else layers):
                x = self.layer(index, x, cache=cache, tap=tap)
        cache.length += len(checked)
        return x

    def layer(self, index: int, x: np.ndarray, *, cache: KVCache, tap: Tap | None = None) -> np.ndarray:
        """One layer: residual stream [n, hidden] in and out.

        Writes K and V of the n tokens after `cache.length` and leaves `length` as it is, for all
        layers of a step share it: a caller that runs single layers reserves and advances itself.
        """
        w, eps = self.weights.layer(index), self.config.rms_norm_eps
        pre = self.config.architecture.norm_place is NormPlace.PRE

        def see(name: str, value: np.ndarray) -> np.ndarray:
            _observe(tap, f"layers.{index}.{name}", value)
            return value

        see("input", x)
        h = see("attn_norm.out", ops.rms_norm(x, w.attn_norm, eps)) if pre else x
        h = self._attention(index, w, h, cache, see)
        if not pre:
            h = see("attn_norm.out", ops.rms_norm(h, w.attn_norm, eps))
        x = see("residual1", x + h)
        h = see("mlp_norm.out", ops.rms_norm(x, w.mlp_norm, eps)) if pre else x
        h = self._mlp(w, h, see)
        if not pre:
            h = see("mlp_norm.out", ops.rms_norm(h, w.mlp_norm, eps))
        return see("residual2", x + h)

    def head(self, x: np.ndarray, *, tap: Tap | None = None) -> np.ndarray:
        """Final norm and LM head: [n, hidden] -> logits [n, vocab]."""
        h = ops.rms_norm(x, self.weights.final_norm, self.config.rms_norm_eps)
        _observe(tap, "final_norm.out", h)
        with free_cores(len(x)):
            logits = ops.linear(h, self.weights.head())
        _observe(tap, "logits", logits)
        return logits

    def _attention(
        self, index: int, w: LayerWeights, h: np.ndarray, cache: KVCache, see: Callable[[str, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        config, n = self.config, h.shape[0]
        fused = ops.linear(h, w.qkv, w.qkv_bias)
        q, k, v = np.split(fused, [config.q_size, config.q_size + config.kv_size], axis=1)
        q = see("qkv.q", q.reshape(n, -1, config.head_dim))
        k = see("qkv.k", k.reshape(n, -1, config.head_dim))
        v = see("qkv.v", v.reshape(n, -1, config.head_dim))
        if w.q_norm is not None and w.k_norm is not None:
            q = see("q_norm.out", self._qk_norm(q, w.q_norm))
            k = see("k_norm.out", self._qk_norm(k, w.k_norm))
        cos, sin = self._rope(cache.length, n)
        q = see("q_rope", ops.rotate(q, cos, sin))
        k = see("k_rope", ops.rotate(k, cos, sin))
        keys, values = cache.write(index, k, v)
        see("attn.keys", keys)
        see("attn.values", values)
        out = see("attn.out", ops.attention(q, keys, values, cache.length))
        return see("o_proj.out", ops.linear(out, w.o, w.o_bias))

    def _rope(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The RoPE table of one step, made once for all layers."""
        if self._rope_span != (first, count):
            self._rope_table = ops.rope_table(self.config.rope, self.config.head_dim, first, count)
            self._rope_span = (first, count)
        return self._rope_table

    def _qk_norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Norm of [n, heads, d] over each head, or over all heads at once."""
        if self.config.architecture.qk_norm is QKNorm.PER_HEAD:
            return ops.rms_norm(x, weight, self.config.rms_norm_eps)
        wide = x.reshape(x.shape[0], -1)
        return ops.rms_norm(wide, weight, self.config.rms_norm_eps).reshape(x.shape)

    def _mlp(self, w: LayerWeights, h: np.ndarray, see: Callable[[str, np.ndarray], np.ndarray]) -> np.ndarray:
        gate, up = np.split(ops.linear(h, w.gate_up, w.gate_up_bias), 2, axis=1)
        see("gate", gate)
        see("up", up)
        act = see("act", ops.silu_multiply(gate, up))
        return see("down.out", ops.linear(act, w.down, w.down_bias))

    def _checked(self, ids: Iterable[int] | np.ndarray) -> np.ndarray:
        array = np.asarray(ids)
        if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
            raise Refusal(f"token ids of shape {list(array.shape)}", expected="at least one integer id", where="prompt")
        outside = array[(array < 0) | (array >= self.config.vocab_size)]
        if outside.size:
            raise Refusal(
                f"token id {outside[0]}",
                expected=f"0 to {self.config.vocab_size - 1}, the rows of the embedding",
                where="prompt",
                next_step="use the tokenizer of this model directory",
            )
        return array.astype(np.int64)


def _observe(tap: Tap | None, name: str, value: np.ndarray) -> None:
    if tap is not None:
        tap(name, value)
