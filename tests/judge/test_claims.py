# SPDX-License-Identifier: Apache-2.0
"""What a chain claims: order is the order of the records, a clock is no witness, and a record out of place is named."""

from __future__ import annotations

import pytest

from judge.claims import chain_problems, clock_notes, order_problems, shape_problems
from judge.evidence import GENESIS, ChainState, Entry, Kind, Record

PHASES = (0, 1, 2)


def gate(phase: int, passed: bool = True) -> Entry:
    return Entry(Kind.GATE, f"phase-{phase}", {"passed": passed, "gates": {}})


def freeze(number: int) -> Entry:
    return Entry(Kind.FREEZE, "frozen", {"head": f"{number:064}"})


def chained(*entries: Entry, times: dict[int, str] | None = None) -> list[Record]:
    """Records whose hashes are their numbers, a minute apart, but for the times given."""
    found = []
    for i, entry in enumerate(entries):
        time = (times or {}).get(i, f"2026-01-01T00:{i:02}:00.000+00:00")
        found.append(Record(i, f"{i:064}" if i else GENESIS, time, entry, f"{i + 1:064}"))
    return found


def whole(*, before: tuple[Entry, ...] = (), times: dict[int, str] | None = None) -> list[Record]:
    entries = [*before, *(gate(phase) for phase in PHASES)]
    return chained(*entries, freeze(len(entries)), times=times)


def test_a_clock_that_was_set_back_is_noted_and_spoils_nothing() -> None:
    chain = whole(times={2: "2025-12-31T23:00:00.000+00:00"})
    assert chain_problems(ChainState(4, chain[-1].hash), chain) == []
    assert order_problems(chain, PHASES) == []
    assert clock_notes(chain) == ["the clock was set back before record 2"]


def test_an_honest_clock_needs_no_note() -> None:
    assert clock_notes(whole()) == []


def test_times_in_different_offsets_are_compared_as_moments() -> None:
    assert clock_notes(whole(times={2: "2026-01-01T03:02:00+03:00"})) == []


@pytest.mark.parametrize("time", ["yesterday", "", "2026-13-01T00:00:00+00:00", "2026-01-01T00:00:00"])
def test_a_time_that_is_none_is_a_problem(time: str) -> None:
    chain = whole(times={1: time})
    (problem,) = chain_problems(ChainState(4, chain[-1].hash), chain)
    assert "record 1" in problem


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ([gate(1), gate(0), gate(2)], "record 0 (phase-1) before phase 0"),
        ([gate(0), gate(2), gate(1)], "record 1 (phase-2) before phase 1"),
        ([gate(0), gate(0, False), gate(1), gate(0), gate(2)], "record 2 (phase-1) before phase 0"),
        ([gate(0), gate(2)], "record 1 (phase-2) before phase 1"),
    ],
)
def test_a_phase_before_the_phases_it_rests_on_is_named(entries: list[Entry], word: str) -> None:
    """What a moved record looks like once somebody has made every hash fit again; its time was only one sign of it."""
    found = order_problems(chained(*entries), PHASES)
    assert any(word in problem for problem in found), found


def test_a_phase_judged_again_is_in_order() -> None:
    entries = [gate(0, False), gate(0), gate(1), gate(0), gate(2, False), gate(2), gate(1), gate(2)]
    assert order_problems(chained(*entries), PHASES) == []


def test_a_freeze_before_the_last_phase_is_named() -> None:
    entries = [gate(0), gate(1), freeze(2), gate(2)]
    assert any("frozen before phase 2" in problem for problem in order_problems(chained(*entries), PHASES))


def test_a_gate_that_failed_again_after_the_freeze_is_no_matter_of_order() -> None:
    entries = [gate(0), gate(1), gate(2), freeze(3), gate(1, False), gate(1)]
    assert order_problems(chained(*entries), PHASES) == []


@pytest.mark.parametrize("missing", ["gate", "findings", "failures"])
def test_a_verdict_of_a_record_that_lacks_a_part_is_named(missing: str) -> None:
    verdict = {"gate": "phase1.add", "passed": True, "findings": [], "failures": []}
    verdict.pop(missing)
    entry = Entry(Kind.GATE, "phase-0", {"passed": True, "gates": {"g": verdict}})
    (problem,) = shape_problems(chained(entry))
    assert missing in problem
    assert "'g'" in problem
