# SPDX-License-Identifier: Apache-2.0
"""The fixture model on the twin with small buckets: prefill 64, decode 256, context 256."""

from __future__ import annotations

from functools import cache

import numpy as np

from pipeline.model_session import ModelSession
from tests.faults.deployed import subject

CONTEXT, BUCKET = 256, 64


@cache
def shared() -> ModelSession:
    """One session for a whole test process; each test starts from a prompt of its own."""
    return subject().session()


def drawn(seed: int, count: int) -> list[int]:
    """Token ids of the fixture's vocabulary."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, 512, count)]


def stepped(session: ModelSession, ids: list[int], first: int) -> np.ndarray:
    """Logits [len(ids) - first, vocab]: prefill of ids[:first], then a decode step for each token after it."""
    session.prefill(ids[:first])
    return np.stack([session.decode(token) for token in ids[first:]])
