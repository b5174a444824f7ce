# SPDX-License-Identifier: Apache-2.0
"""The cores' side of the twin: which compiled function a name means, and each core's registers and counters."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from npu.device import DeviceFault
from npu.program import DeviceProgram, KernelFunction, MemRef, TileId
from npu.twin.hostcc import CoreState, KernelLibrary
from npu.twin.scalar_ops import View
from npu.twin.tables import IMMEDIATE

MAX_ARGUMENTS = 16
COUNTERS = tuple(name for name, kind in CoreState._fields_ if kind is ctypes.c_uint64)
_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)


@dataclass(frozen=True)
class BoundFunction:
    """A kernel function of a device: its declaration and its compiled code. `key` addresses the library's content."""

    declaration: KernelFunction
    address: int
    call_address: int
    key: str


def bind_functions(device: DeviceProgram, libraries: Mapping[str, KernelLibrary]) -> dict[str, BoundFunction]:
    """Every declared function of `device`, found in the library that its `link_with` names.

    libraries: by object file name, as the text spells it.
    """
    bound = {}
    for function in device.functions:
        name = function.link_with
        if name is None or name not in libraries:
            raise DeviceFault(
                f"@{function.name} of @{device.name} links with {name!r}; the artifact has {sorted(libraries)}. "
                "Give the function a link_with and add its KernelObject to the artifact"
            )
        library = libraries[name]
        bound[function.name] = BoundFunction(
            function, library.address(function.name), library.call_address, library.path.stem
        )
    return bound


class CoreStates:
    """The state of every core of a device, contiguous, so that all counters are read at once."""

    def __init__(self, tiles: tuple[TileId, ...], watch: int = 0) -> None:
        """watch: what each state's kernel is watched by, see kernel_guard.py; 0 for nobody."""
        self.tiles = tiles
        self._states = (CoreState * max(1, len(tiles)))()
        for state in self._states:
            state.watch = watch
        self.address = ctypes.addressof(self._states)
        self.stride = ctypes.sizeof(CoreState)
        raw = np.frombuffer(self._states, np.uint8).reshape(max(1, len(tiles)), self.stride)
        first = getattr(CoreState, COUNTERS[0]).offset
        self._counters = raw[:, first : first + 8 * len(COUNTERS)].view(np.uint64)
        self._registers = raw[:, :8].view(np.uint32)

    def reset_registers(self) -> None:
        """Rounding floor, saturation none: what a configured core starts with."""
        self._registers[:] = 0

    def take_counters(self) -> np.ndarray:
        """(cores, len(COUNTERS)) uint64 since the last call."""
        values = self._counters.copy()
        self._counters[:] = 0
        return values

    def pointer(self, core: int) -> int:
        return self.address + core * self.stride

    def state(self, core: int) -> CoreState:
        """One core's registers, counters, and why its last kernel ended."""
        return self._states[core]

    def rounding(self, core: int) -> int:
        return int(self._registers[core, 0])


Argument = View | int


class PreparedCall:
    """A kernel call whose words are laid out once.

    places: per argument (region, byte in it), or (IMMEDIATE, value) of an integer, as a schedule stores them.
    """

    __slots__ = ("address", "call", "count", "memories", "places", "words")

    def __init__(self, function: BoundFunction, arguments: tuple[Argument, ...], core: TileId) -> None:
        name = function.declaration.name
        declared = function.declaration.arguments
        if len(arguments) != len(declared) or len(arguments) > MAX_ARGUMENTS:
            raise DeviceFault(
                f"{core} calls @{name} with {len(arguments)} arguments; it declares {len(declared)} (at most {MAX_ARGUMENTS})"
            )
        values, places, memories = [], [], []
        for position, (given, wanted) in enumerate(zip(arguments, declared, strict=True)):
            if type(given) is View:
                if type(wanted) is not MemRef or given.byte_offset + wanted.nbytes > given.memory.nbytes:
                    raise _refuse_argument(name, core, position, given, wanted)
                values.append(given.pointer)
                places.append((given.memory.region, given.memory.base + given.byte_offset))
                memories.append(given.memory)
            else:
                if type(wanted) is MemRef:
                    raise _refuse_argument(name, core, position, given, wanted)
                values.append(int(given) & 0xFFFFFFFFFFFFFFFF)
                places.append((IMMEDIATE, int(given)))
        self.places = tuple(places)
        self.memories = tuple(dict.fromkeys(memories))
        self.words = (ctypes.c_uint64 * max(1, len(values)))(*values)
        self.count = len(values)
        self.address = function.address
        self.call = _CALL(function.call_address)


def _refuse_argument(name: str, core: TileId, position: int, given: Argument, wanted: MemRef | str) -> DeviceFault:
    if isinstance(wanted, MemRef) and isinstance(given, View):
        return DeviceFault(
            f"{core} calls @{name}: argument {position} is declared as {wanted} ({wanted.nbytes} bytes), but "
            f"{given.memory} has {given.memory.nbytes - given.byte_offset} bytes from byte {given.byte_offset}"
        )
    found = f"a view of {given.memory}" if isinstance(given, View) else given
    return DeviceFault(f"{core} calls @{name}: argument {position} is {found}, declared as {wanted}")
