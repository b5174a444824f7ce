# SPDX-License-Identifier: Apache-2.0
"""Findings as people read them: what is the same in many places is one line, with the places that it holds for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from npu.legality.violation import Violation

_TILE = re.compile(r"\b(core|memtile|shim)\((\d+),(\d+)\)")
# Numbers that tell places apart: of a tile, of a line, and inside names such as @w_c2r3. Amounts stand on their own.
_PLACE = re.compile(r"(?<=[A-Za-z_(:,])\d+")


def listing(findings: Sequence[Violation]) -> list[str]:
    """A line for each finding, numbered; findings that differ by their place alone share the line of the first of them."""
    groups: dict[Violation, list[Violation]] = {}
    for finding in findings:
        groups.setdefault(_kind(finding), []).append(finding)
    return [f"{n}. {_line(alike)}" for n, alike in enumerate(groups.values(), start=1)]


def _kind(finding: Violation) -> Violation:
    """The finding without its place: equal for all that share a line."""
    asked = _PLACE.sub("*", finding.asked) if isinstance(finding.asked, str) else finding.asked
    return replace(finding, where=_PLACE.sub("*", finding.where), asked=asked, detail="")


def _line(alike: list[Violation]) -> str:
    first, tiles, others = alike[0], _tiles(alike), ""
    if tiles:
        first = replace(first, where=_TILE.sub(tiles, first.where, count=1))
    elif len(alike) > 1:
        others = f"; the same in {len(alike) - 1} more place(s), the last {alike[-1].where}"
    return f"{first}{others} ({first.basis}: {first.source})"


def _tiles(alike: list[Violation]) -> str:
    """What stands for the first tile in the line, where the findings differ by nothing else: ranges for a full rectangle.

    "" for a single finding, and for findings that are not told apart by one tile.
    """
    found = [_TILE.search(finding.where) for finding in alike]
    if len(alike) == 1 or None in found or len({_TILE.sub("", v.where, count=1) for v in alike}) > 1:
        return ""
    if len({str(finding.asked) for finding in alike}) > 1:
        return ""
    kind, places = found[0][1], {(int(tile[2]), int(tile[3])) for tile in found}
    columns, rows = ((min(axis), max(axis)) for axis in zip(*places, strict=True))
    if len(places) == (columns[1] - columns[0] + 1) * (rows[1] - rows[0] + 1):
        ranges = ",".join(str(low) if low == high else f"{low}..{high}" for low, high in (columns, rows))
        return f"{len(places)} tiles {kind}({ranges})"
    return f"{len(places)} tiles " + " ".join(f"{kind}({column},{row})" for column, row in sorted(places))
