# SPDX-License-Identifier: Apache-2.0
"""Four tasks wait beside the running one; what shortens a queue, and what does not."""

from dataclasses import replace

import pytest

from npu.legality import Severity
from npu.legality.task_queues import pool_bytes
from npu.program import ArgumentSlice, AwaitTask, DeviceProgram, FreeTask, MemRef, Run
from tests.npu.legality.programs import (
    ARGUMENT,
    SHIM,
    design,
    feed,
    findings,
    into,
    one_round,
    out_of,
    program,
    sequence,
    transfer,
)

A, B, C = out_of(SHIM, 0), out_of(SHIM, 1), into(SHIM, 0)
FULL = 4096  # elements of a task: 16 elements of the FIFO, far more than its pool holds


def queue(*instructions, device=None):
    """Severities of the task queue findings."""
    whole = replace(device or design(), sequences=(sequence(*instructions),))
    return [v.severity for v in findings(whole) if v.limit == "task queue"]


def feeds(count, elements=FULL, first=0, channel=A, free=False):
    steps = []
    for n in range(first, first + count):
        steps += feed(n, channel, transfer(elements), issue_token=False)
        steps += [FreeTask(n)] * free
    return steps


def test_one_runs_and_four_wait():
    assert Severity.ERROR not in queue(*feeds(5))
    assert queue(*feeds(6)) == [Severity.ERROR]


def test_outputs_queue_too():
    outputs = [step for n in range(6) for step in feed(n, C, transfer(256))]
    assert queue(*outputs[:10]) == []
    assert queue(*outputs) == [Severity.ERROR]


def test_a_free_does_not_shorten_a_queue():
    assert queue(*feeds(6, free=True)) == [Severity.ERROR]


def test_an_await_proves_the_oldest_token_and_all_before_it():
    tokens = [step for n in range(12) for step in (*feed(n, C, transfer(256)), *([AwaitTask(n)] if n % 4 == 3 else []))]
    # Awaiting only every fourth takes one token a time: three stay behind in each round.
    assert queue(*tokens) == [Severity.ERROR]
    each = [step for n in range(12) for step in (*feed(n, C, transfer(256)), AwaitTask(n))]
    assert queue(*each) == []


def test_tokens_of_all_four_outputs_are_awaited():
    steps = []
    for batch in range(3):
        numbers = range(4 * batch, 4 * batch + 4)
        steps += [step for n in numbers for step in feed(n, C, transfer(256))] + [AwaitTask(n) for n in numbers]
    assert queue(*steps) == []


def ping_pong(rounds):
    """Output first, then its two inputs; the output of the round before is awaited: mlir-aie's GEMM loop."""
    steps = []
    for n in range(rounds):
        steps += feed(10 * n, C, transfer(256))
        steps += feed(10 * n + 1, A, transfer(FULL), issue_token=False)
        steps += feed(10 * n + 2, A, transfer(FULL), issue_token=False)
        steps += feed(10 * n + 3, B, transfer(FULL), issue_token=False)
        if n:
            steps.append(AwaitTask(10 * (n - 1)))
    return steps


def test_a_ping_pong_loop_is_never_refused():
    assert Severity.ERROR not in queue(*ping_pong(30))


def test_but_within_one_run_it_is_only_shown_by_the_lenient_count():
    assert queue(*ping_pong(2)) == []
    assert Severity.WARNING in queue(*ping_pong(30))


def test_feeds_that_fit_the_pool_do_not_wait():
    """mlir-air #1822: with two L2 buffers, six feeds of one buffer each were safe and seven hung."""
    assert pool_bytes(design(), A) == 2 * 1024
    assert queue(*feeds(6, elements=256)) == []
    assert queue(*feeds(7, elements=256)) == [Severity.WARNING]
    assert queue(*feeds(8, elements=256)) == [Severity.ERROR]


@pytest.mark.parametrize("in_flight", [16])
def test_the_published_burst_of_four_by_four_feeds_is_refused(in_flight):
    # failing regime of data/npu2_timings.json: [1,1] and [2,2] ran, [4,4] hung for 6 s.
    assert Severity.ERROR not in queue(*feeds(4, elements=256))
    assert queue(*feeds(in_flight, elements=256)) == [Severity.ERROR]


# ---- over runs --------------------------------------------------------------------------------


def runs(count, inner, reconfigure=True):
    slices = (ArgumentSlice(0, 0, ARGUMENT), ArgumentSlice(0, 16384, ARGUMENT))
    steps = [Run("main", "sequence", slices, reconfigure=reconfigure or n == 0) for n in range(count)]
    entry = DeviceProgram("entry", "npu2", sequences=(sequence(*steps, arguments=(MemRef((8192,), "i32"),)),))
    whole = program(replace(inner, sequences=(sequence(*inner.sequences[0].instructions),)), entry)
    return [(v.limit, v.severity) for v in findings(whole) if "queue" in v.limit or "awaited" in v.limit]


def test_an_awaited_output_ends_the_inputs_of_its_run():
    assert runs(30, design(), reconfigure=False) == []


def test_a_run_that_awaits_nothing_leaves_its_inputs_in_the_queue():
    silent = design(sequences=(sequence(*feeds(2, free=True)),))
    assert ("task queue", Severity.ERROR) in runs(3, silent, reconfigure=False)


def test_a_configure_empties_the_queues_and_cuts_off_open_outputs():
    silent = design(sequences=(sequence(*feeds(2, free=True)),))
    assert runs(4, silent) == []
    open_output = design(sequences=(sequence(*one_round()[:4]),))
    limit = "outputs awaited before the array is configured again"
    assert set(runs(4, open_output)) == {(limit, Severity.WARNING)}


def test_a_run_that_starts_behind_open_tasks_of_the_entry_is_followed():
    """Alone the run is tidy; behind four feeds that the entry started and nobody awaited it overfills the queue."""
    slices = (ArgumentSlice(0, 0, ARGUMENT), ArgumentSlice(0, 16384, ARGUMENT))
    two_feeds = design(sequences=(sequence(*feeds(2, free=True), *feed(9, C, transfer(256)), AwaitTask(9)),))

    def entry(own):
        steps = (*feeds(own, first=100), Run("main", "sequence", slices, reconfigure=False))
        device = DeviceProgram("entry", "npu2", sequences=(sequence(*steps, arguments=(MemRef((8192,), "i32"),)),))
        return [v.severity for v in findings(program(two_feeds, device)) if v.limit == "task queue"]

    assert Severity.ERROR not in entry(3)
    assert entry(4) == [Severity.ERROR]
