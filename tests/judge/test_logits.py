# SPDX-License-Identifier: Apache-2.0
"""Next-token metrics: numbers by hand, and what each of them alone cannot see."""

from __future__ import annotations

import math

import numpy as np
import pytest

from judge.logits import compare_logits, kl_per_position, perplexity
from judge.metrics import Failure

RNG = np.random.default_rng(6)
WANT = (3 * RNG.standard_normal((20, 40))).astype(np.float32)
NEXT = RNG.integers(0, 40, 20)


def figures(got: np.ndarray, want: np.ndarray = WANT) -> dict[str, float]:
    found = compare_logits(got, want, NEXT)
    assert not found.failures
    return {name: figure.value for name, figure in found.figures.items()}


def test_kl_by_hand():
    want = np.log([[0.5, 0.5], [0.9, 0.1]])
    got = np.log([[0.25, 0.75], [0.9, 0.1]])
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert kl_per_position(got, want) == pytest.approx([expected, 0.0])


def test_perplexity_of_uniform_logits_is_the_vocabulary():
    assert perplexity(np.zeros((5, 64)), np.arange(5)) == pytest.approx(64)


def test_perplexity_drift_by_hand():
    doubled = WANT.copy()
    doubled[np.arange(20), NEXT] += 0.7
    expected = perplexity(doubled, NEXT) / perplexity(WANT, NEXT) - 1
    assert figures(doubled)["perplexity_drift"] == pytest.approx(abs(expected))


def test_equal_logits_have_no_loss():
    assert max(figures(WANT).values()) < 1e-12


def test_top1_and_top5_count_positions():
    got = WANT.copy()
    best = WANT.argmax(axis=1)
    got[0, best[0]] = np.sort(WANT[0])[-2] - 1e-3  # second
    got[1, best[1]] = WANT[1].min() - 1  # last
    found = figures(got)
    assert found["top1_miss"] == pytest.approx(2 / 20)
    assert found["top5_miss"] == pytest.approx(1 / 20)


def test_of_equal_logits_the_first_is_chosen_as_argmax_does():
    want = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 2.0]])
    got = np.array([[2.0, 2.0, 0.0], [0.0, 2.0, 2.5]])
    found = compare_logits(got, want).figures
    assert found["top1_miss"].value == pytest.approx(1 / 2)


def test_a_shifted_head_is_seen_by_the_absolute_difference_alone():
    found = figures(WANT + 5)
    assert found["kl_max"] < 1e-6
    assert found["top1_miss"] == 0
    assert found["pearson_loss_worst_position"] < 1e-9
    assert found["logits_abs"] > 1


def test_a_scaled_head_is_seen_by_gain_and_absolute_difference_not_by_rank_or_correlation():
    found = figures(WANT / 8)
    assert found["top1_miss"] == 0
    assert found["pearson_loss_worst_position"] < 1e-9
    assert found["gain"] == pytest.approx(7 / 8)
    assert found["logits_abs"] > 1


def test_kl_max_names_the_position():
    got = WANT.copy()
    got[13] = got[13][::-1]
    assert compare_logits(got, WANT).figures["kl_max"].position == (13,)


@pytest.mark.parametrize(
    ("got", "want", "following", "failure"),
    [
        (WANT[:0], WANT[:0], NEXT[:0], Failure.EMPTY),
        (WANT[:5], WANT, NEXT, Failure.SHAPE_MISMATCH),
        (WANT, WANT, NEXT[:-1], Failure.SHAPE_MISMATCH),
        (WANT * np.nan, WANT, NEXT, Failure.NON_FINITE),
        (WANT * 0, WANT, NEXT, Failure.ALL_ZERO),
    ],
)
def test_named_failures(got: np.ndarray, want: np.ndarray, following: np.ndarray, failure: Failure):
    found = compare_logits(got, want, following)
    assert not found.figures
    assert found.failures[0].name is failure
