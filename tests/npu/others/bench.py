# SPDX-License-Identifier: Apache-2.0
"""Runs a design of this folder as `scripts/simulate.py` does, and small texts that the tests share."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np

from npu.legality import check, is_legal
from npu.mlir.load import load_program
from npu.twin.hostcc import KernelLibrary, compile_kernel
from pipeline.simulation import NUMPY, Outcome, choose, directions, simulate, to_argument
from pipeline.verbs.simulate import PRELUDE
from tests.npu.twin.compiled_cases import CACHE

FOREIGN = Path(__file__).parent / "foreign.cc"
BF16 = ml_dtypes.bfloat16


@cache
def kernels(*defines: tuple[str, str | None]) -> KernelLibrary:
    """The kernels of foreign.cc."""
    path = compile_kernel(FOREIGN, dict(defines), cache=CACHE, flags=("-O1",), prelude=PRELUDE)
    return KernelLibrary(path)


def run(
    text: str,
    *arrays: np.ndarray,
    cache_: Path,
    defines: tuple[tuple[str, str | None], ...] = (),
    sequence: str | None = None,
    device: str | None = None,
) -> tuple[list[np.ndarray], Outcome]:
    """(the outputs in order, the outcome). `arrays` are the arguments that transfers read, in order."""
    program = load_program(text)
    assert is_legal(program, house_rules=False), check(program)
    chosen, steps = choose(program, device, sequence)
    flow = directions(program, steps)
    reads = [index for index, (read, _) in enumerate(flow) if read]
    writes = [index for index, (_, write) in enumerate(flow) if write]
    inputs = {
        index: to_argument(array, steps.arguments[index], "test")[0] for index, array in zip(reads, arrays, strict=True)
    }
    needs = any(chosen_device.functions for chosen_device in program.devices)
    libraries = {"foreign.o": kernels(*defines)} if needs else {}
    outcome = simulate(program, chosen, steps, libraries, inputs, writes, cache_)
    outputs = []
    for index in writes:
        kind = steps.arguments[index].dtype
        values = outcome.outputs[index].view(NUMPY[kind])
        outputs.append(values.view(BF16).astype(np.float32) if kind == "bf16" else values)
    return outputs, outcome


def bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to bf16, as float32."""
    return np.asarray(values, np.float32).astype(BF16).astype(np.float32)
