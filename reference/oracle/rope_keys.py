# SPDX-License-Identifier: Apache-2.0
"""RoPE parameters from a config, in both spellings that transformers reads.

Up to transformers 4: `rope_theta` and `rope_scaling`. From 5 on: one
`rope_parameters` object that holds theta, kind and factors
(`modeling_rope_utils.RotaryEmbeddingConfigMixin`). Where a file has both, they
must agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reference.oracle.architecture import ROPE_KINDS
from reference.oracle.keys import KeyReader

_LLAMA3_KEYS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_KEYS_OF_KIND = {"default": (), "linear": ("factor",), "llama3": _LLAMA3_KEYS}


@dataclass(frozen=True)
class RopeConfig:
    """One rotary embedding: base `theta`, `kind`, and the factors that kind needs (None otherwise)."""

    theta: float
    kind: str = "default"
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None


def read_rope(keys: KeyReader) -> RopeConfig:
    """Consume `rope_theta`, `rope_scaling` and `rope_parameters`.

    Raises:
        Refusal: no theta anywhere, two sources that disagree, an unknown kind, a missing or unknown factor.
    """
    blocks = {name: _block(keys, name) for name in ("rope_parameters", "rope_scaling")}
    theta = _theta(keys, [block for block in blocks.values() if block])
    ropes = {name: _rope(block, theta) for name, block in blocks.items() if block}
    if len(set(ropes.values())) > 1:
        raise keys.refuse("rope_scaling", expected=f"the same as rope_parameters = {keys.peek('rope_parameters')}")
    return next(iter(ropes.values()), RopeConfig(theta))


def _block(keys: KeyReader, name: str) -> KeyReader | None:
    value = keys.take(name)
    if value is None or value == {}:
        return None
    if not isinstance(value, dict):
        raise keys.refuse(name, expected="an object or null")
    nested = [key for key, inner in value.items() if isinstance(inner, dict)]
    if nested:
        raise keys.refuse(name, expected="one set of RoPE parameters for all layers; per-layer RoPE is not implemented")
    return KeyReader(value, where=f"{keys.where}: {name}")


def _theta(keys: KeyReader, blocks: list[KeyReader]) -> float:
    """The one theta; a value inside a block and one outside must be equal."""
    sources = [reader for reader in (keys, *blocks) if reader.has("rope_theta")]
    values = {reader.positive("rope_theta") for reader in sources}
    for reader in (keys, *blocks):
        reader.drop("rope_theta")
    if len(values) > 1:
        raise sources[-1].refuse("rope_theta", expected=f"the same as {sources[0].peek('rope_theta')} elsewhere in it")
    if not values:
        raise keys.refuse("rope_theta", expected="a base frequency, here or in rope_parameters; there is no default")
    return values.pop()


def _rope(block: KeyReader, theta: float) -> RopeConfig:
    kinds = {kind for kind in (block.take("rope_type"), block.take("type")) if kind is not None}
    kind = kinds.pop() if kinds else "default"  # transformers reads a missing kind so
    if kinds:
        raise block.refuse("type", expected=f"the same as rope_type = {block.peek('rope_type')!r}")
    if kind not in ROPE_KINDS:
        named = "rope_type" if block.has("rope_type") else "type"
        raise block.refuse(named, expected=f"one of {', '.join(ROPE_KINDS)}")
    block.only("partial_rotary_factor", 1.0)
    numbers: dict[str, Any] = {}
    for name in _KEYS_OF_KIND[kind]:
        whole = name == "original_max_position_embeddings"
        numbers[name] = block.count(name) if whole else block.positive(name)
    block.refuse_unknown(acceptable=False)
    if kind == "llama3" and numbers["high_freq_factor"] <= numbers["low_freq_factor"]:
        raise block.refuse("high_freq_factor", expected=f"more than low_freq_factor {numbers['low_freq_factor']}")
    return RopeConfig(theta, kind, **numbers)
