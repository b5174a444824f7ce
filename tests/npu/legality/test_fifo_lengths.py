# SPDX-License-Identifier: Apache-2.0
"""What a sequence moves ends at the end of an element; both ends of a stream agree."""

from dataclasses import replace

import pytest

from npu.legality import Severity
from npu.program import BufferDescriptor, Dim, DmaProgram, MemRef, StartTask
from tests.npu.legality.programs import (
    CORE,
    MEMTILE,
    SHIM,
    design,
    feed,
    findings,
    into,
    limits,
    one_round,
    out_of,
    pool,
    ring,
    sequence,
    transfer,
)


@pytest.mark.parametrize(("elements", "legal"), [(256, True), (1024, True), (1020, False), (1025, False)])
def test_a_sequence_sends_and_takes_whole_elements(elements, legal):
    device = design(sequences=(sequence(*one_round(elements=elements)),))
    assert limits(device) == ([] if legal else ["whole FIFO elements per sequence"])


def test_the_finding_counts_elements_and_rest():
    finding = findings(design(sequences=(sequence(*one_round(elements=1020)),)))[0]
    assert (finding.asked, finding.available, finding.unit) == (4080, "a multiple of 1024", "bytes")
    assert finding.detail == "3 elements and 1008 bytes"
    assert "3072 or 4096 bytes" in finding.change
    assert "into a_mem" in finding.where


def test_transfers_of_one_channel_add_up_over_chains_repeats_and_tasks():
    halves = (*feed(0, out_of(SHIM), transfer(128), issue_token=False), *feed(1, out_of(SHIM), transfer(128)))
    assert limits(design(sequences=(sequence(*halves),))) == []
    chain = feed(0, out_of(SHIM), transfer(100), transfer(156))
    assert limits(design(sequences=(sequence(*chain),))) == []
    repeated = feed(0, out_of(SHIM), transfer(64, iteration=Dim(4, 64)), repeat_count=3)
    assert limits(design(sequences=(sequence(*repeated),))) == []
    thrice = feed(0, out_of(SHIM), transfer(64, iteration=Dim(3, 64)), repeat_count=2)
    assert limits(design(sequences=(sequence(*thrice),))) == ["whole FIFO elements per sequence"]


def test_a_task_that_is_started_twice_counts_twice():
    half = (*feed(0, out_of(SHIM), transfer(128)), StartTask(0))
    assert limits(design(sequences=(sequence(*half),))) == []
    assert limits(design(sequences=(sequence(*half[:2]),))) == ["whole FIFO elements per sequence"]


def test_a_ring_of_unlike_descriptors_stops_after_any_of_them():
    buffers = pool("p", MEMTILE, 1, MemRef((300,), "i32"))
    bds = tuple(
        BufferDescriptor(4, offset, length, buffer=buffers[0].name, next=after)
        for offset, length, after in ((0, 100, 1), (100, 200, 0))
    )
    base = design(buffers=buffers, dmas=(DmaProgram(into(MEMTILE, 0), bds),), locks=(), routes=design().routes[:1])

    def sending(elements):
        return limits(replace(base, sequences=(sequence(*feed(0, out_of(SHIM), transfer(elements))),)))

    assert sending(300) == sending(400) == []
    assert sending(200) == ["whole FIFO elements per sequence"]


def test_chains_that_end_and_padded_rings_are_not_judged():
    buffers = pool("p", MEMTILE, 1)
    ends = DmaProgram(into(MEMTILE, 0), ring(into(MEMTILE, 0), buffers, next=None).bds)
    base = design(buffers=buffers, dmas=(ends,), locks=(), routes=design().routes[:1])
    assert limits(replace(base, sequences=(sequence(*feed(0, out_of(SHIM), transfer(100))),))) == []


def test_unlike_elements_at_two_ends_are_a_warning():
    def stream(sent, taken):
        a, b = pool("a", MEMTILE, 1, MemRef((sent,), "i32")), pool("b", CORE, 1, MemRef((taken,), "i32"))
        dmas = (ring(out_of(MEMTILE, 0), a), ring(into(CORE, 0), b))
        return findings(design(buffers=a + b, dmas=dmas, locks=(), sequences=(), routes=design().routes[1:2]))

    assert stream(256, 256) == stream(1024, 256) == stream(256, 1024) == []
    assert [(v.limit, v.severity) for v in stream(96, 64)] == [("matching element sizes of a stream", Severity.WARNING)]
