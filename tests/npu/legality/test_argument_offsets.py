# SPDX-License-Identifier: Apache-2.0
"""Offsets below 4 GiB, transfers and slices within their arguments."""

from dataclasses import replace

from npu.program import ArgumentSlice, DeviceProgram, Dim, MemRef, Run
from tests.npu.legality.programs import ARGUMENT, design, findings, limits, program, sequence, transfer, with_task

OFFSET = "byte offset into an argument"
BOUNDS = "bounds of the argument"
HUGE = MemRef((5 << 30,), "i8")
WORDS = MemRef((5 << 28,), "i32")  # 5 GiB


def test_a_transfer_starts_below_four_gib():
    assert limits(with_task(transfer(4, offset=(1 << 30) - 1), arguments=(WORDS,))) == []
    assert limits(with_task(transfer(4, offset=1 << 30), arguments=(WORDS,))) == [OFFSET]


def entry(start):
    slices = (ArgumentSlice(0, start, ARGUMENT), ArgumentSlice(0, 0, ARGUMENT))
    run = Run("main", "sequence", slices)
    return program(
        replace(design()),
        DeviceProgram("entry", "npu2", sequences=(sequence(run, run, arguments=(HUGE,)),)),
    )


def test_the_offset_of_the_slice_counts():
    assert limits(entry((1 << 32) - 4)) == []
    assert limits(entry(1 << 32)) == [OFFSET]
    assert findings(entry(1 << 32))[0].asked == 4294967296


def test_layer_33_of_36_layers_of_100_mib_is_beyond():
    """faults KN-19: layers 0-32 right, layer 33 reads layer 0. Layers of 130,023,424 bytes."""
    layer = 130_023_424
    assert limits(entry(33 * layer)) == []
    assert limits(entry(34 * layer)) == [OFFSET]


def test_a_transfer_lies_within_its_argument():
    assert limits(with_task(transfer(4096))) == []
    assert limits(with_task(transfer(4096, offset=1))) == [BOUNDS]
    assert limits(with_task(transfer(4, offset=-4))) == [BOUNDS]
    assert limits(with_task(transfer(1024, dims=(Dim(16, 256), Dim(64, 1))))) == []
    assert limits(with_task(transfer(1024, dims=(Dim(16, 272), Dim(64, 1))))) == [BOUNDS]


def test_the_iteration_and_the_repeat_count_with_it():
    steps = transfer(1024, iteration=Dim(4, 1024))
    assert limits(with_task(steps, repeat_count=3)) == []
    assert limits(with_task(transfer(1024, iteration=Dim(4, 1025)), repeat_count=3)) == [BOUNDS]
    assert limits(with_task(transfer(4096), repeat_count=9)) == []  # the same data again


def test_a_descriptor_names_an_argument_that_there_is():
    assert limits(with_task(transfer(4, argument=1))) == []
    assert limits(with_task(transfer(4, argument=2))) == ["arguments of the sequence"]


def test_a_slice_lies_within_the_outer_argument():
    end = (5 << 30) - 16384
    assert BOUNDS not in limits(entry(end))
    assert BOUNDS in limits(entry(end + 4))
