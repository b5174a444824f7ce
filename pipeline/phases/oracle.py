# SPDX-License-Identifier: Apache-2.0
"""Phase 0: the FP32 oracle proves itself before anything is compared with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from judge.gates import OracleProof, judge_oracle
from judge.logits import perplexity
from judge.rounding_oracle import EXACT, RoundingDecoder
from pipeline.context import PhaseContext, Subject
from pipeline.phases.outcome import Outcome
from pipeline.texts import text_ids
from reference.oracle.keys import read_json_object

INDEPENDENT_POSITIONS = 48
TEXT_POSITIONS = 512


def run(ctx: PhaseContext) -> Outcome:
    """Judge the oracle of the model and of the fixture."""
    outcome = Outcome()
    for subject in (ctx.fixture, ctx.model):
        ctx.progress(f"phase 0: oracle of the {subject.name}")
        proof = prove(subject)
        outcome.add(subject.name, judge_oracle(subject.thresholds, proof, ctx.policy), subject, on_device=False)
    return outcome


def prove(subject: Subject) -> OracleProof:
    """What can be shown about an oracle without another model: see judge.gates.OracleProof."""
    # No more tokens than are looked at: an evaluation draws windows, and long ones would all be nearly the same.
    ids = text_ids(subject, 0, INDEPENDENT_POSITIONS)
    decoder = subject.decoder
    config = subject.config
    independent = RoundingDecoder(config, subject.weights, EXACT).logits(ids)
    raw = read_json_object(config.model_dir / "config.json")
    # load_config and open_weights refuse what nothing consumes, so nothing is left once they return.
    return OracleProof(
        keys_total=len(raw),
        keys_left=(),
        tensors_total=len(subject.weights.names),
        tensors_left=(),
        identity={steps: _identity(subject, ids, steps) for steps in (1, 2, 17)},
        independent=(decoder.prefill(ids, cache=decoder.new_cache()), independent),
        perplexity=_perplexity(subject) if not subject.synthetic else None,
    )


def _identity(subject: Subject, ids: list[int], steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits of prefill(n + k) and of prefill(n) followed by k decode steps: the last k rows of both."""
    decoder, first = subject.decoder, 24
    whole = decoder.prefill(ids[: first + steps], cache=decoder.new_cache())
    cache = decoder.new_cache()
    decoder.prefill(ids[:first], cache=cache)
    stepped = [decoder.decode(token, cache=cache) for token in ids[first : first + steps]]
    return whole[first:], np.stack(stepped)


def _perplexity(subject: Subject) -> float:
    """Of the shipped text in an evaluation as well: the policy's bound is of that text, not of any window."""
    ids, decoder = text_ids(replace(subject, nonce=""), 0, TEXT_POSITIONS + 1), subject.decoder
    logits = decoder.prefill(ids[:-1], cache=decoder.new_cache())
    return perplexity(logits, np.asarray(ids[1:]))
