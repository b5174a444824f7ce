# SPDX-License-Identifier: Apache-2.0
"""One twin for a test run: compiled kernels and schedules are kept in .cache/tests, under content addresses."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from npu.twin.device import TwinDevice

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "tests"


@cache
def twin() -> TwinDevice:
    """The shared twin; tiers as in production."""
    return TwinDevice(CACHE / "twin")
