# SPDX-License-Identifier: Apache-2.0
"""Artifact: what a device gets. The same MLIR-AIE text and the same kernel sources for the twin and for `aiecc`.

An artifact is addressed by the content of everything that can change its meaning: text, kernel sources, defines,
object names, target and the versions of the tools that make it. A stale object can therefore not be linked.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from npu.kernel_source import source_sha256


@dataclass(frozen=True)
class KernelObject:
    """One compiled kernel file, named in the text by `link_with`.

    name: object file name as the text spells it, for instance "gemm_3f9a01c2.o".
    source: the C++ file. defines: macro name -> value ("" for a bare -D).
    """

    name: str
    source: Path
    defines: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def of(source: Path, defines: dict[str, str | int]) -> KernelObject:
        """Name the object after the content of source, headers and defines, so that equal names mean equal objects."""
        pairs = tuple(sorted((key, str(value)) for key, value in defines.items()))
        digest = hashlib.sha256(json.dumps([source_sha256(source), pairs]).encode()).hexdigest()[:12]
        return KernelObject(f"{source.stem}_{digest}.o", source, pairs)


@dataclass(frozen=True)
class Artifact:
    """A module text with its kernel objects.

    text: the MLIR-AIE module. objects: every object that the text links. entry_device: the device whose sequences the
    host may run ("main" in a deployment; the design itself for a single design).
    """

    text: str
    objects: tuple[KernelObject, ...]
    entry_device: str
    target: str = "npu2"

    @property
    def key(self) -> str:
        """sha256 over text, sources with their headers, defines and target (tool versions are added by the toolchain that builds it)."""
        digest = hashlib.sha256()
        parts = [self.text, self.entry_device, self.target]
        for obj in sorted(self.objects, key=lambda o: o.name):
            parts += [obj.name, source_sha256(obj.source), json.dumps(obj.defines)]
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part.encode())
        return digest.hexdigest()
