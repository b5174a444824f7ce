# SPDX-License-Identifier: Apache-2.0
"""Metrics of an output against its oracle: numbers by hand, and every named failure."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from judge.metrics import UNBOUNDED, Failure, compare, unwritten, widen

RNG = np.random.default_rng(5)
WANT = RNG.standard_normal((8, 3, 16)).astype(np.float32)


def only_failure(got: np.ndarray, want: np.ndarray = WANT, **options: int) -> Failure:
    found = compare(got, want, **options)
    assert not found.figures, "an output with a named failure has no accuracy"
    assert len(found.failures) == 1
    return found.failures[0].name


def test_figures_by_hand():
    want = np.array([[1.0, -1.0], [2.0, -2.0]])
    got = np.array([[1.5, -1.0], [2.0, -2.0]])
    figures = {name: figure.value for name, figure in compare(got, want).figures.items()}
    rms = np.sqrt((1 + 1 + 4 + 4) / 4)
    assert figures["abs"] == pytest.approx(0.5 / rms)
    assert figures["rel"] == pytest.approx(0.5 / 6)
    assert figures["bias"] == pytest.approx(0.125 / rms)
    assert figures["gain"] == pytest.approx(0.5 / 10)
    assert figures["pearson_loss"] == pytest.approx(1 - np.corrcoef(got.ravel(), want.ravel())[0, 1])
    assert figures["abs_worst_position"] == pytest.approx(0.5)
    assert figures["rel_worst_position"] == pytest.approx(0.25)


def test_equal_outputs_have_no_loss():
    assert all(abs(figure.value) < 1e-12 for figure in compare(WANT, WANT).figures.values())


def test_signed_bias_keeps_its_sign():
    assert compare(WANT - 0.1, WANT).signed_bias == pytest.approx(-0.1 / np.sqrt((WANT**2).mean()), rel=1e-4)


def test_worst_position_and_head_are_named():
    got = WANT.copy()
    got[6, 2] *= 1.5
    figures = compare(got, WANT).figures
    assert figures["rel_worst_position"].position == (6,)
    assert figures["rel_worst_head"].position == (2,)


def test_one_bad_row_shows_at_the_worst_place_though_the_whole_looks_fine():
    want = RNG.standard_normal((4096, 64))
    got = want.copy()
    got[77] = -got[77]
    figures = compare(got, want).figures
    assert figures["pearson_loss"].value < 1e-3
    assert figures["pearson_loss_worst_position"].value == pytest.approx(2)


def test_worst_elements_are_listed_with_both_values_the_furthest_first():
    got = WANT.copy()
    places = [(0, 0, 1), (1, 2, 3), (2, 1, 0), (3, 0, 0), (4, 1, 5), (7, 2, 9)]
    for size, place in enumerate(places, start=1):
        got[place] += size
    worst = compare(got, WANT).worst
    assert [element.index for element in worst] == places[:0:-1]
    assert worst[0].got == pytest.approx(got[7, 2, 9])
    assert worst[0].want == pytest.approx(WANT[7, 2, 9])


@pytest.mark.parametrize("form", ["array", "bits"])
def test_bf16_is_read_from_arrays_and_from_bits(form: str):
    narrow = WANT.astype(ml_dtypes.bfloat16)
    got = narrow if form == "array" else narrow.view(np.uint16)
    assert np.array_equal(widen(got), narrow.astype(np.float32))


def test_bf16_output_is_close_to_its_source():
    assert compare(WANT.astype(ml_dtypes.bfloat16), WANT).figures["rel"].value < 2**-8


def test_nothing_is_a_failure():
    assert only_failure(np.zeros((0, 4)), np.zeros((0, 4))) is Failure.EMPTY
    assert only_failure(np.zeros((0, 4)), WANT) is Failure.EMPTY


def test_another_shape_is_a_failure_even_where_it_would_broadcast():
    assert only_failure(WANT[:1]) is Failure.SHAPE_MISMATCH
    assert only_failure(WANT.reshape(8, 48)) is Failure.SHAPE_MISMATCH


def test_too_few_positions_are_a_failure():
    assert only_failure(WANT, min_positions=9) is Failure.TOO_FEW


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_an_output_that_was_never_written_says_so(dtype: str):
    assert only_failure(unwritten(WANT.shape, dtype)) is Failure.UNWRITTEN


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_one_element_that_was_never_written_is_found_with_its_row(dtype: str):
    got = unwritten(WANT.shape, dtype)
    values = WANT.astype(ml_dtypes.bfloat16).view(np.uint16) if dtype == "bfloat16" else WANT
    got[:] = values
    got[5, 1, 3] = unwritten((1,), dtype)[0]
    found = compare(got, WANT)
    assert found.failures[0].name is Failure.UNWRITTEN
    assert found.failures[0].positions == (5,)


def test_a_computed_nan_is_not_taken_for_an_unwritten_one():
    got = WANT.copy()
    got[2, 0, 0] = np.nan
    assert only_failure(got) is Failure.NON_FINITE


def test_infinity_is_a_failure():
    got = WANT.copy()
    got[2, 0, 0] = np.inf
    assert only_failure(got) is Failure.NON_FINITE


def test_all_zero_is_named_even_against_a_reference_near_zero():
    assert only_failure(np.zeros_like(WANT)) is Failure.ALL_ZERO
    assert only_failure(np.zeros_like(WANT), WANT * 1e-30) is Failure.ALL_ZERO


def test_zeros_after_the_first_tiles_are_named():
    got = WANT.copy()
    got[3:] = 0
    found = compare(got, WANT)
    assert found.failures[0].name is Failure.ZERO_ROWS
    assert found.failures[0].positions == (3, 4, 5, 6, 7)


def test_a_constant_is_named():
    assert only_failure(np.full_like(WANT, 0.25)) is Failure.CONSTANT


def test_an_oracle_that_can_show_nothing_is_refused():
    assert only_failure(WANT, np.ones_like(WANT)) is Failure.ORACLE_UNUSABLE
    assert only_failure(WANT, WANT * np.nan) is Failure.ORACLE_UNUSABLE


def test_a_difference_from_a_row_of_zeros_is_unbounded():
    want = WANT.copy()
    want[4] = 0
    assert compare(WANT, want).figures["abs_worst_position"].value == UNBOUNDED
