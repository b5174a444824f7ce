# SPDX-License-Identifier: Apache-2.0
"""Weights of the checkpoint in the layout of the designs: padded, reordered, bf16.

A PackedWeight says which slice of the weights arena holds which logical weight for which design. Values that are not bf16 in the
checkpoint are rounded once, ties to even.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kernels.designs.design import NUMPY_DTYPE, as_bf16
from kernels.designs.gemm import GemmDesign
from kernels.designs.gemv import GemvDesign
from planner.memory import Slice
from planner.widths import Widths
from reference.oracle.config import ModelConfig
from reference.oracle.ops import rope_table
from reference.oracle.tensors import EMBEDDING, FINAL_NORM, head_tensor
from reference.oracle.weights import Weights


@dataclass(frozen=True)
class PackedWeight:
    """logical: "layers.0.qkv", "layers.0.attn_norm", "final_norm", "lm_head" or "rope"; design: its consumer."""

    logical: str
    slice: Slice
    layout: Literal["gemm", "gemv", "vector", "rope"]
    design: GemmDesign | GemvDesign | None = None


class WeightPacker:
    """Reads logical weights from a checkpoint and packs them.

    Args:
        config, weights: the checkpoint. widths: the padded widths of the plan.
    """

    def __init__(self, config: ModelConfig, weights: Weights, widths: Widths) -> None:
        self.config, self.weights, self.widths = config, weights, widths

    def pack(self, item: PackedWeight) -> np.ndarray:
        """The elements of `item.slice`, flat, bf16."""
        packed = {"gemm": self._gemm, "gemv": self._gemv, "vector": self._vector, "rope": self._rope}[item.layout](item)
        if packed.size != item.slice.elements:
            raise ValueError(f"{item.logical}: packed {packed.size} elements for a slice of {item.slice.elements}")
        return packed

    def embedding(self, ids: np.ndarray) -> np.ndarray:
        """Embedding rows [n, padded hidden], bf16."""
        rows = np.zeros((len(ids), self.widths.hidden), NUMPY_DTYPE["bf16"])
        rows[:, : self.widths.hidden_valid] = as_bf16(self.weights.get(EMBEDDING)[ids])
        return rows

    def matrix(self, logical: str) -> np.ndarray:
        """A linear weight [out, in] with the padding that lies inside it (between gate and up), bf16."""
        if logical == "lm_head":
            return as_bf16(self.weights.get(head_tensor(self.config, self.weights)))
        return self._stack(logical, self._tensors(logical))

    def _tensors(self, logical: str) -> list[str]:
        layer, kind = logical.rsplit(".", 1)
        at, mlp = f"model.{layer}.self_attn", f"model.{layer}.mlp"
        return {
            "qkv": [f"{at}.q_proj", f"{at}.k_proj", f"{at}.v_proj"],
            "o_proj": [f"{at}.o_proj"],
            "gate_up": [f"{mlp}.gate_proj", f"{mlp}.up_proj"],
            "down": [f"{mlp}.down_proj"],
        }[kind]

    def _stack(self, logical: str, names: list[str]) -> np.ndarray:
        parts = [as_bf16(self.weights.get(f"{name}.weight")) for name in names]
        if logical.endswith("gate_up"):
            missing = self.widths.intermediate - self.widths.intermediate_valid
            parts = [np.pad(part, ((0, missing), (0, 0))) for part in parts]
        return np.concatenate(parts)

    def _gemm(self, item: PackedWeight) -> np.ndarray:
        assert isinstance(item.design, GemmDesign)
        return item.design.pack_b(self.matrix(item.logical))

    def _gemv(self, item: PackedWeight) -> np.ndarray:
        assert isinstance(item.design, GemvDesign)
        matrix = self.matrix(item.logical)
        return item.design.pack(*np.split(matrix, item.design.matrices))

    def _vector(self, item: PackedWeight) -> np.ndarray:
        architecture = self.config.architecture
        if item.logical == "final_norm":
            name = FINAL_NORM
        else:
            layer, kind = item.logical.rsplit(".", 1)
            norm = {"attn_norm": architecture.attn_norm, "mlp_norm": architecture.mlp_norm}[kind]
            name = f"model.{layer}.{norm}.weight"
        values = np.zeros(item.slice.elements, NUMPY_DTYPE["bf16"])
        values[: self.widths.hidden_valid] = as_bf16(self.weights.get(name))
        return values

    def _rope(self, item: PackedWeight) -> np.ndarray:
        return rope_rows(self.config, 0, item.slice.elements // self.config.head_dim).reshape(-1)


def rope_rows(config: ModelConfig, first: int, count: int) -> np.ndarray:
    """Rows [count, head_dim] of cos | sin in bf16 for positions first, first+1, ... (angles in FP64)."""
    cos, sin = rope_table(config.rope, config.head_dim, first, count)
    return as_bf16(np.concatenate([cos, sin], axis=1))
