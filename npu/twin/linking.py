# SPDX-License-Identifier: Apache-2.0
"""Links designs that others wrote: each called function to the library that has it, whatever the spelling.

mlir-aie names an object file on the function (since 2026-03-13) or on the core (before), or leaves it to the build.
Here a function goes to the library of the name that the text gives, else to the one given library that exports it.
Functions that nobody calls are left out: examples declare more than they use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from npu.program import Call, DeviceProgram, KernelFunction, Program
from npu.twin.core_body import walk
from npu.twin.hostcc import KernelLibrary
from refusal import Refusal


def link(program: Program, libraries: Mapping[str, KernelLibrary]) -> Program:
    """`program` whose functions all name one of `libraries` (by object file name).

    Raises:
        Refusal: a called function that no library, or more than one, exports.
    """
    return replace(program, devices=tuple(_link_device(device, libraries) for device in program.devices))


def _link_device(device: DeviceProgram, libraries: Mapping[str, KernelLibrary]) -> DeviceProgram:
    called = {
        statement.function: core.link_files
        for core in device.cores
        for statement in walk(core.body)
        if isinstance(statement, Call)
    }
    functions = (
        _link_function(device, function, called[function.name], libraries)
        for function in device.functions
        if function.name in called
    )
    return replace(device, functions=tuple(functions))


def _link_function(
    device: DeviceProgram, function: KernelFunction, files: tuple[str, ...], libraries: Mapping[str, KernelLibrary]
) -> KernelFunction:
    for name in (function.link_with, *files):
        if name in libraries and function.name in libraries[name].kernels():
            return replace(function, link_with=name)
    found = [name for name, library in libraries.items() if function.name in library.kernels()]
    if len(found) != 1:
        have = "; ".join(f"{name}: {', '.join(library.kernels())}" for name, library in libraries.items())
        raise Refusal(
            f"@{function.name} is called and {'no' if not found else 'more than one'} given source exports it",
            expected=f"one kernel source that exports it; given are {have or 'none'}",
            where=f"device @{device.name}",
            next_step=f'give it with --kernel or --object {function.link_with or "NAME.o"}=FILE.cc, exported by extern "C"',
        )
    return replace(function, link_with=found[0])
