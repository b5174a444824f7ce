# SPDX-License-Identifier: Apache-2.0
"""The seeded faults of the block and model gates, planted where a user could be wrong: config, weights file, design.

A fault turns (config, weights, numerics) into what the wrong deployment would have used; the oracle keeps the right
ones. Nothing alters an array on its way to a metric.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from judge.rounding_oracle import Mistake, Numerics, Operands, ReadsWeights, RoundingDecoder
from reference.oracle.config import ModelConfig

# The base that most older models have, and the one that a config of such a model is mistaken for.
COMMON_THETA, OTHER_THETA = 10000.0, 100000.0


class SwappedLayer:
    """Weights in which one tensor of a layer is the next layer's, as a wrong index in a converter leaves them."""

    def __init__(self, weights: ReadsWeights, layer: int, layers: int, tensor: str = "mlp.down_proj.weight") -> None:
        self._weights = weights
        self._name = f"model.layers.{layer}.{tensor}"
        self._other = f"model.layers.{(layer + 1) % layers}.{tensor}"

    def fp32(self, name: str) -> np.ndarray:
        return self._weights.fp32(self._other if name == self._name else name)

    def __contains__(self, name: str) -> bool:
        return name in self._weights


@dataclass(frozen=True)
class Setting:
    """What a deployment is made from.

    layer: where faults of a single layer are planted. operands: prepared weights, shared by settings with equal weights.
    """

    config: ModelConfig
    weights: ReadsWeights
    numerics: Numerics
    mistake: Mistake = field(default_factory=Mistake)
    layer: int = 1
    operands: Operands = field(default_factory=dict, compare=False)

    def decoder(self) -> RoundingDecoder:
        return RoundingDecoder(self.config, self.weights, self.numerics, self.mistake, self.operands)


def _theta(s: Setting) -> Setting:
    wrong = OTHER_THETA if s.config.rope.theta == COMMON_THETA else COMMON_THETA
    return replace(s, config=replace(s.config, rope=replace(s.config.rope, theta=wrong)))


def _eps(s: Setting) -> Setting:
    return replace(s, config=replace(s.config, rms_norm_eps=1e-6 if s.config.rms_norm_eps != 1e-6 else 1e-5))


def _swap(s: Setting) -> Setting:
    # Prepared weights are of the right file: the wrong one starts with none.
    return replace(s, weights=SwappedLayer(s.weights, s.layer, s.config.num_hidden_layers), operands={})


def _mistake(**fields: object) -> Callable[[Setting], Setting]:
    return lambda s: replace(s, mistake=replace(s.mistake, **fields))


def _numerics(**fields: str) -> Callable[[Setting], Setting]:
    return lambda s: replace(s, numerics=replace(s.numerics, **fields))


PLANT: dict[str, Callable[[Setting], Setting]] = {
    "theta_wrong": _theta,
    "eps_wrong": _eps,
    "weight_of_other_layer": _swap,
    "rope_interleaved": _mistake(rope_interleaved=True),
    "kv_tiled": _mistake(kv_tiled=True),
    "mask_ahead": _mistake(mask_ahead=1),
    "residual_dropped": lambda s: replace(s, mistake=replace(s.mistake, dropped_residual=s.layer)),
    "kv_row_late": _mistake(late_rows=1),
    "bf16_accumulation": _numerics(accumulator="bf16"),
    "floor_rounding": _numerics(store="floor"),
}
# A late row shows only where something is decoded after it; FP64 has no rounding to get wrong.
BLOCK_FAULTS = tuple(name for name in PLANT if name != "kv_row_late")
ORACLE_FAULTS = ("theta_wrong", "eps_wrong", "weight_of_other_layer", "rope_interleaved", "kv_tiled", "mask_ahead",
                 "residual_dropped", "kv_row_late")  # fmt: skip
