# SPDX-License-Identifier: Apache-2.0
"""What the oracle understands but no kernel carries out is refused before any work, and padding follows one rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.graph import require_supported
from planner.packing import WeightPacker
from planner.widths import UNIT, Widths, pad
from reference.oracle.architecture import NormPlace, QKNorm
from reference.oracle.config import ModelConfig, load_config
from reference.oracle.tensors import open_weights
from refusal import Refusal
from tests.faults.deployed import fixture_directory


def config(**changes: object) -> ModelConfig:
    return replace(load_config(fixture_directory()), **changes)


def test_the_fixture_model_is_supported() -> None:
    require_supported(config())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qkv_bias": True}, "bias in qkv"),
        ({"o_bias": True}, "bias in o"),
        ({"mlp_bias": True}, "bias in mlp"),
        ({"head_dim": 48}, "head_dim 48"),
        ({"head_dim": 256}, "head_dim 256"),
        ({"num_attention_heads": 18}, "9 query heads per KV head"),
        ({"hidden_size": 2112}, r"rows of 2112 inputs in decode \(gate and up\)"),
        ({"hidden_size": 4160}, r"rows of 4160 inputs in decode \(q, k and v\)"),
    ],
)
def test_a_model_that_no_kernel_covers_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(Refusal, match=message):
        require_supported(config(**changes))


@pytest.mark.parametrize("changes", [{"hidden_size": 2048}, {"hidden_size": 2048, "intermediate_size": 8192}])
def test_rows_that_fit_whole_or_in_parts_are_supported(changes: dict[str, int]) -> None:
    require_supported(config(**changes))


@pytest.mark.parametrize("qk_norm", [kind for kind in QKNorm if kind is not QKNorm.NONE])
def test_qk_norm_is_refused(qk_norm: QKNorm) -> None:
    architecture = replace(config().architecture, qk_norm=qk_norm)
    with pytest.raises(Refusal, match="QK-norm"):
        require_supported(config(architecture=architecture))


@pytest.mark.parametrize("place", [place for place in NormPlace if place is not NormPlace.PRE])
def test_another_norm_place_is_refused(place: NormPlace) -> None:
    with pytest.raises(Refusal, match="norm place"):
        require_supported(config(architecture=replace(config().architecture, norm_place=place)))


def test_everything_that_is_missing_is_named_together() -> None:
    with pytest.raises(Refusal, match=r"bias in qkv: .*; bias in mlp: .*; head_dim 48: "):
        require_supported(config(qkv_bias=True, mlp_bias=True, head_dim=48))


@pytest.mark.parametrize(("width", "padded"), [(1, 64), (64, 64), (65, 128), (576, 576), (1100, 1152), (49153, 49216)])
def test_widths_are_padded_to_the_unit(width: int, padded: int) -> None:
    assert pad(width) == padded
    assert padded % UNIT == 0


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "pad_heads"),
    [(9, 3, 64, 0), (4, 2, 32, 0), (3, 1, 32, 1), (14, 2, 64, 0), (5, 1, 96, 1)],
)
def test_a_row_of_heads_is_padded_with_whole_heads_behind_v(
    heads: int, kv_heads: int, head_dim: int, pad_heads: int
) -> None:
    w = Widths.of(config(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim))
    assert w.pad_heads == pad_heads
    assert w.qkv % UNIT == 0
    assert w.attention == heads * head_dim


def test_padding_of_an_embedding_row_is_zero() -> None:
    narrow = config()
    widths = replace(Widths.of(narrow), hidden=192)
    rows = WeightPacker(narrow, open_weights(narrow), widths).embedding([3, 5])
    assert rows.shape == (2, 192)
    assert rows[:, :128].any()
    assert not rows[:, 128:].any()


# Hidden size, intermediate size, vocabulary, query heads, KV heads, head_dim, as the models' own config.json files have them.
PUBLISHED = {
    "meta-llama/Llama-3.2-1B": (2048, 8192, 128256, 32, 8, 64),
    "meta-llama/Llama-3.2-3B": (3072, 8192, 128256, 24, 8, 128),
    "meta-llama/Llama-3.1-8B": (4096, 14336, 128256, 32, 8, 128),
    "HuggingFaceTB/SmolLM2-135M": (576, 1536, 49152, 9, 3, 64),
    "HuggingFaceTB/SmolLM2-360M": (960, 2560, 49152, 15, 5, 64),
    "HuggingFaceTB/SmolLM2-1.7B": (2048, 8192, 49152, 32, 32, 64),
    "Qwen/Qwen2.5-0.5B": (896, 4864, 151936, 14, 2, 64),
    "Qwen/Qwen3-0.6B": (1024, 3072, 151936, 16, 8, 128),
    "Qwen/Qwen3-4B": (2560, 9728, 151936, 32, 8, 128),
    "mistralai/Mistral-7B-v0.3": (4096, 14336, 32768, 32, 8, 128),
    "microsoft/Phi-4-mini-instruct": (3072, 8192, 200064, 24, 8, 128),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_width_of_a_published_model_is_padded_so_that_no_call_works_on_padding_alone(name: str) -> None:
    hidden, intermediate, vocabulary, heads, kv_heads, head_dim = PUBLISHED[name]
    w = Widths.of(
        config(
            hidden_size=hidden, intermediate_size=intermediate, vocab_size=vocabulary, num_attention_heads=heads,
            num_key_value_heads=kv_heads, head_dim=head_dim,
        )
    )  # fmt: skip
    assert (w.hidden, w.intermediate, w.vocab, w.pad_heads) == (hidden, intermediate, vocabulary, 0)


@pytest.mark.parametrize("changes", [{"qkv_bias": True}, {"head_dim": 48}, {"num_attention_heads": 18}])
def test_a_refusal_for_want_of_a_kernel_suggests_nothing_that_needs_a_deployment(changes: dict[str, object]) -> None:
    with pytest.raises(Refusal) as refused:
        require_supported(config(**changes))
    assert "gate.py" not in str(refused.value)
    assert "scripts/doctor.py --model MODEL" in refused.value.next_step
    assert any(kernel in refused.value.found for kernel in ("gemm", "attention"))
