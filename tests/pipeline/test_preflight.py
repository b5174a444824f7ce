# SPDX-License-Identifier: Apache-2.0
"""Before work: the estimate is counted from the model and the plan, and a machine that is too small is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from judge.fixture import write_fixture
from pipeline.intake import choices_for
from pipeline.model_session import legality_of
from pipeline.preflight import LONG_SECONDS, arena_bytes, forecast, layers_within, needs_of, parameters, require_room
from planner.memory import ARENAS
from planner.plan import make_plan
from reference.oracle.config import ModelConfig, load_config
from refusal import Refusal

pytestmark = pytest.mark.slow

PHASES = (0, 1, 2, 3, 6)
GIB = 1 << 30


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return load_config(write_fixture(tmp_path_factory.mktemp("m") / "small"))


@pytest.fixture
def large(small: ModelConfig) -> ModelConfig:
    """The shape of an 8B model."""
    return replace(
        small, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, vocab_size=128256,
    )  # fmt: skip


def test_arenas_are_counted_as_the_planner_lays_them_out(small: ModelConfig, tmp_path: Path) -> None:
    choices = choices_for(small, layers=None, context=1024)
    plan = make_plan(small, choices, legal=legality_of(tmp_path))
    planned = sum(type_.nbytes for _, type_ in zip(ARENAS, plan.arenas.types(), strict=True))
    assert planned <= arena_bytes(small, choices) * 1.05
    assert planned >= arena_bytes(small, choices) * 0.6


def test_parameters_are_those_of_the_published_model(large: ModelConfig) -> None:
    assert parameters(large) == pytest.approx(8.03e9, rel=0.01)  # Llama 3.1 8B, model card


def test_a_machine_with_too_little_memory_is_refused_with_both_numbers(large: ModelConfig, tmp_path: Path) -> None:
    choices = choices_for(large, layers=None, context=None)
    needs = needs_of(large, choices, PHASES, available=8 * GIB)
    with pytest.raises(
        Refusal, match=rf"8192 MiB of memory available; expected about {needs.memory >> 20} MiB.*--layers"
    ):
        require_room(needs, tmp_path, memory=8 * GIB, disk=1 << 50)
    require_room(needs, tmp_path, memory=needs.memory, disk=1 << 50)


def test_a_disk_that_is_too_small_is_refused(small: ModelConfig, tmp_path: Path) -> None:
    needs = needs_of(small, choices_for(small, layers=None, context=None), PHASES, available=8 * GIB)
    with pytest.raises(Refusal, match="100 MiB of disk free"):
        require_room(needs, tmp_path, memory=1 << 50, disk=100 << 20)


def test_fewer_layers_need_less_of_everything(large: ModelConfig) -> None:
    whole = needs_of(large, choices_for(large, layers=None, context=None), PHASES, available=64 * GIB)
    part = needs_of(large, choices_for(large, layers=4, context=None), PHASES, available=64 * GIB)
    assert part.memory < whole.memory / 2
    assert part.disk < whole.disk / 2
    assert part.total_seconds < whole.total_seconds / 2


def test_a_long_deployment_says_so_and_offers_layers_that_are_never_proven(large: ModelConfig) -> None:
    choices = choices_for(large, layers=None, context=None)
    needs = needs_of(large, choices, PHASES, available=64 * GIB)
    assert needs.total_seconds > LONG_SECONDS
    text = "\n".join(forecast(large, choices, PHASES, "twin", needs))
    fitting = layers_within(large, choices, PHASES)
    assert "more than 30 minutes" in text
    assert f"--layers {fitting} " in text
    assert "partial and never proven" in text
    if fitting > 1:
        shorter = needs_of(large, choices_for(large, layers=fitting, context=None), PHASES, available=64 * GIB)
        assert shorter.total_seconds <= LONG_SECONDS


def test_a_short_one_says_its_time_and_offers_nothing(small: ModelConfig) -> None:
    choices = choices_for(small, layers=None, context=None)
    (line,) = forecast(small, choices, PHASES, "twin", needs_of(small, choices, PHASES, available=8 * GIB))
    assert "phase 0:" in line
    assert "MiB" in line
    assert "twin" in line
