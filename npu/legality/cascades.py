# SPDX-License-Identifier: Apache-2.0
"""Cascades: 512-bit streams from a core to its southern or eastern neighbour.

Rules: both ends are cores and adjacent (verifier of CascadeFlowOp); the input comes from the north or west
and the output goes south or east (verifier of ConfigureCascadeOp); a core has one input and one output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from npu.array import SOURCES, Array
from npu.legality.violation import Violation
from npu.program import DeviceProgram, Program


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Cascades that the array does not have."""
    for source, dest in device.cascades:
        reach = array.cascade_reach(source)
        if dest not in reach:
            yield Violation(
                limit="reach of a cascade",
                asked=f"{source} to {dest}",
                available=", ".join(map(str, sorted(reach))) or "none from there",
                where=f"@{device.name}, cascade",
                source=SOURCES["cascade_reach"],
                change="place the receiver south or east of the sender",
            )
    for end, tiles in (("output", (s for s, _ in device.cascades)), ("input", (d for _, d in device.cascades))):
        for tile, count in Counter(tiles).items():
            if count > 1:
                yield Violation(
                    limit=f"cascade {end}s of a core",
                    asked=count,
                    available=1,
                    where=f"@{device.name}, {tile}",
                    source=SOURCES["cascade_reach"],
                    change="chain the cores instead, each to the next",
                )
