# SPDX-License-Identifier: Apache-2.0
"""A kernel compiled for the host, called with guarded, NaN-filled memory: what every kernel test stands on.

Before each call the core's rounding register is set to floor, as a kernel that ran before may have left it. After
each call the guard bands around every argument must be as they were. A fault is planted by editing the C++ source.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import ml_dtypes
import numpy as np

from kernels.stage import Stage
from npu.twin.hostcc import CoreState, KernelLibrary, compile_kernel
from tests.stand_ins.npu_tools import flattened

CACHE = Path(__file__).parents[2] / ".cache" / "test-kernels"
BF16 = np.dtype(ml_dtypes.bfloat16)
FLOOR = 0
GUARD = 64  # bytes before and after; also the alignment
PATTERN = 0xA5


@dataclass(frozen=True)
class Memory:
    """An array of a core's memory, with guard bands around it."""

    values: np.ndarray
    raw: np.ndarray

    @property
    def address(self) -> int:
        return self.values.ctypes.data

    @property
    def f64(self) -> np.ndarray:
        """The values as FP64."""
        return self.values.astype(np.float64)

    def guards_hold(self) -> bool:
        """Whether nobody wrote outside the array."""
        start = self.address - self.raw.ctypes.data
        end = start + self.values.nbytes
        return bool(
            (self.raw[start - GUARD : start] == PATTERN).all() and (self.raw[end : end + GUARD] == PATTERN).all()
        )


def memory(shape: int | tuple[int, ...], dtype: np.dtype | type = BF16) -> Memory:
    """Memory that nobody has written: NaN."""
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.full(nbytes + 3 * GUARD, PATTERN, np.uint8)
    start = GUARD + (-(raw.ctypes.data + GUARD)) % GUARD
    values = raw[start : start + nbytes].view(dtype).reshape(shape)
    values[...] = np.nan
    return Memory(values, raw)


def placed(values: np.ndarray, dtype: np.dtype | type = BF16) -> Memory:
    """Memory that holds `values`, rounded to `dtype`."""
    out = memory(values.shape, dtype)
    out.values[...] = values
    return out


def random(rng: np.random.Generator, *shape: int, scale: float = 1.0, offset: float = 0.0) -> Memory:
    """bf16 memory with normally distributed values."""
    return placed(rng.standard_normal(shape) * scale + offset)


class Compiled:
    """A stage's object, compiled for the host."""

    def __init__(self, stage: Stage, edits: tuple[tuple[str, str], ...] = ()) -> None:
        self.stage = stage
        self.library = _library(stage, edits)
        self.core = CoreState()

    def __call__(self, function: str, *arguments: Memory | int) -> dict[str, int]:
        """Call a kernel function; returns what the call added to each counter."""
        self.core.rounding = FLOOR
        before = self.core.counters()
        words = [a.address if isinstance(a, Memory) else a for a in arguments]
        self.library.call(function, self.core, *words)
        for index, argument in enumerate(arguments):
            if isinstance(argument, Memory):
                assert argument.guards_hold(), f"{function} wrote outside argument {index}"
        return {name: value - before[name] for name, value in self.core.counters().items()}

    def out(self, function: str, index: int) -> Memory:
        """Unwritten memory of the type that the stage gives argument `index` of a function."""
        ref = self.stage.functions[function][index]
        return memory(ref.shape, {"bf16": BF16, "f32": np.float32}[ref.dtype])


@lru_cache(maxsize=64)
def _library(stage: Stage, edits: tuple[tuple[str, str], ...]) -> KernelLibrary:
    """Compiled with -O1, which is quicker and, by the headers' rules, gives the same bits as -O3."""
    source = stage.source
    if edits:
        text = flattened(source)
        for old, new in edits:
            assert old in text, f"the fault {old!r} -> {new!r} no longer applies to {source.name}"
            text = text.replace(old, new)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        source = CACHE / "faults" / f"{stage.name}_{digest}.cc"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(text)
    defines = {name: str(value) for name, value in stage.defines.items()}
    return KernelLibrary(compile_kernel(source, defines, cache=CACHE, flags=("-O1",)))


def relative_error(y: np.ndarray, reference: np.ndarray) -> float:
    """sum |y - r| / sum |r|; infinite when y is not finite everywhere."""
    if not np.isfinite(y.astype(np.float64)).all():
        return float("inf")
    return float(np.abs(y - reference).sum() / np.abs(reference).sum())


def bias(y: np.ndarray, reference: np.ndarray) -> float:
    """Signed mean error over the mean size: 0 but for chance when rounding is to nearest."""
    return float((y - reference).mean() / np.abs(reference).mean())


def multiply_adds(counters: dict[str, int]) -> int:
    """All multiply-adds that a call did on the vector unit."""
    return counters["mul_adds_vector"] + counters["matrix_macs"]
