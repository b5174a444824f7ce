# SPDX-License-Identifier: Apache-2.0
"""Runs every resource's rules over every device of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from npu.array import ARRAYS, SOURCES, Array
from npu.legality import (
    access_patterns,
    alignment,
    argument_offsets,
    buffer_descriptors,
    cascades,
    core_access,
    core_loops,
    data_memory,
    dma_channels,
    fifo_lengths,
    geometry,
    link_regions,
    locks,
    packets,
    program_memory,
    sequence_bds,
    stream_switch,
    task_queues,
    tasks,
    toolchain,
)
from npu.legality.listing import listing
from npu.legality.violation import Severity, Violation
from npu.program import DeviceProgram, Program
from refusal import Refusal

Rule = Callable[[Program, DeviceProgram, Array], Iterator[Violation]]

# Geometry comes first: the others count on tiles that exist.
RESOURCES: dict[str, Rule] = {
    "geometry": geometry.check,
    "data memory": data_memory.check,
    "program memory": program_memory.check,
    "core loops": core_loops.check,
    "core access": core_access.check,
    "alignment": alignment.check,
    "locks": locks.check,
    "DMA channels": dma_channels.check,
    "buffer descriptors": buffer_descriptors.check,
    "access patterns": access_patterns.check,
    "stream switch": stream_switch.check,
    "packets": packets.check,
    "cascades": cascades.check,
    "FIFO lengths": fifo_lengths.check,
    "link regions": link_regions.check,
    "tasks": tasks.check,
    "sequence BDs": sequence_bds.check,
    "task queues": task_queues.check,
    "argument offsets": argument_offsets.check,
    "toolchain": toolchain.check,
}


def check(program: Program) -> list[Violation]:
    """Every finding in `program`, errors first, each once, in the order of the devices and resources."""
    found: dict[Violation, None] = {}
    for device in program.devices:
        for violation in _check_device(program, device):
            found.setdefault(violation)
    return sorted(found, key=lambda v: list(Severity).index(v.severity))


def require_legal(program: Program, *, house_rules: bool = True) -> list[Violation]:
    """Refuse `program` if it has errors (or, with `house_rules`, findings against them); return what is left.

    Args:
        program: any lowered module.
        house_rules: True for designs of this pack. Designs that others wrote may do what the compiler takes with a
            warning, and are checked with False.

    Raises:
        Refusal: with every finding in `found`; those that differ by the tile alone share a line.
    """
    findings = check(program)
    against = _against(findings, house_rules)
    if not against:
        return findings
    listed = "\n".join(f"  {line}" for line in listing(against))
    count = f"{len(against)} limit{'s' if len(against) > 1 else ''} exceeded"
    raise Refusal(
        f"{count}\n{listed}\n",
        expected="a design within the limits of the array",
        where=f"module {program.text_sha256[:12]}",
        next_step="; ".join(dict.fromkeys(v.change for v in against)),
    )


def is_legal(program: Program, *, house_rules: bool = True) -> bool:
    """Whether `require_legal` would let `program` pass; warnings do not count against it."""
    return not _against(check(program), house_rules)


def _against(findings: list[Violation], house_rules: bool) -> list[Violation]:
    refused = {Severity.ERROR, Severity.HOUSE} if house_rules else {Severity.ERROR}
    return [v for v in findings if v.severity in refused]


def _check_device(program: Program, device: DeviceProgram) -> Iterator[Violation]:
    array = ARRAYS.get(device.target)
    if array is None:
        yield Violation(
            limit="device",
            asked=device.target,
            available=", ".join(ARRAYS),
            where=f"@{device.name}",
            source=SOURCES["columns"],
            change="name one of the supported devices",
        )
        return
    outside = list(geometry.check(program, device, array))
    if outside:
        yield from outside
        return
    for name, rule in RESOURCES.items():
        if name != "geometry":
            yield from rule(program, device, array)
