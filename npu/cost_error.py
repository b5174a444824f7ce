# SPDX-License-Identifier: Apache-2.0
"""How far the cost model is from published timings, computed from npu/data/npu2_points.json and from nothing else.

Each point is the fastest timing that others published for an operator at a shape which our designs express, and the Flow of our
own design at that shape (`python -m pipeline.cost_points` wrote both). The designs are not theirs: tiles, core counts and
kernels differ, and so does the machine. So the error is one of the model and of the difference between designs together.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from npu.cost import CoreWork, Flow, Work, predict_flow
from npu.cost_rates import STANDALONE_DISPATCH
from refusal import Refusal

POINTS_PATH = Path(__file__).with_name("data") / "npu2_points.json"


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published timing, and the counts of our design at its shape.

    calls ... ddr_bytes: as in `npu.cost.Work`; instructions and fill_bytes: as in `npu.cost.Flow`.
    """

    kernel: str
    shape: str
    design: str
    published_us: float
    regime: str
    date: str
    calls: float
    vector_ops: float
    loads: float
    stores: float
    channel: tuple[str, float]
    column: tuple[str, float]
    ddr_bytes: float
    instructions: tuple[float, float]
    fill_bytes: float

    @property
    def flow(self) -> Flow:
        core = CoreWork((0, 0), self.calls, self.vector_ops, self.loads, self.stores)
        return Flow(Work(core, self.channel, self.column, self.ddr_bytes), self.instructions, self.fill_bytes)

    @property
    def predicted_us(self) -> float:
        """The prediction of a stand-alone launch, as the published harnesses take it."""
        return 1e6 * predict_flow(self.design, self.flow, launch=STANDALONE_DISPATCH).seconds

    @property
    def error(self) -> float:
        """predicted / published - 1."""
        return self.predicted_us / self.published_us - 1.0


class Points(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: where the timings were published, and the points."""

    source: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class ErrorStatement:
    """Median and largest |predicted / published - 1| of a group of points, and the largest one's shape."""

    kernel: str
    count: int
    median: float
    largest: float
    worst: str

    def line(self) -> str:
        """The statement for people."""
        return (
            f"{self.kernel:<12}{self.count:>3} points: error {100 * self.median:.0f}% median, "
            f"{100 * self.largest:.0f}% at most ({self.worst})"
        )


@cache
def load_points(path: Path = POINTS_PATH) -> Points:
    """Read the points.

    Raises:
        Refusal: the file does not fit, names no source, or has no points.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Points)
    except (OSError, msgspec.DecodeError) as error:
        raise Refusal(f"{error}", expected="published points", where=str(path),
                      next_step="python -m pipeline.cost_points TIMINGS.json") from error  # fmt: skip
    if not found.source or not found.points:
        raise Refusal(f"source {found.source!r}, {len(found.points)} points", expected="both", where=str(path))
    return found


def cost_error(path: Path = POINTS_PATH) -> tuple[ErrorStatement, ...]:
    """The error by operator, and over all points as "all"."""
    groups: dict[str, list[Point]] = {}
    for point in load_points(path).points:
        for kernel in (point.kernel, "all"):
            groups.setdefault(kernel, []).append(point)
    every = groups.pop("all")
    return tuple(_statement(kernel, points) for kernel, points in [*groups.items(), ("all", every)])


def _statement(kernel: str, points: list[Point]) -> ErrorStatement:
    worst = max(points, key=lambda point: abs(point.error))
    errors = [abs(point.error) for point in points]
    where = f"{worst.kernel} {worst.shape}: {worst.predicted_us:.0f} us, published {worst.published_us:.0f}"
    return ErrorStatement(kernel, len(points), statistics.median(errors), max(errors), where)
