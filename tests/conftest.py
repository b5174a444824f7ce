# SPDX-License-Identifier: Apache-2.0
"""After the tests: minutes of work per room, summed over the workers, so that a room that grows slow is seen."""

from __future__ import annotations

from collections import Counter

import pytest


def minutes_per_room(terminalreporter: pytest.TerminalReporter) -> dict[str, float]:
    """Room (folder below tests/) -> minutes that its tests worked, set-up and tear-down included; the slowest first."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                parts = report.nodeid.split("::")[0].split("/")
                seconds[parts[1] if len(parts) > 2 else parts[-1]] += report.duration
    return {room: total / 60 for room, total in seconds.most_common()}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rooms = minutes_per_room(terminalreporter)
    if sum(rooms.values()) >= 1:
        terminalreporter.section("minutes per room, summed over the workers")
        for room, minutes in rooms.items():
            terminalreporter.write_line(f"{minutes:6.1f}  {room}")
