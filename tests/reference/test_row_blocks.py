# SPDX-License-Identifier: Apache-2.0
"""Threads change the time of the oracle and no bit of its values."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from reference.oracle import Decoder, load_config, open_weights, row_blocks
from reference.oracle.row_blocks import for_row_blocks, free_cores
from tests.stand_ins.models import write_fixture_llama


@pytest.mark.parametrize("busy", [0, 1, 1000])
def test_each_row_is_done_once_on_a_free_and_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch, busy: int) -> None:
    monkeypatch.setattr(row_blocks, "others_running", lambda: busy)
    counts, lock = np.zeros(103, int), threading.Lock()

    def work(start: int, stop: int) -> None:
        with lock:
            counts[start:stop] += 1

    with free_cores(103):
        for_row_blocks(103, 10, work)
    assert (counts == 1).all()


def test_an_error_in_a_block_is_not_lost() -> None:
    def work(start: int, _stop: int) -> None:
        if start == 0:
            raise ValueError("block 0")

    with free_cores(64), pytest.raises(ValueError, match="block 0"):
        for_row_blocks(64, 8, work)


def test_values_are_the_same_on_a_busy_machine_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(write_fixture_llama(tmp_path))
    decoder = Decoder(config, open_weights(config))
    ids = np.random.default_rng(1).integers(0, 512, 150)

    def run(busy: int) -> np.ndarray:
        monkeypatch.setattr(row_blocks, "others_running", lambda: busy)
        return np.concatenate([decoder.prefill(ids), [decoder.decode(token) for token in (1, 2, 3)]])

    assert np.array_equal(run(0), run(1000))


def test_the_threads_of_blas_are_given_back() -> None:
    before = row_blocks._openblas().threads
    with free_cores(1), free_cores(100):
        pass
    assert row_blocks._OpenBLAS().threads == before
