# SPDX-License-Identifier: Apache-2.0
"""Each operator against its formula, written out anew in FP64 or taken from torch and transformers."""

from __future__ import annotations

import numpy as np
import pytest

from reference.oracle import RopeConfig, ops
from tests.reference.transformers_oracle import relative_error, torch, transformers

LLAMA3 = RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, 8192)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_linear_for_any_number_of_rows() -> None:
    for rows in (1, 5, 16, 200):
        x, weight, bias = normal(rows, 48), normal(77, 48, seed=1), normal(77, seed=2)
        assert relative_error(ops.linear(x, weight, bias), x.astype(np.float64) @ weight.T + bias) < 1e-6


def test_rms_norm() -> None:
    x, weight = 0.02 * normal(7, 64), normal(64, seed=1)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight
    assert relative_error(ops.rms_norm(x, weight, 1e-5), expected) < 1e-6
    assert relative_error(ops.rms_norm(x, weight, 1e-6), expected) > 1e-3  # small activations show eps


def test_silu_multiply_also_far_out() -> None:
    gate = np.array([[-1e4, -100.0, -1.0, 0.0, 1.0, 100.0, 1e4]], np.float32)
    up = np.full_like(gate, 3.0)
    expected = (torch.nn.functional.silu(torch.tensor(gate).double()) * 3.0).numpy()
    assert np.allclose(ops.silu_multiply(gate, up), expected, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize(("tokens", "past"), [(1, 0), (1, 37), (5, 0), (130, 0), (70, 63)])
@pytest.mark.parametrize(("heads", "groups"), [(4, 2), (9, 3), (3, 1), (4, 4)])
def test_attention(tokens: int, past: int, heads: int, groups: int) -> None:
    q = normal(tokens, heads, 16)
    keys, values = normal(groups, past + tokens, 16, seed=1), normal(groups, past + tokens, 16, seed=2)
    mask = torch.tril(torch.ones(tokens, past + tokens, dtype=torch.bool), diagonal=past)
    expected = torch.nn.functional.scaled_dot_product_attention(
        torch.tensor(q).double().transpose(0, 1)[None],
        torch.tensor(keys).double()[None],
        torch.tensor(values).double()[None],
        attn_mask=mask,
        enable_gqa=True,
    )
    expected = expected[0].transpose(0, 1).reshape(tokens, -1).numpy()
    assert relative_error(ops.attention(q, keys, values, past), expected) < 1e-5


def test_attention_reads_no_position_to_come() -> None:
    q, keys, values = normal(9, 4, 16), normal(2, 9, 16, seed=1), normal(2, 9, 16, seed=2)
    before = ops.attention(q, keys, values, 0)
    keys[:, 5:], values[:, 5:] = 1e4, -1e4
    assert np.array_equal(ops.attention(q, keys, values, 0)[:5], before[:5])


@pytest.mark.parametrize(
    "rope",
    [
        RopeConfig(10000.0),
        RopeConfig(10000.0, "linear", 4.0),
        LLAMA3,
        RopeConfig(500000.0, "llama3", 32.0, 1.0, 4.0, 8192),
    ],
    ids=["default", "linear", "llama3 factor 8", "llama3 factor 32"],
)
def test_inverse_frequencies_are_those_of_transformers(rope: RopeConfig) -> None:
    parameters = {"rope_type": rope.kind, "rope_theta": rope.theta}
    for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
        if getattr(rope, name) is not None:
            parameters[name] = getattr(rope, name)
    config = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=131072, rope_parameters=parameters
    )
    theirs = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config).inv_freq.numpy()
    assert np.allclose(ops.inverse_frequencies(rope, 64), theirs, rtol=1e-6)


def test_a_factor_of_a_sibling_model_shows() -> None:
    """Faults RP-01 and RP-02: the scaling skipped, or its factor taken from another size of the family."""
    ours = ops.inverse_frequencies(LLAMA3, 64)
    skipped = ops.inverse_frequencies(RopeConfig(500000.0), 64)
    sibling = ops.inverse_frequencies(RopeConfig(500000.0, "llama3", 32.0, 1.0, 4.0, 8192), 64)
    assert np.max(skipped / ours) == pytest.approx(8)
    assert np.max(ours / sibling) == pytest.approx(4)


def test_positions_do_not_collapse() -> None:
    cos, sin = ops.rope_table(RopeConfig(10000.0), 64, 100_000, 2)
    angle = np.outer([100_000, 100_001], 10000.0 ** (-np.arange(0, 64, 2) / 64))
    assert np.abs(cos - np.cos(angle)).max() < 1e-7
    assert np.abs(sin - np.sin(angle)).max() < 1e-7
    assert not np.array_equal(cos[0], cos[1])


def test_rotation_is_that_of_transformers() -> None:
    x = normal(6, 3, 16)
    cos, sin = ops.rope_table(RopeConfig(10000.0), 16, 250, 6)
    both = [torch.tensor(np.concatenate([table, table], axis=-1))[None] for table in (cos, sin)]
    apply = transformers.models.llama.modeling_llama.apply_rotary_pos_emb
    expected, _ = apply(torch.tensor(x)[None], torch.tensor(x)[None], *both, unsqueeze_dim=2)
    assert relative_error(ops.rotate(x, cos, sin), expected[0].numpy()) < 1e-6


def test_softmax_of_large_scores() -> None:
    shares = ops.softmax(np.array([[1e4, 1e4 - 1, -np.inf]], np.float32))
    assert np.allclose(shares, [[0.7310586, 0.2689414, 0.0]])
