# SPDX-License-Identifier: Apache-2.0
"""Padded widths: the one rule by which shapes that do not divide are padded.

Every activation width is a multiple of 64 elements: eight columns of n = 8, the smallest mmul tile, share it evenly in a
GEMM, 32 cores get whole pairs in a GEMV, and every row is a whole number of 32-bit words and of 32-lane vectors.
Padding is zero: weight rows and columns, norm weights and embedding rows are padded with zeros, so padded columns of
every activation are exactly zero and add nothing to any sum. RMSNorm divides by the true width.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference.oracle.config import ModelConfig

UNIT = 64


def pad(width: int, unit: int = UNIT) -> int:
    """The smallest multiple of `unit` that holds `width`."""
    return -(-width // unit) * unit


@dataclass(frozen=True)
class Widths:
    """Widths of a model's activations, in elements; `*_valid` are the true ones."""

    hidden_valid: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    pad_heads: int  # zero heads behind v, where the row of q, k and v is not a multiple of 64
    intermediate_valid: int
    intermediate: int
    vocab_valid: int
    vocab: int

    @property
    def qkv(self) -> int:
        """Elements of a row of q, k, v and padding."""
        return (self.heads + 2 * self.kv_heads + self.pad_heads) * self.head_dim

    @property
    def attention(self) -> int:
        """Elements of a row of attention output."""
        return self.heads * self.head_dim

    @staticmethod
    def of(config: ModelConfig) -> Widths:
        dim = config.head_dim
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        pad_heads = next(extra for extra in range(UNIT) if (heads + extra) * dim % UNIT == 0)
        return Widths(
            hidden_valid=config.hidden_size,
            hidden=pad(config.hidden_size),
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=dim,
            pad_heads=pad_heads,
            intermediate_valid=config.intermediate_size,
            intermediate=pad(config.intermediate_size),
            vocab_valid=config.vocab_size,
            vocab=pad(config.vocab_size),
        )
