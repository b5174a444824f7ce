# SPDX-License-Identifier: Apache-2.0
"""Repeats, tokens, order, memtile tasks and runs."""

from dataclasses import replace

import pytest

from npu.legality import Severity
from npu.program import (
    ArgumentSlice,
    AwaitTask,
    BufferDescriptor,
    DeviceProgram,
    Dim,
    FreeTask,
    MemRef,
    Run,
    StartTask,
)
from tests.npu.legality.programs import (
    ARGUMENT,
    MEMTILE,
    SHIM,
    design,
    feed,
    into,
    limits,
    out_of,
    pool,
    program,
    ring,
    sequence,
    task,
    transfer,
    with_task,
)


@pytest.mark.parametrize(("repeat", "legal"), [(0, True), (255, True), (256, False), (-1, False)])
def test_a_repeat_count_has_eight_bits(repeat, legal):
    expected = [] if legal else ["repeat count"]
    assert limits(with_task(transfer(4), repeat_count=repeat)) == expected
    buffers = pool("p", MEMTILE, 1)
    chain = replace(ring(into(MEMTILE, 0), buffers), repeat_count=repeat)
    assert limits(design(buffers=buffers, dmas=(chain,), routes=(), locks=(), sequences=())) == expected


@pytest.mark.parametrize(("repeat", "legal"), [(64, True), (65, False)])
def test_a_memcpy_repeats_less(repeat, legal):
    device = with_task(transfer(4), repeat_count=repeat, where="module:7: aiex.npu.dma_memcpy_nd")
    assert limits(device) == ([] if legal else ["repeat count"])


def test_executions_run_whole_iterations():
    steps = transfer(64, iteration=Dim(4, 64))
    assert limits(with_task(steps, repeat_count=3)) == []
    assert limits(with_task(steps, repeat_count=7)) == []
    assert limits(with_task(steps, repeat_count=2), Severity.WARNING) == ["whole iterations"]
    assert limits(with_task(steps, repeat_count=2), Severity.ERROR) == []


def in_sequence(*instructions):
    return limits(replace(design(), sequences=(sequence(*instructions),)))


def test_an_await_needs_a_token_and_a_start():
    silent = feed(0, out_of(SHIM), transfer(), issue_token=False)
    assert in_sequence(*silent, FreeTask(0)) == []
    assert in_sequence(*silent, AwaitTask(0)) == ["use of a task"]
    assert in_sequence(task(0, out_of(SHIM), transfer()), AwaitTask(0)) == ["use of a task"]
    assert in_sequence(*feed(0, out_of(SHIM), transfer()), AwaitTask(0)) == []


def test_a_task_is_configured_before_it_is_used():
    assert in_sequence(StartTask(0)) == ["use of a task"]
    assert in_sequence(FreeTask(0)) == ["use of a task"]


def memtile_task(channel, bd_id):
    bd = BufferDescriptor(4, 0, 256, buffer="a_mem_buff_0", bd_id=bd_id)
    return design(dmas=(), routes=(), sequences=(sequence(task(0, channel, bd)),))


def test_a_sequence_starts_memtile_descriptors_up_to_15():
    assert limits(memtile_task(out_of(MEMTILE, 2), 15)) == []
    assert limits(memtile_task(out_of(MEMTILE, 2), 16)) == ["BD id that a sequence can start on a memtile"]


def test_a_sequence_starts_even_memtile_channels_only():
    assert limits(memtile_task(into(MEMTILE, 1), None)) == ["memtile channel that a sequence can start"]
    assert limits(memtile_task(into(MEMTILE, 2), None)) == []


# ---- runs -------------------------------------------------------------------------------------


def entry(*runs, target="npu2"):
    return DeviceProgram(
        "entry", target, sequences=(sequence(*runs, name="decode", arguments=(MemRef((16384,), "i32"),)),)
    )


def run(offset=0, device="main", name="sequence", types=(ARGUMENT, ARGUMENT), **more):
    return Run(device, name, tuple(ArgumentSlice(0, offset + 16384 * n, t) for n, t in enumerate(types)), **more)


def test_a_run_of_what_exists_is_legal():
    assert limits(program(design(), entry(run(), run(offset=32768)), spelling="current")) == []


def test_a_run_names_a_device_and_a_sequence_that_exist():
    assert limits(program(design(), entry(run(device="gemm")))) == ["device and sequence of a run"]
    assert limits(program(design(), entry(run(name="prefill")))) == ["device and sequence of a run"]


def test_a_run_passes_what_the_sequence_declares():
    short = (ARGUMENT, MemRef((2048,), "i32"))
    assert "arguments of a run" in limits(program(design(), entry(run(types=short))))
    assert "arguments of a run" in limits(program(design(), entry(run(types=(ARGUMENT,)))))
    reshaped = (ARGUMENT, MemRef((64, 64), "i32"))
    assert limits(program(design(), entry(run(types=reshaped), run()))) == []


def test_a_run_stays_on_one_kind_of_device():
    assert "device of a run" in limits(program(design(), entry(run(), run(), target="npu1")))


def test_a_sequence_does_not_run_itself():
    looped = entry(Run("entry", "decode", (ArgumentSlice(0, 0, MemRef((16384,), "i32")),)))
    assert "run of a sequence" in limits(program(looped))
