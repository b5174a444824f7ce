# SPDX-License-Identifier: Apache-2.0
"""What a phase works with, opened once and shared: model, oracle, device, session, policy, progress."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from judge.fixture import write_fixture
from judge.policy import Policy, load_policy
from npu.device import Device
from pipeline.deployment import Deployment, Description
from pipeline.manifest import PACK, pack_hash
from pipeline.model_session import ModelSession
from planner.plan import Choices
from reference.oracle.config import ModelConfig, load_config
from reference.oracle.decoder import Decoder
from reference.oracle.tensors import open_weights
from reference.oracle.weights import Weights

CACHE_VARIABLE = "LLM_TO_NPU_CACHE"


def cache_directory() -> Path:
    """Where programs, compiled kernels and schedules are kept: the environment's choice, or deployments/.cache."""
    return Path(os.environ.get(CACHE_VARIABLE, "deployments/.cache")).absolute()


@dataclass
class Subject:
    """A model under test: the one that is deployed ("model"), or the pack's own fixture ("fixture")."""

    name: str
    synthetic: bool  # made-up weights: judged by the fixture's thresholds, and every figure says so
    config: ModelConfig
    weights: Weights
    choices: Choices
    device: Device
    cache: Path
    progress: Callable[[str], None]
    nonce: str = ""  # an evaluation's: tokens are then drawn from it, and not the ones that the phases use
    _sessions: dict[Choices, ModelSession] = field(default_factory=dict)

    @cached_property
    def decoder(self) -> Decoder:
        """The FP32 oracle."""
        return Decoder(self.config, self.weights)

    @property
    def thresholds(self) -> str:
        """Whose thresholds hold: the policy's gates exist for "model" (trained weights) and "fixture" (made-up ones)."""
        return "fixture" if self.synthetic else "model"

    @property
    def layers(self) -> int:
        """How many layers the deployment has: fewer than the model's where it is partial."""
        chosen = self.choices.layers
        return self.config.num_hidden_layers if chosen is None else len(chosen)

    def session(self, choices: Choices | None = None) -> ModelSession:
        """The model on the device under the given choices; opened once for each."""
        choices = choices or self.choices
        key = repr(choices)
        if key not in self._sessions:
            self._sessions[key] = ModelSession(
                self.config, self.weights, self.device, choices, cache=self.cache, progress=self.progress
            )
        return self._sessions[key]

    def with_choices(self, choices: Choices) -> Subject:
        """The same model under other choices: weights and oracle are shared, sessions are not."""
        other = replace(self, choices=choices, _sessions={})
        other.__dict__["decoder"] = self.decoder
        return other

    def logits(self, ids: list[int]) -> np.ndarray:
        """Oracle logits [n, vocab] in FP32 from an empty cache."""
        cache = self.decoder.new_cache(len(ids))
        return self.decoder.prefill(ids, cache=cache, layers=self.choices.layers and self.layers)


def fixture_choices(choices: Choices) -> Choices:
    """The fixture's choices beside a model's: the same modes, its own buckets, and no tiles of another shape."""
    return replace(choices, layers=None, context=1024, prefill_buckets=(64, 512), decode_buckets=(256, 1024),
                   tiles={}, gemv_rows={})  # fmt: skip


@dataclass
class PhaseContext:
    """Everything a phase may use."""

    deployment: Deployment
    device: Device
    cache: Path
    progress: Callable[[str], None]
    policy: Policy = field(default_factory=load_policy)
    reuse: bool = False  # whether phase 1 may take over what a former deployment verified; an evaluation never does
    nonce: str = ""
    # What the records name as the pack that made them; hashed before the first phase runs.
    pack: str = field(default_factory=lambda: pack_hash(PACK))

    @property
    def description(self) -> Description:
        return self.deployment.description

    @cached_property
    def model(self) -> Subject:
        """The deployed model."""
        config = load_config(Path(self.description.model_dir), self.description.accepted_keys)
        return self._subject("model", self.description.synthetic, config, self.deployment.choices())

    @cached_property
    def fixture(self) -> Subject:
        """The pack's own fixture model, which every deployment also runs: synthetic weights."""
        folder = self.cache / "fixture"
        write_fixture(folder)
        return self._subject("fixture", True, load_config(folder), fixture_choices(self.deployment.choices()))

    def take_choices(self) -> None:
        """Go on with the choices that the deployment has accepted by now."""
        choices = self.deployment.choices()
        for name, wanted in (("model", choices), ("fixture", fixture_choices(choices))):
            subject = self.__dict__.get(name)
            if subject is not None and subject.choices != wanted:
                self.__dict__[name] = subject.with_choices(wanted)

    def _subject(self, name: str, synthetic: bool, config: ModelConfig, choices: Choices) -> Subject:
        return Subject(
            name, synthetic, config, open_weights(config), choices, self.device, self.cache, self.progress, self.nonce
        )
