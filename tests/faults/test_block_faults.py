# SPDX-License-Identifier: Apache-2.0
"""Phase 2: faults of config, weights file, packing, plan and runner, caught on one block, prefill and decode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from judge.fixture import CONFIG
from judge.verdict import Verdict
from kernels.attention_prefill import stage as attention_prefill
from kernels.designs import attention_prefill as attention_prefill_text
from pipeline import model_session
from pipeline.context import PhaseContext, Subject
from planner import graph, packing, plan
from tests.faults.deployed import Tensors, context, model_directory, phase2, subject
from tests.faults.plant import planted_python, planted_source

pytestmark = pytest.mark.slow

LAYER = 1


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PhaseContext:
    return context(tmp_path_factory.mktemp("deployments"))


@pytest.fixture(scope="module")
def honest() -> Subject:
    """The fixture model as it should be, on one open session."""
    return subject()


def failed_taps(verdict: Verdict) -> set[str]:
    """The taps that a figure or a named failure speaks of."""
    return {finding.metric.split("/")[0] for finding in verdict.missed}


def test_the_unplanted_block_passes(ctx: PhaseContext, honest: Subject) -> None:
    for verdict in phase2(ctx, honest, LAYER).values():
        assert verdict.passed, "\n".join(verdict.lines())


# ---- what the user's files say ----


def interleave(tensors: Tensors) -> Tensors:
    """q and k rows as GGUF files of Llamas hold them: pairs (2i, 2i+1) instead of (i, i + D/2)."""
    dim = CONFIG["head_dim"]
    for name in [name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight"))]:
        rows = tensors[name].reshape(-1, 2, dim // 2, tensors[name].shape[1])
        tensors[name] = np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(tensors[name].shape)
    return tensors


def swap_layers(tensors: Tensors) -> Tensors:
    """down_proj of layers 1 and 2 exchanged, as a wrong index in a converter leaves them."""
    one, two = (f"model.layers.{layer}.mlp.down_proj.weight" for layer in (1, 2))
    tensors[one], tensors[two] = tensors[two], tensors[one]
    return tensors


def gate_up_swapped(tensors: Tensors) -> Tensors:
    """gate and up exchanged: a fused tensor that was split in the wrong order."""
    for layer in range(CONFIG["num_hidden_layers"]):
        gate, up = (f"model.layers.{layer}.mlp.{kind}_proj.weight" for kind in ("gate", "up"))
        tensors[gate], tensors[up] = tensors[up], tensors[gate]
    return tensors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "tensors", "taps"),
    [
        ({"rope_theta": 100000.0}, None, {"k_rope", "attn.out"}),
        ({"rms_norm_eps": 1e-6}, None, {"qkv.v"}),
        ({}, interleave, {"k_rope"}),
        ({}, swap_layers, {"update"}),
        ({}, gate_up_swapped, {"update"}),
    ],
    ids=["theta_wrong", "eps_wrong", "rope_interleaved", "weight_of_other_layer", "gate_and_up_swapped"],
)
def test_a_wrong_file_is_caught_in_prefill_and_decode(
    ctx: PhaseContext,
    tmp_path: Path,
    config: dict[str, float],
    tensors: Callable[[Tensors], Tensors] | None,
    taps: set[str],
) -> None:
    wrong = model_directory(tmp_path / "wrong", config, *([tensors] if tensors else []))
    for step, verdict in phase2(ctx, subject(deployed=wrong), LAYER).items():
        assert not verdict.passed
        assert taps <= failed_taps(verdict), f"{step}: {verdict.lines()}"


# ---- packing, plan, design ----


def test_a_weight_of_another_layer_in_the_packer_is_caught(ctx: PhaseContext) -> None:
    edit = ('"down": [f"{mlp}.down_proj"]', '"down": ["model.layers.0.mlp.down_proj"]')
    with planted_python(packing, edit):
        verdicts = phase2(ctx, subject(), LAYER)
    assert all(failed_taps(verdict) == {"update"} for verdict in verdicts.values())


def test_a_residual_that_prefill_does_not_add_is_caught(ctx: PhaseContext) -> None:
    edit = (
        '(f"{p}.down.out", f"{p}.residual1"), f"{p}.residual2"',
        '(f"{p}.down.out", f"{p}.o_proj.out"), f"{p}.residual2"',
    )
    with planted_python(graph, edit):
        verdicts = phase2(ctx, subject(), LAYER)
    assert failed_taps(verdicts["prefill"]) == {"update"}
    assert verdicts["decode"].passed


def test_a_residual_that_decode_takes_from_the_wrong_place_is_caught(ctx: PhaseContext) -> None:
    edit = ('self._gemv(p, "down", "add", act, None, residual1)', 'self._gemv(p, "down", "add", act, None, source)')
    with planted_python(plan, edit):
        verdicts = phase2(ctx, subject(), LAYER)
    assert verdicts["prefill"].passed
    assert failed_taps(verdicts["decode"]) == {"update"}


def test_kv_heads_tiled_instead_of_repeated_are_caught(ctx: PhaseContext) -> None:
    edits = (
        ("q_first = kv_head * g.group * dim", "q_first = kv_head * dim"),
        ("sizes, [TOKEN_BLOCK * width, dim, width, 1])", "sizes, [TOKEN_BLOCK * width, g.kv_heads * dim, width, 1])"),
        (
            "sizes, [TOKEN_BLOCK * out_width, dim, out_width, 1])",
            "sizes, [TOKEN_BLOCK * out_width, g.kv_heads * dim, out_width, 1])",
        ),
    )
    with planted_python(attention_prefill_text, *edits):
        verdicts = phase2(ctx, subject(), LAYER)
    assert "attn.out" in failed_taps(verdicts["prefill"])
    assert verdicts["decode"].passed


def test_a_causal_mask_one_ahead_is_caught(ctx: PhaseContext, tmp_path: Path) -> None:
    with planted_source(attention_prefill, ("if (key > token)", "if (key > token + 1)"), folder=tmp_path):
        verdicts = phase2(ctx, subject(), LAYER)
    assert "attn.out" in failed_taps(verdicts["prefill"])


# ---- runner ----


# The plants take hold of the open session: its class runs the edited code.
@pytest.mark.parametrize(
    "edit",
    [
        ("self._append(place, position, kv[place])", "self._append(place, position + 1, kv[place])"),
        ("rope_rows(self.config, position, 1)", "rope_rows(self.config, 0, 1)"),
        ("words[0] = position", "words[0] = 20"),
    ],
    ids=["row_late", "rope_row_static", "position_static"],
)
def test_a_runner_that_loses_count_is_caught_in_decode(
    ctx: PhaseContext, honest: Subject, edit: tuple[str, str]
) -> None:
    with planted_python(model_session, edit):
        verdicts = phase2(ctx, honest, LAYER)
    assert verdicts["prefill"].passed
    assert not verdicts["decode"].passed
    assert "attn.out" in failed_taps(verdicts["decode"])


def test_key_and_value_rows_exchanged_are_caught(ctx: PhaseContext, honest: Subject) -> None:
    edit = ("block = kv[done : done + count, which, head]", "block = kv[done : done + count, 1 - which, head]")
    with planted_python(model_session, edit):
        verdicts = phase2(ctx, honest, LAYER)
    assert "attn.out" in failed_taps(verdicts["decode"])
