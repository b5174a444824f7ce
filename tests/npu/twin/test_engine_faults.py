# SPDX-License-Identifier: Apache-2.0
"""What silicon leaves undefined, or never finishes, is a DeviceFault here: each case seeds one fault into a design that runs."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from npu.device import DeviceFault
from npu.mlir.load import load_program
from npu.program import AwaitTask, ConfigureTask, FreeTask, Program, SetLock, StartTask
from npu.twin import engine
from tests.npu.twin import engine_designs as d

DATA = np.arange(128, dtype=np.int32)
OUT = np.zeros(128, np.int32)


def fault(text: str | Program, tmp_path, *words: str, inputs=(DATA,), output=OUT, tier: str = "event") -> str:
    """Run; the fault must hold every one of `words`."""
    with pytest.raises(DeviceFault) as caught:
        d.run(d.session(text, tmp_path, tier=tier), list(inputs), output)
    message = str(caught.value)
    for word in words:
        assert word in message, message
    return message


def edit(text: str, change) -> Program:
    """The program with its sequence's instructions changed."""
    program = load_program(text)
    device = program.devices[0]
    sequence = device.sequences[0]
    changed = replace(sequence, instructions=tuple(change(list(sequence.instructions))))
    return replace(program, devices=(replace(device, sequences=(changed,)),))


def test_the_unseeded_design_runs(tmp_path) -> None:
    assert (d.run(d.session(d.map_design(), tmp_path), [DATA], OUT) == DATA + 1).all()


# ---- deadlocks -----------------------------------------------------------------------------------


def test_a_deadlock_is_a_wait_graph(tmp_path) -> None:
    """The sequence asks for more output than the input can make."""
    text = (
        d.map_design()
        .replace("%t = aiex", "%t0 = aiex")
        .replace("%a : memref<128xi32>, 0, 128", "%a : memref<128xi32>, 0, 96")
    )
    text = text.replace("(%t)", "(%t0)")
    message = fault(
        text, tmp_path, "deadlock in @main:seq", "sequence @seq waits for the token of task", "has no task in its queue"
    )
    assert re.search(
        r"shim\(0,0\) S2MM 0 waits for 128 more bytes of 'of_out' \(has 384\) from core\(0,2\) MM2S 0", message
    )
    assert re.search(
        r"core\(0,2\) waits for lock '\w+' of core\(0,2\) >= 1, it is 0; given by core\(0,2\) S2MM 0", message
    )


def test_a_deadlock_in_a_circle_names_the_cycle(tmp_path) -> None:
    """Two cores, each waiting for the other's first element."""
    kind = "memref<16xi32>"
    text = d.module(
        d.function("add_one", kind, kind, "i32"),
        d.TILES,
        "%e = aie.tile(2, 2)",
        d.fifo("of_ce", "c", "e", 16),
        d.fifo("of_ec", "e", "c", 16),
        d.fifo("of_out", "c", "s", 16),
        d.core(
            "c",
            "%n = arith.constant 16 : i32",
            d.acquire("x", "of_ec", "Consume", 16),
            d.acquire("y", "of_ce", "Produce", 16),
            d.acquire("z", "of_out", "Produce", 16),
            f"func.call @add_one(%x, %z, %n) : ({kind}, {kind}, i32) -> ()",
            d.release("of_ec", "Consume"),
            d.release("of_ce", "Produce"),
            d.release("of_out", "Produce"),
        ),
        d.map_core("e", "add_one", "of_ce", "of_ec", 16),
        d.sequence([128], d.task("u", "of_out", "a", 128, attributes=d.TOKEN), d.start("u"), d.wait("u")),
    )
    with pytest.raises(DeviceFault) as caught:
        d.run(d.session(text, tmp_path), [], OUT)
    cycle = str(caught.value).splitlines()[-1]
    assert "cycle:" in cycle
    assert {"core(0,2)", "core(2,2)"} <= set(re.findall(r"core\(\d,\d\)(?! [SM])", cycle))


def test_a_core_that_never_waits_is_stopped(tmp_path) -> None:
    text = d.module(
        d.TILES,
        d.core("c", "%v = arith.addi %c0, %c1 : index"),
        d.fifo("of_in", "s", "m", 16),
        d.sequence([128, 128], d.task("t", "of_in", "a", 128, attributes=d.TOKEN), d.start("t"), d.wait("t")),
    )
    fault(text, tmp_path, "core(0,2)", "without ever waiting")


def test_processes_that_only_hand_each_other_locks_are_stopped(tmp_path, monkeypatch) -> None:
    """Two cores pass two locks back and forth: something can always go on, and nothing comes of it."""
    monkeypatch.setattr(engine, "STEP_BUDGET", 20_000)
    text = d.module(
        d.TILES,
        "%e = aie.tile(0, 3)\n%l = aie.lock(%c, 0) {init = 1 : i32}\n%k = aie.lock(%c, 1) {init = 0 : i32}",
        d.core("c", "aie.use_lock(%l, AcquireGreaterEqual, 1)\naie.use_lock(%k, Release, 1)"),
        d.core("e", "aie.use_lock(%k, AcquireGreaterEqual, 1)\naie.use_lock(%l, Release, 1)"),
        d.fifo("of_in", "s", "m", 16),
        d.sequence([128, 128], d.task("t", "of_in", "a", 128, attributes=d.TOKEN), d.start("t"), d.wait("t")),
    )
    fault(text, tmp_path, "hand locks to each other in a circle", "core(0,2)")


# ---- the sequence --------------------------------------------------------------------------------


def many_starts(count: int) -> str:
    tasks = [f"t{'abcdefgh'[i]}" for i in range(count)]
    piece = 128 // 8
    return d.module(
        d.function("add_one", "memref<16xi32>", "memref<16xi32>", "i32"),
        d.TILES,
        d.fifo("of_in", "s", "c", 16),
        d.fifo("of_out", "c", "s", 16),
        d.map_core("c", "add_one", "of_in", "of_out", 16),
        d.sequence(
            [128, 128],
            *(d.task(t, "of_in", "a", 128, f"{piece * i}, {piece}") for i, t in enumerate(tasks)),
            d.task("u", "of_out", "b", 128, f"0, {piece * count}", d.TOKEN),
            d.start(*tasks, "u"),
            d.wait("u"),
            d.free(*tasks),
        ),
    )


def test_four_tasks_wait_beside_the_running_one_and_a_fifth_is_too_many(tmp_path) -> None:
    d.run(d.session(many_starts(5), tmp_path), [DATA], OUT)
    fault(many_starts(6), tmp_path, "shim(0,0) MM2S 0", "the task queue holds 4 beside the running one")


def test_a_descriptor_rewritten_while_its_task_runs(tmp_path) -> None:
    """Freeing a task that still runs gives its BD to the next one."""

    def reuse(instructions):
        first = next(i for i in instructions if isinstance(i, ConfigureTask))
        again = replace(first, task=99)
        place = instructions.index(StartTask(first.task)) + 1
        return [*instructions[:place], FreeTask(first.task), again, *instructions[place:]]

    fault(edit(d.map_design(), reuse), tmp_path, "BD 0 of shim(0,0) is reused in flight")


def test_sixteen_descriptors_and_no_more(tmp_path) -> None:
    def exhaust(instructions):
        first = next(i for i in instructions if isinstance(i, ConfigureTask))
        return [*(replace(first, task=100 + i) for i in range(15)), *instructions]

    fault(edit(d.map_design(), exhaust), tmp_path, "no buffer descriptor left", "its 16 are held")


def test_an_await_without_a_token(tmp_path) -> None:
    def without(instructions):
        return [replace(i, issue_token=False) if isinstance(i, ConfigureTask) else i for i in instructions]

    program = edit(d.map_design(), without)
    fault(program, tmp_path, "is awaited but issues no token")


def test_a_token_that_nobody_awaits(tmp_path) -> None:
    program = edit(d.map_design(), lambda all: [i for i in all if not isinstance(i, AwaitTask)])
    fault(program, tmp_path, "the token of task", "was never awaited")


def test_an_output_task_that_nobody_awaits(tmp_path) -> None:
    def forget(instructions):
        kept = [i for i in instructions if not isinstance(i, AwaitTask)]
        return [replace(i, issue_token=False) if isinstance(i, ConfigureTask) else i for i in kept]

    fault(edit(d.map_design(), forget), tmp_path, "writes memory and was never awaited")


def test_tokens_are_taken_in_the_order_of_the_starts(tmp_path) -> None:
    text = d.module(
        d.TILES,
        d.fifo("of_in", "s", "m", 16),
        d.fifo("of_out", "m", "s", 16),
        "aie.objectfifo.link [@of_in] -> [@of_out] ([] [])",
        d.sequence(
            [128, 128],
            d.task("t", "of_in", "a", 128),
            d.task("u", "of_out", "b", 128, "0, 64", d.TOKEN),
            d.task("v", "of_out", "b", 128, "64, 64", d.TOKEN),
            d.start("t", "u", "v"),
            d.wait("v", "u"),
            d.free("t"),
        ),
    )
    fault(text, tmp_path, "takes the token of task")
    assert (d.run(d.session(text.replace(d.wait("v", "u"), d.wait("u", "v")), tmp_path), [DATA], OUT) == DATA).all()


# ---- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", ["event", "replay"])
def test_a_store_behind_the_buffer(tier, tmp_path) -> None:
    fault(
        d.map_design("overrun"),
        tmp_path,
        "overrun on core(0,2) stored out of bounds",
        "64 bytes after the start of buffer",
        tier=tier,
    )


def test_a_store_before_the_buffer(tmp_path) -> None:
    fault(d.map_design("underrun"), tmp_path, "underrun on core(0,2) stored out of bounds", "4 bytes before the start")


def test_a_buffer_that_the_kernel_half_wrote(tmp_path) -> None:
    fault(d.map_design("half_written"), tmp_path, "core(0,2) MM2S 0 reads byte 32 of buffer", "nobody wrote")


def test_a_host_buffer_that_was_never_written(tmp_path) -> None:
    opened = d.session(d.map_design(), tmp_path)
    opened.bind("seq", {0: "a", 1: "b"})
    opened.allocate("a", 512)
    opened.allocate("b", 512)
    opened.write("a", 0, DATA[:100])
    with pytest.raises(
        DeviceFault, match=r"reads host argument 0 \(buffer 'a' \+ 0\) at byte 400, which was never written"
    ):
        opened.run("seq")


def test_a_host_buffer_that_was_never_written_is_seen_in_a_replay_too(tmp_path) -> None:
    d.run(d.session(d.map_design(), tmp_path, tier="auto"), [DATA], OUT)
    opened = d.session(d.map_design(), tmp_path, tier="replay")
    opened.bind("seq", {0: "a", 1: "b"})
    opened.allocate("a", 512)
    opened.allocate("b", 512)
    opened.write("a", 0, DATA[:100])
    with pytest.raises(DeviceFault, match=r"reads byte 400 of host region 0.*never written"):
        opened.run("seq")


@pytest.mark.parametrize("tier", ["event", "auto"])
def test_an_unsynced_host_buffer(tier, tmp_path) -> None:
    opened = d.session(d.map_design(), tmp_path, tier=tier)
    d.run(opened, [DATA], OUT)
    view = opened.map("in0").view(np.int32)
    view[:] = DATA[::-1]
    with pytest.raises(DeviceFault, match="host buffer 'in0' is unsynced"):
        opened.run("seq")
    opened.sync("in0")
    opened.run("seq")
    assert (opened.read("out", 0, (128,), np.int32) == DATA[::-1] + 1).all()


def test_an_argument_slice_beyond_its_buffer(tmp_path) -> None:
    opened = d.session(d.map_design(), tmp_path)
    opened.bind("seq", {0: "a", 1: "b"})
    opened.allocate("a", 512)
    opened.allocate("b", 508)
    opened.write("a", 0, DATA)
    with pytest.raises(DeviceFault, match="argument slice out of range"):
        opened.run("seq")


def test_a_descriptor_that_leaves_its_argument(tmp_path) -> None:
    def shift(instructions):
        return [
            replace(i, bds=tuple(replace(bd, offset=4) for bd in i.bds)) if isinstance(i, ConfigureTask) else i
            for i in instructions
        ]

    fault(edit(d.map_design(), shift), tmp_path, "a BD reaches bytes 16..528", "which has 512 bytes")


def test_a_kernel_declared_with_more_than_its_element_holds(tmp_path) -> None:
    program = load_program(d.map_design())
    device = program.devices[0]
    source, dest, count = device.functions[0].arguments
    wider = replace(device.functions[0], arguments=(source, replace(dest, shape=(32,)), count))
    program = replace(program, devices=(replace(device, functions=(wider,)),))
    fault(program, tmp_path, "calls @add_one", "(128 bytes)", "has 64 bytes")


@pytest.mark.parametrize("tier", ["event", "auto"])
def test_a_kernel_that_traps(tier, tmp_path) -> None:
    """The strict headers stop an unaligned load; the text names core and kernel in both tiers."""
    fault(d.map_design("unaligned"), tmp_path, "core(0,2), kernel unaligned:", "align", tier=tier)


# ---- locks and leftovers -------------------------------------------------------------------------


def test_a_lock_above_63(tmp_path) -> None:
    program = load_program(d.map_design())
    lock = program.devices[0].locks[0].name
    changed = edit(d.map_design(), lambda all: [SetLock(lock, 64), *all])
    fault(changed, tmp_path, f"lock '{lock}'", "a lock holds 0..63")


def test_data_that_nobody_takes_is_left_in_a_fifo(tmp_path) -> None:
    """The input is one element longer than the output."""
    text = d.map_design().replace("%b : memref<128xi32>, 0, 128", "%b : memref<128xi32>, 0, 112")
    fault(text, tmp_path, "ended and left behind", "bytes are left in stream 'of_out' from core(0,2) MM2S 0")


def test_elements_that_a_core_never_takes(tmp_path) -> None:
    """A core that ends after four elements leaves the rest of its input behind."""
    text = d.map_design(total=128).replace("scf.for %round = %c0 to %big", "scf.for %round = %c0 to %c4")
    text = text.replace("%b : memref<128xi32>, 0, 128", "%b : memref<128xi32>, 0, 64")
    text = text.replace("%a : memref<128xi32>, 0, 128", "%a : memref<128xi32>, 0, 80")
    fault(text, tmp_path, "ended and left behind", "data that core(0,2) never took")


def test_a_partly_filled_output(tmp_path) -> None:
    """A task of the sequence that is freed while it still waits for bytes has not ended."""
    text = d.map_design()
    extra = d.task("w", "of_out", "b", 128, "0, 128") + "\n" + d.start("w")
    fault(text.replace(d.wait("u"), d.wait("u") + "\n" + extra), tmp_path, "has not ended")


def test_a_kernel_that_is_not_linked(tmp_path) -> None:
    fault(d.map_design().replace('"k.o"', '"other.o"'), tmp_path, "links with 'other.o'", "'k.o'")
