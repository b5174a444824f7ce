# SPDX-License-Identifier: Apache-2.0
"""OpDesign: one operator on the array: one `aie.device`, one sequence `run`, named operands.

A design is a frozen description. `add_to` writes it into a module; `operands` say what the sequence's arguments are,
in order; `pack` brings a host array into an operand's memory layout. A design does not know where its operands live:
a Dispatch binds them to arena slices.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol

import ml_dtypes
import numpy as np

from npu.artifact import Artifact, KernelObject
from npu.mlir.build import DeviceBuilder, ModuleBuilder
from npu.program import MemRef

ROLE = Literal["weight", "in", "out"]
NUMPY_DTYPE = {"bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32), "i32": np.dtype(np.int32)}


@dataclass(frozen=True)
class Operand:
    """One argument of the design's sequence.

    role: "weight" does not change between dispatches, "in" is read, "out" is written.
    type: what the sequence sees (flat). layout: the order of the elements, in words.
    """

    name: str
    role: ROLE
    type: MemRef
    layout: str


class OpDesign(Protocol):
    """What the planner and the module writer need of a design."""

    @property
    def name(self) -> str:
        """Symbol of the design's device: kind, shape and a hash of every parameter."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The sequence's arguments, in order."""

    @property
    def objects(self) -> tuple[KernelObject, ...]:
        """The kernel objects that the device links."""

    @property
    def ddr_bytes(self) -> int:
        """Bytes that cross the shims in one dispatch, by the page's formula."""

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one dispatch, padding included."""

    def write(self, device: DeviceBuilder) -> None:
        """Write tiles, FIFOs, cores and the sequence `run` into an empty device."""


def symbol(kind: str, shape: Mapping[str, int | str], design: Any) -> str:
    """Name of a design's device, such as `gemm_m512_k576_n960_1f2e3d`; equal names mean equal parameters.

    The hash part starts with a letter: value and symbol names that end in `_<digits>` are renamed by xdsl's printer.
    """
    digest = hashlib.sha256(json.dumps(asdict(design), sort_keys=True, default=str).encode()).hexdigest()
    parts = "_".join(f"{key}{value}" for key, value in shape.items())
    return f"{kind}_{parts}_h{digest[:6]}"


def operand(design: OpDesign, name: str) -> Operand:
    """The operand called `name`; KeyError names those there are."""
    for candidate in design.operands:
        if candidate.name == name:
            return candidate
    raise KeyError(f"{design.name} has no operand {name!r}; it has {[o.name for o in design.operands]}")


@lru_cache(maxsize=256)
def single_design_artifact(design: OpDesign, target: str = "npu2") -> Artifact:
    """The artifact of one design alone, for phase 1 and for `run`: the host runs its sequence `run` directly."""
    module = ModuleBuilder()
    design.write(module.device(design.name, target=target))
    return Artifact(module.text(), design.objects, entry_device=design.name, target=target)


def padded(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that holds `value`."""
    return -(-value // multiple) * multiple


def as_bf16(values: np.ndarray) -> np.ndarray:
    """Round FP32 to bf16, ties to even (what ml_dtypes does), keeping bf16 input as it is."""
    return np.ascontiguousarray(values).astype(NUMPY_DTYPE["bf16"])
