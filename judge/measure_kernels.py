# SPDX-License-Identifier: Apache-2.0
"""Floors and faults of the kernel gates: every shape of `kernel_cases`, every seed, through the shipped comparison."""

from __future__ import annotations

import numpy as np

from judge.gates import Dispatch, gather_kernel
from judge.kernel_cases import SHAPES, Shape, answer, draw
from judge.kernel_floors import ELSEWHERE, FAULTS, run, shows
from judge.measurement import Measurement, figures_of
from judge.policy import Limits

SEEDS = tuple(range(8))
FAULT_SEEDS = 2


def measure_kernel(kernel: str, limits: Limits, seeds: tuple[int, ...] = SEEDS) -> Measurement:
    """Floors over all seeds; faults over the first two."""
    measured = Measurement(f"phase1.{kernel}", seeds, "random operands", elsewhere=ELSEWHERE.get(kernel, ()))
    for shape in SHAPES[kernel]:
        for seed in seeds:
            dispatches = kernel_dispatches(kernel, shape, seed, limits.kernel_dispatches)
            measured.add_floor(figures_of(gather_kernel(dispatches, limits), honest=True))
        for fault in FAULTS[kernel]:
            if shows(fault, shape):
                for seed in seeds[:FAULT_SEEDS]:
                    dispatches = kernel_dispatches(kernel, shape, seed, limits.kernel_dispatches, fault)
                    measured.add_fault(fault, figures_of(gather_kernel(dispatches, limits)))
    return measured


def kernel_dispatches(kernel: str, shape: Shape, seed: int, count: int, fault: str = "") -> list[Dispatch]:
    """Dispatches of the judge's own model of a kernel."""
    rounds = []
    for index in range(count):
        operands = draw(kernel, shape, 1000 * seed + index)
        rounds.append(Dispatch(run(kernel, operands, fault), answer(kernel, operands).astype(np.float32)))
    return rounds
