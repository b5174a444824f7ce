# SPDX-License-Identifier: Apache-2.0
"""The same bits at every optimisation level, instruction set and compiler."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from functools import cache

import numpy as np
import pytest

from npu.twin import hostcc
from tests.npu.twin import compiled_cases as cases

EMULATED = "AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16"


def outputs(name: str, *defines: str, flags: tuple[str, ...]) -> bytes:
    """Everything that a case computes from one set of random inputs."""
    kernels = cases.library(name, *defines, flags=flags)
    rng = np.random.default_rng(31)
    if name == "elementary":
        values = cases.aligned(rng.uniform(-40, 40, 8192).astype(np.float32))
        small = cases.aligned(np.abs(values).astype(cases.BF16))
        out = cases.aligned(np.zeros((4, 8192), cases.BF16))
        for row, symbol in zip(out, ("exp2_of", "tanh_of"), strict=False):
            cases.call(kernels, symbol, values, row, 8192)
        for row, symbol in zip(out[2:], ("inv_of", "invsqrt_of"), strict=True):
            cases.call(kernels, symbol, small, row, 8192)
        return out.tobytes()
    a = cases.aligned(rng.standard_normal(512).astype(np.float32).astype(cases.BF16))
    b = cases.aligned(rng.standard_normal(512).astype(np.float32).astype(cases.BF16))
    c = cases.aligned(rng.standard_normal(64).astype(np.float32))
    cases.call(kernels, "mmul_8_8_8_bfloat16_bfloat16", a, b, c, 8)
    return c.tobytes()


@cache
def standard(name: str, *defines: str) -> bytes:
    return outputs(name, *defines, flags=("-O1",))


CASES = [("elementary",), ("mmul",), ("mmul", EMULATED)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("flags", [("-O0",), ("-O3",), ("-O2", "-march=x86-64")], ids=" ".join)
def test_optimisation_and_instruction_set_do_not_change_a_bit(case, flags):
    assert outputs(*case, flags=flags) == standard(*case)


def other_compiler() -> hostcc.Compiler | None:
    """A compiler besides the one in use."""
    used = hostcc.find_compiler().command
    commands = [(path,) for name in ("g++", "clang++") if (path := shutil.which(name))]
    if importlib.util.find_spec("ziglang") is not None:
        commands.append((sys.executable, "-m", "ziglang", "c++"))
    found = next((command for command in commands if command != used), None)
    return hostcc.compiler_of(found) if found else None


@pytest.mark.parametrize("case", CASES)
def test_another_compiler_does_not_change_a_bit(case, monkeypatch):
    other = other_compiler()
    if other is None:
        pytest.skip("only one of g++, clang++ and ziglang is installed")
    monkeypatch.setattr(hostcc, "find_compiler", lambda: other)
    assert outputs(*case, flags=("-O3", "-DOTHER_COMPILER")) == standard(*case)
