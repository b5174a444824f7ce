# SPDX-License-Identifier: Apache-2.0
"""The fixture model as a deployment under test: phase context, subjects, and subjects whose device side went wrong.

The oracle reads the right model directory; where the device side was made from another one (a stale config.json, a
converted weights file), `Misled` says so. Buckets are small, so that a session opens in a few seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from judge.fixture import CONFIG, fixture_tensors, write_bf16_safetensors, write_fixture
from judge.verdict import Verdict
from pipeline.context import PhaseContext, Subject
from pipeline.deployment import Deployment, Description
from pipeline.intake import hashes
from pipeline.model_session import ModelSession
from pipeline.phases import block
from pipeline.phases.outcome import Outcome
from planner.plan import Choices
from reference.oracle.config import load_config
from reference.oracle.tensors import open_weights
from tests.twin_device import CACHE, twin

SMALL = Choices(prefill_buckets=(64,), decode_buckets=(256,), context=256, score_bucket=64)
Tensors = dict[str, np.ndarray]


def no_progress(line: str) -> None:
    """Phases report to nobody."""


@cache
def fixture_directory() -> Path:
    """The pack's own fixture model, written once."""
    return write_fixture(CACHE / "fixture")


def model_directory(
    folder: Path, config: Mapping[str, object] | None = None, tensors: Callable[[Tensors], Tensors] = lambda t: t
) -> Path:
    """A copy of the fixture with keys of config.json replaced and tensors changed: what a user may hold by mistake."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | dict(config or {})))
    write_bf16_safetensors(folder / "model.safetensors", tensors(fixture_tensors(1)))
    return folder


@dataclass
class Misled(Subject):
    """A subject whose device side comes from `deployed`, another directory than the oracle's."""

    deployed: Path = field(kw_only=True)

    def session(self, choices: Choices | None = None) -> ModelSession:
        config = load_config(self.deployed)
        return ModelSession(config, open_weights(config), self.device, choices or self.choices, cache=self.cache)


def subject(choices: Choices = SMALL, *, directory: Path | None = None, deployed: Path | None = None) -> Subject:
    """A fresh subject of the fixture (or of `directory`), with no session open yet."""
    config = load_config(directory or fixture_directory())
    parts = ("fixture", True, config, open_weights(config), choices, twin(), twin().cache, no_progress)
    return Misled(*parts, deployed=deployed) if deployed else Subject(*parts)


def context(folder: Path, choices: Choices = SMALL, model: Path | None = None) -> PhaseContext:
    """The context of a deployment of the fixture below `folder`."""
    directory = model or fixture_directory()
    inputs = hashes(directory, open_weights(load_config(directory)))
    description = Description(
        name="fixture", model_dir=str(directory), device="twin", choices=choices, inputs=inputs,
        synthetic=True, provenance="synthetic",
    )  # fmt: skip
    return PhaseContext(Deployment.start(description, folder), twin(), twin().cache, no_progress)


def phase2(ctx: PhaseContext, tested: Subject, layer: int = 1) -> dict[str, Verdict]:
    """Phase 2 of one layer: {"prefill": verdict, "decode": verdict}."""
    outcome = Outcome()
    block.judge_layer(ctx, tested, layer, outcome)
    return {name.rsplit(" ", 1)[-1]: verdict for name, verdict in outcome.verdicts.items()}
