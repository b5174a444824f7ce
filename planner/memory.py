# SPDX-License-Identifier: Apache-2.0
"""Arenas: the five host buffers of a deployment, and the static slices that operands are bound to."""

from __future__ import annotations

from dataclasses import dataclass, field

from npu.program import MemRef

# name -> element type. The order is the argument order of every entry sequence.
ARENAS: dict[str, str] = {"weights": "bf16", "kv": "bf16", "activations": "bf16", "params": "bf16", "output": "f32"}
ALIGNMENT = 64  # elements; at least 128 bytes, so that no slice shares a burst with another


@dataclass(frozen=True)
class Slice:
    """Part of an arena: first element and number of elements."""

    arena: str
    offset: int
    elements: int

    @property
    def type(self) -> MemRef:
        return MemRef((self.elements,), ARENAS[self.arena])

    @property
    def offset_bytes(self) -> int:
        return self.offset * self.type.element_bytes

    def part(self, offset: int, elements: int) -> Slice:
        """A slice of this slice; ValueError when it does not lie inside."""
        if offset < 0 or offset + elements > self.elements:
            raise ValueError(f"part {offset}+{elements} of a slice of {self.elements}")
        return Slice(self.arena, self.offset + offset, elements)


@dataclass
class Arenas:
    """Hands out slices in order and remembers how large each arena grew."""

    sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ARENAS, 0))

    def take(self, arena: str, elements: int) -> Slice:
        """A new slice of `elements` at the next aligned place."""
        offset = -(-self.sizes[arena] // ALIGNMENT) * ALIGNMENT
        self.sizes[arena] = offset + elements
        return Slice(arena, offset, elements)

    def types(self) -> list[MemRef]:
        """The argument types of an entry sequence; an unused arena has one aligned unit."""
        return [MemRef((max(self.sizes[name], ALIGNMENT),), dtype) for name, dtype in ARENAS.items()]
