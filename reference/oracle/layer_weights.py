# SPDX-License-Identifier: Apache-2.0
"""FP32 weights of one layer in the form the decoder multiplies by, kept while memory allows.

q, k and v are one matrix, and so are gate and up: fewer and larger products. Matrices are [out, in]
in column-major order, which OpenBLAS multiplies by a tenth faster (x W^T is then a plain product).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from reference.oracle.architecture import QKNorm
from reference.oracle.config import ModelConfig
from reference.oracle.tensors import EMBEDDING, FINAL_NORM, head_tensor
from reference.oracle.weights import Weights, to_fp32


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Matrices are [out, in]; absent biases and norms are None."""

    attn_norm: np.ndarray  # [hidden]
    qkv: np.ndarray  # [q_size + 2 kv_size, hidden], rows q | k | v
    qkv_bias: np.ndarray | None
    q_norm: np.ndarray | None  # [head_dim] or [q_size]
    k_norm: np.ndarray | None
    o: np.ndarray  # [hidden, q_size]
    o_bias: np.ndarray | None
    mlp_norm: np.ndarray
    gate_up: np.ndarray  # [2 intermediate, hidden], rows gate | up
    gate_up_bias: np.ndarray | None
    down: np.ndarray  # [hidden, intermediate]
    down_bias: np.ndarray | None

    @property
    def nbytes(self) -> int:
        values = (getattr(self, item.name) for item in fields(self))
        return sum(value.nbytes for value in values if value is not None)


def read_layer(config: ModelConfig, weights: Weights, index: int) -> LayerWeights:
    """One layer's weights as fused FP32 arrays of their own."""
    at, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
    arch = config.architecture

    def matrix(*names: str) -> np.ndarray:
        return column_major([weights.fp32(f"{name}.weight") for name in names])

    def bias(*names: str) -> np.ndarray:
        return np.concatenate([weights.fp32(f"{name}.bias") for name in names])

    qkv, gate_up = [f"{at}.{x}_proj" for x in "qkv"], [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
    normed = arch.qk_norm is not QKNorm.NONE
    return LayerWeights(
        attn_norm=weights.fp32(f"model.layers.{index}.{arch.attn_norm}.weight"),
        qkv=matrix(*qkv),
        qkv_bias=bias(*qkv) if config.qkv_bias else None,
        q_norm=weights.fp32(f"{at}.q_norm.weight") if normed else None,
        k_norm=weights.fp32(f"{at}.k_norm.weight") if normed else None,
        o=matrix(f"{at}.o_proj"),
        o_bias=weights.fp32(f"{at}.o_proj.bias") if config.o_bias else None,
        mlp_norm=weights.fp32(f"model.layers.{index}.{arch.mlp_norm}.weight"),
        gate_up=matrix(*gate_up),
        gate_up_bias=bias(*gate_up) if config.mlp_bias else None,
        down=matrix(f"{mlp}.down_proj"),
        down_bias=weights.fp32(f"{mlp}.down_proj.bias") if config.mlp_bias else None,
    )


def column_major(parts: list[np.ndarray]) -> np.ndarray:
    """Matrices [out_i, in] below each other as one [out, in], column-major."""
    result = np.empty((sum(len(part) for part in parts), parts[0].shape[1]), np.float32, order="F")
    np.concatenate(parts, out=result)
    return result


class WeightCache:
    """FP32 weights by layer, kept until `budget` bytes are in use; the rest is read again each time.

    Args:
        budget: bytes; None is half of the memory that is available now.
    """

    def __init__(self, config: ModelConfig, weights: Weights, budget: int | None = None) -> None:
        self._config, self._weights = config, weights
        self._left = available_memory() // 2 if budget is None else budget
        self._layers: dict[int, LayerWeights] = {}
        self._head: np.ndarray | None = None
        self._head_name = head_tensor(config, weights)
        self.final_norm = weights.fp32(FINAL_NORM)

    def layer(self, index: int) -> LayerWeights:
        """The weights of layer `index`."""
        kept = self._layers.get(index)
        if kept is None:
            kept = read_layer(self._config, self._weights, index)
            if self._spend(kept.nbytes):
                self._layers[index] = kept
        return kept

    def head(self) -> np.ndarray:
        """The LM head [vocab, hidden]."""
        if self._head is not None:
            return self._head
        head = column_major([self._weights.fp32(self._head_name)])
        if self._spend(head.nbytes):
            self._head = head
        return head

    def embed(self, ids: np.ndarray) -> np.ndarray:
        """Embedding rows [n, hidden]."""
        return to_fp32(self._weights.get(EMBEDDING)[ids])

    def _spend(self, nbytes: int) -> bool:
        fits = nbytes <= self._left
        if fits:
            self._left -= nbytes
        return fits


def available_memory() -> int:
    """Bytes that can be allocated without swapping (MemAvailable of Linux)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
