# SPDX-License-Identifier: Apache-2.0
"""The rounding oracle in the device's place, on a subject's own weights and the tokens of a gate: for judge.own_limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from judge.gates import Teacher
from judge.measure_models import Run as Tokens
from judge.measure_models import run_block, run_model
from judge.measurement import Figures, figures_of
from judge.model_faults import PLANT, Setting
from judge.own_limits import HONEST, Run
from judge.policy import Limits
from judge.rounding_oracle import PRECISIONS
from pipeline.context import Subject
from pipeline.texts import prompt_ids, text_ids


def block_run(subject: Subject, layer: int, precision: str, want: Mapping[str, np.ndarray], limits: Limits) -> Run:
    """Phase 2's gate on one block. want: the oracle's taps, the block's input among them, as the device is judged by."""
    honest = replace(_setting(subject, precision), layer=layer)

    def run(fault: str) -> Figures:
        setting = PLANT[fault](honest) if fault else honest
        return figures_of(run_block(setting, layer, dict(want), precision, limits), honest=fault == HONEST)

    return run


def model_run(
    subject: Subject, limits: Limits, *, texts: Mapping[int, int], greedy: Mapping[int, int], precision: str = "mixed"
) -> Run:
    """The gate of phase 3 or 7.

    Args:
        texts, greedy: index of a text or prompt -> positions or tokens that the gate looks at, the longest first. A planted
            fault runs on the shortest of each: a worst place over fewer positions is smaller, so its value stays honest.
    """
    tokens = Tokens(
        tuple(np.asarray(text_ids(subject, index, count + 1)) for index, count in texts.items()),
        tuple(np.asarray(prompt_ids(subject, index)) for index in greedy),
    )
    honest = _setting(subject, precision)
    every = (tuple(texts.values()), tuple(greedy.values()))
    few = ((min(every[0]),), (min(every[1]),))

    def run(fault: str) -> Figures:
        setting, sizes = (PLANT[fault](honest), few) if fault else (honest, every)
        subject.progress(
            f"rounding oracle, {fault or 'honest'}: {sum(sizes[0]) + sum(sizes[1])} positions of the {subject.name}"
        )
        found = run_model(_teacher(subject), setting.decoder(), tokens, *sizes, limits)
        return figures_of(found, honest=fault == HONEST)

    return run


def _teacher(subject: Subject) -> Teacher:
    def logits(ids: Sequence[int]) -> np.ndarray:
        return subject.logits([int(token) for token in ids])

    return logits


def _setting(subject: Subject, precision: str) -> Setting:
    """The subject as it is planned, without the layers that a partial deployment leaves out."""
    config = replace(subject.config, num_hidden_layers=subject.layers)
    return Setting(config, subject.weights, PRECISIONS[precision], layer=min(1, subject.layers - 1))
