# SPDX-License-Identifier: Apache-2.0
"""Stage: what a design has to know of a kernel. One per kernel folder, in `kernels/<name>/stage.py`.

A stage fixes a kernel's parameters, and from them gives the compiled object, the functions with their argument types,
the core memory that a worker must own beside its FIFO elements, and the work of one call. It knows nothing of tiles,
channels or shapes of whole operators: `kernels/designs/` does.

Argument types are flat (one dimension), because streams of different meaning share FIFOs of one element size; the
layout within is on the kernel's page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from npu.artifact import KernelObject
from npu.program import MemRef
from refusal import Refusal

KERNELS = Path(__file__).resolve().parent

BFP16_DEFINE = "AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16"

#: Matrix modes: exact bf16 products, or both operands quantised to bfp16ebs8 along K at eight times the rate.
MATRIX_MODES = ("bf16", "bfp16")

#: Vector instructions of one 8x8x8 mmul, as the emulation headers count them.
MMUL_OPERATIONS = {"bf16": 66, "bfp16": 6}

Argument = MemRef | str


def bf16(elements: int) -> MemRef:
    """A flat bf16 buffer."""
    return MemRef((elements,), "bf16")


def f32(elements: int) -> MemRef:
    """A flat fp32 buffer."""
    return MemRef((elements,), "f32")


def float_literal(value: float) -> str:
    """A C++ float literal that reads back as exactly fp32(value)."""
    return f"{value:.9g}f" if any(c in f"{value:.9g}" for c in ".en") else f"{value:.9g}.0f"


class Stage(ABC):
    """The interface of every kernel's stage. Subclasses are frozen dataclasses of the kernel's parameters."""

    #: folder and source name of the kernel
    name: str

    @property
    @abstractmethod
    def defines(self) -> dict[str, str | int]:
        """Macros that the source is compiled with."""

    @property
    @abstractmethod
    def functions(self) -> dict[str, tuple[Argument, ...]]:
        """Every function of the object: its arguments, memrefs or the name of an integer type."""

    @property
    def buffers(self) -> dict[str, MemRef]:
        """Core memory that a worker owns beside its FIFO elements (single, not double-buffered)."""
        return {}

    @property
    def stack_bytes(self) -> int:
        """Stack that the kernel's local arrays and spills need; 1 KiB is the array's default."""
        return 1024

    @abstractmethod
    def check(self) -> None:
        """Raise Refusal when a parameter is outside what the source supports."""

    @abstractmethod
    def macs(self, function: str) -> int:
        """Multiply-adds of one call, as the emulation headers count them (padding of the matrix unit included)."""

    @abstractmethod
    def vector_operations(self, function: str) -> int:
        """Vector instructions of one call, as the emulation headers count them (npu/twin/include/README.md)."""

    @property
    def source(self) -> Path:
        """The C++ file."""
        return KERNELS / self.name / f"{self.name}.cc"

    @property
    def object(self) -> KernelObject:
        """The compiled object, named after the content of source and defines."""
        self.check()
        return KernelObject.of(self.source, self.defines)

    def require(self, holds: bool, parameter: str, found: object, expected: str, next_step: str) -> None:
        """Refuse a parameter of this stage unless `holds`."""
        if not holds:
            raise Refusal(
                f"{parameter} = {found}",
                expected=expected,
                where=f"kernels/{self.name}/{self.name}.cc",
                next_step=next_step,
            )

    def require_multiple(self, parameter: str, found: int, of: int) -> None:
        """Refuse a size that is not a positive multiple of `of`."""
        self.require(
            found > 0 and found % of == 0,
            parameter,
            found,
            f"a positive multiple of {of}",
            f"pad {parameter} to {-(-max(found, 1) // of) * of}",
        )

    def require_one_of(self, parameter: str, found: str, choices: tuple[str, ...]) -> None:
        """Refuse a name that is not one of `choices`."""
        self.require(found in choices, parameter, repr(found), " or ".join(choices), f"choose {parameter}")

    def unknown(self, function: str) -> Refusal:
        """The error for a function that this stage does not have."""
        return Refusal(
            f"function {function}",
            expected=f"one of {', '.join(self.functions)}",
            where=f"kernels/{self.name}/stage.py",
            next_step="name a function of the stage",
        )
