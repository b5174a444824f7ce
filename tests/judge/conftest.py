# SPDX-License-Identifier: Apache-2.0
"""The pack's fixture model, its oracle, and honest deployments of it on data that no floor was measured on."""

from __future__ import annotations

import numpy as np
import pytest

from judge.fixture import write_fixture
from judge.measure_models import Probe, Run
from judge.policy import Policy, load_policy
from reference.oracle import load_config, open_weights

UNSEEN_SEED = 4242


@pytest.fixture(scope="session")
def policy() -> Policy:
    return load_policy()


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory, policy: Policy) -> Probe:
    """The fixture model on token ids of an unseen seed."""
    config = load_config(write_fixture(tmp_path_factory.mktemp("fixture")))
    rng = np.random.default_rng(UNSEEN_SEED)
    texts = tuple(rng.integers(0, config.vocab_size, count + 1) for count in policy.limits.text_positions)
    prompts = tuple(rng.integers(0, config.vocab_size, length) for length in (24, 31, 38))
    run = Run(texts, prompts)
    return Probe("fixture", config, open_weights(config), {UNSEEN_SEED: run}, (1,), False, "test")
