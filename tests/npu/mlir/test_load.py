# SPDX-License-Identifier: Apache-2.0
"""From text to Program: the builder's designs, hand-written forms, refusals, the cache, and aie-opt as a second opinion."""

from __future__ import annotations

import shutil
import struct
import subprocess
from dataclasses import replace

import pytest

from npu.mlir.build import ModuleBuilder
from npu.mlir.load import load_program, split_devices
from npu.program import (
    Acquire,
    ArgumentSlice,
    AwaitTask,
    Call,
    Channel,
    ConfigureTask,
    Dim,
    Direction,
    For,
    FreeTask,
    If,
    MemRef,
    Op,
    Release,
    Run,
    StartTask,
    TileId,
    While,
    WriteParameter,
)
from refusal import Refusal

BIG, SMALL, ACC = MemRef((128, 64), "bf16"), MemRef((64, 64), "bf16"), MemRef((64, 64), "f32")
IN_DMA = Channel(TileId(0, 0), Direction.MM2S, 0)
OUT_DMA = Channel(TileId(0, 0), Direction.S2MM, 0)


def small_design() -> str:
    """Two cores fed by a distribute, drained by a join; an rtp; an outer device that runs it on slices."""
    m = ModuleBuilder()
    d = m.device("gemm")
    shim, mem, cores = d.tile(0, 0), d.tile(0, 1), [d.tile(0, 2), d.tile(0, 3)]
    a = d.fifo("a", producer=shim, consumers=[mem], depth=2, element=BIG)
    layout = [(8, 512), (8, 8), (8, 64), (8, 1)]
    parts = [
        d.fifo(f"a_{i}", producer=mem, consumers=[core], depth=[2, 2], element=SMALL, to_stream=layout)
        for i, core in enumerate(cores)
    ]
    d.link([a], parts, dest_offsets=[0, 4096])
    results = [
        d.fifo(f"c_{i}", producer=core, consumers=[mem], depth=[1, 2], element=SMALL) for i, core in enumerate(cores)
    ]
    out = d.fifo("c", producer=mem, consumers=[shim], depth=2, element=BIG)
    d.link(results, [out], source_offsets=[0, 4096])
    multiply = d.kernel("multiply", [SMALL, ACC, "i32", "i32"], link_with="gemm.o")
    finish = d.kernel("finish", [ACC, SMALL], link_with="finish.o")
    parameters = []
    for i, core in enumerate(cores):
        acc = d.buffer(core, ACC, name=f"acc_{i}")
        parameters.append(d.buffer(core, MemRef((4,), "i32"), name=f"rtp_{i}"))
        with d.core(core, stack_size=2048) as c, c.forever():
            (block,) = c.acquire(results[i], "Produce", 1)
            with c.loop(9) as k:
                (part,) = c.acquire(parts[i], "Consume", 1)
                c.call(multiply, part, acc, c.const(3), k)
                c.release(parts[i], "Consume", 1)
            with c.when(c.compare("sgt", c.load(parameters[i], 0), 2)):
                c.call(finish, acc, block)
            c.release(results[i], "Produce", 1)
    with d.sequence("run", [MemRef((9 * 8192,), "bf16"), MemRef((8192,), "bf16")]) as s:
        feed = s.task(a, [s.bd(0, 0, [9, 128, 1, 64], [8192, 64, 7, 1])], repeat=8)
        drain = s.task(out, [s.bd(1, 0, length=4096), s.bd(1, 4096, [64, 64], [64, 1])], token=True)
        s.rtp_write(parameters[1], 0, 3)
        s.start(feed)
        s.start(drain)
        s.wait(drain)
        s.free(feed)
    outer = m.device("main")
    with outer.sequence("prefill", [MemRef((1 << 20,), "bf16"), MemRef((8192,), "bf16")]) as s:
        s.run("gemm", "run", [s.view(0, 4096, MemRef((9 * 8192,), "bf16")), 1])
    return m.text()


@pytest.fixture(scope="module")
def text():
    return small_design()


@pytest.fixture(scope="module")
def gemm(text):
    return load_program(text).device("gemm")


def test_the_core_keeps_loops_and_fifo_operations_as_they_were_built(gemm):
    core = gemm.cores[0]
    assert (core.tile, core.stack_bytes, core.dynamic_fifo_lowering) == (TileId(0, 2), 2048, True)
    assert core.link_files == ("gemm.o", "finish.o")
    constants = {s.result: dict(s.attributes)["value"] for s in core.body[:-1]}
    (endless,) = core.body[-1:]
    assert isinstance(endless, While)
    produce, loop, load, compare, guarded, release = endless.body
    assert isinstance(produce, Acquire) and core.ends[produce.end].fifo == "c_0"
    assert isinstance(loop, For)
    assert [constants[name] for name in (loop.lower, loop.upper, loop.step)] == [0, 9, 1]
    consume, cast, call, give_back = loop.body
    assert isinstance(cast, Op) and cast.name == "arith.index_cast" and cast.operands == (loop.variable,)
    assert isinstance(call, Call) and call.function == "multiply"
    assert call.operands[:2] == (consume.results[0], "acc_0")
    assert constants[call.operands[2]] == 3 and call.operands[3] == cast.result
    assert give_back == Release(consume.end, 1)
    assert load.name == "memref.load" and load.operands[0] == "rtp_0"
    assert dict(compare.attributes)["predicate"] == "sgt"
    assert isinstance(guarded, If) and guarded.condition == compare.result
    assert guarded.then[0].operands == ("acc_0", produce.results[0])
    assert release == Release(produce.end, 1)


def test_a_core_that_rotates_at_run_time_keeps_a_counter_per_fifo_end(gemm):
    counters = {b.tile: b.type for b in gemm.buffers if b.name.startswith("_anonymous")}
    assert counters == {TileId(0, 2): MemRef((2,), "i32"), TileId(0, 3): MemRef((2,), "i32")}


def test_buffers_are_placed_in_banks_behind_the_stack(gemm):
    assert not gemm.placement_fallbacks
    at = {b.name: (b.address, b.bank) for b in gemm.buffers if b.tile == TileId(0, 2)}
    # 16 KiB accumulator: bank 1, since the stack takes part of bank 0; then 8 KiB elements in turn.
    assert at["acc_0"] == (16384, 1)
    assert at["c_0_buff_0"] == (32768, 2)
    assert at["a_0_cons_buff_0"] == (49152, 3)
    assert at["a_0_cons_buff_1"] == (2048, 0)


def test_the_outermost_of_four_dimensions_is_the_iteration(gemm):
    feed = gemm.sequence("run").instructions[0]
    assert isinstance(feed, ConfigureTask)
    assert (feed.channel, feed.repeat_count, feed.issue_token) == (IN_DMA, 8, False)
    (bd,) = feed.bds
    # The builder drops the stride of a dimension of size 1, which is never applied.
    assert bd.dims == (Dim(128, 64), Dim(1, 0), Dim(64, 1))
    assert (bd.iteration, bd.length, bd.argument) == (Dim(9, 8192), 8192, 0)


def test_a_chain_of_bds_is_one_task(gemm):
    drain = gemm.sequence("run").instructions[1]
    assert (drain.channel, drain.issue_token) == (OUT_DMA, True)
    assert [(bd.offset, bd.length, bd.dims, bd.next) for bd in drain.bds] == [
        (0, 4096, (), 1),
        (4096, 4096, (Dim(64, 64), Dim(64, 1)), None),
    ]
    assert gemm.sequence("run").instructions[2:] == (
        WriteParameter("rtp_1", 0, 3), StartTask(0), StartTask(1), AwaitTask(1), FreeTask(0),
    )  # fmt: skip


def test_a_run_names_byte_offsets_of_the_outer_arguments(text):
    (run,) = load_program(text).device("main").sequence("prefill").instructions
    assert run == Run(
        "gemm",
        "run",
        (ArgumentSlice(0, 8192, MemRef((9 * 8192,), "bf16")), ArgumentSlice(1, 0, MemRef((8192,), "bf16"))),
    )


# ---- what others write -------------------------------------------------------------------------

BY_HAND = """module {
  aie.device(npu2) {
    %shim = aie.tile(0, 0)
    %core = aie.tile(0, 2)
    %free = aie.lock(%core, 0) {init = 1 : i32, sym_name = "free"}
    %full = aie.lock(%core, 1) {init = 0 : i32, sym_name = "full"}
    %in = aie.buffer(%core) {sym_name = "in", address = 4096 : i32} : memref<8xi32>
    aie.flow(%shim, DMA : 0, %core, DMA : 0)
    aie.shim_dma_allocation @feed(%shim, MM2S, 0)
    aie.shim_dma_allocation @drain(%shim, S2MM, 1)
    %m = aie.mem(%core) {
      %0 = aie.dma_start(S2MM, 0, ^bd, ^end)
    ^bd:
      aie.use_lock(%free, AcquireGreaterEqual, 1)
      aie.dma_bd(%in : memref<8xi32>, 0, 8)
      aie.use_lock(%full, Release, 1)
      aie.next_bd ^bd
    ^end:
      aie.end
    }
    %c = aie.core(%core) {
      %c0 = arith.constant 0 : index
      aie.use_lock(%full, AcquireGreaterEqual, 1)
      %v = memref.load %in[%c0] : memref<8xi32>
      memref.store %v, %in[%c0] : memref<8xi32>
      aie.use_lock(%free, Release)
      aie.end
    }
    aie.runtime_sequence(%a : memref<64xi32>, %b : memref<64xi32>) {
      %c0 = arith.constant 0 : i64
      %c1 = arith.constant 1 : i64
      aiex.npu.dma_memcpy_nd(%b[0, 0, 0, 0][1, 1, 1, 8][0, 0, 0, 1]) {id = 1 : i64, metadata = @drain} : memref<64xi32>
      aiex.npu.dma_memcpy_nd(%a[0, 0, 2, 3][4, %c1, 2, 4][8, %c0, 16, 1]) {id = 0 : i64, metadata = @feed} \
: memref<64xi32>
      aiex.npu.dma_wait {symbol = @drain}
    }
  }
}
"""


def test_explicit_buffers_locks_and_flows_are_taken_as_they_are():
    device = load_program(BY_HAND).device("main")
    assert [(lock.name, lock.id, lock.init) for lock in device.locks] == [("free", 0, 1), ("full", 1, 0)]
    (dma,) = device.dmas
    assert (dma.channel, dma.bds[0].buffer, dma.bds[0].next, dma.bds[0].bd_id) == (
        Channel(TileId(0, 2), Direction.S2MM, 0), "in", 0, 0,
    )  # fmt: skip
    assert dma.bds[0].acquire.lock == "free" and dma.bds[0].release.lock == "full"
    assert device.buffers[0].address == 4096
    (route,) = device.routes
    assert route.dests == (Channel(TileId(0, 2), Direction.S2MM, 0),)


def test_memcpy_becomes_a_task_and_a_transfer_into_memory_always_has_a_token():
    instructions = load_program(BY_HAND).device("main").sequence("sequence").instructions
    drain, started, feed, _, waited = instructions
    assert drain.issue_token and started == StartTask(0) and waited == AwaitTask(0)
    # offset 2*16 + 3*1; the outermost dimension repeats: 4 executions, 8 elements apart.
    (bd,) = feed.bds
    assert (bd.offset, bd.length, bd.iteration, feed.repeat_count) == (35, 8, Dim(4, 8), 3)
    assert not feed.issue_token


# ---- seeded faults -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("aie.use_lock(%free, Release)", "aie.debug(%v : i32)", "aie.debug"),
        ("{symbol = @drain}", "{symbol = @nobody}", "@nobody"),
        ("{symbol = @drain}", "{symbol = @feed}", "a wait on @feed"),
        ("memref<8xi32>, 0, 8)", "memref<8xi32>, 0, 8, [<size = 3, stride = 1>])", "sizes [3]"),
        ("aie.tile(0, 2)", "aie.tile(0, 6)", "(0,6)"),
        ("%c1 = arith.constant 1 : i64", "%c1 = arith.addi %c0, %c0 : i64", "arith.addi"),
    ],
    ids=["unknown operation", "unknown symbol", "no token", "wrong length", "no such tile", "computed size"],
)  # fmt: skip
def test_a_fault_in_the_text_is_refused_with_its_line(old, new, found):
    assert old in BY_HAND
    with pytest.raises(Refusal) as refusal:
        load_program(BY_HAND.replace(old, new))
    assert found in str(refusal.value)
    line = BY_HAND[: BY_HAND.index(old)].count("\n") + 1
    assert f"module:{line}" in refusal.value.where


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("([] [0, 4096])", "([] [0, 2048])", "offsets"),
        ("@run(%view, %arg1)", "@walk(%view, %arg1)", "@walk"),
        ("aiex.configure @gemm", "aiex.configure @gemv", "@gemv"),
        ("func.call @finish(", "func.call @finnish(", "finnish"),
        ("@c_0(Produce, 1)", "@c_1(Produce, 1)", "@c_1"),
        ("{issue_token = true}", "", "token"),
    ],
    ids=["link offset", "run of a missing sequence", "missing design", "missing kernel", "foreign FIFO", "no token"],
)  # fmt: skip
def test_a_fault_in_a_built_design_is_refused(text, old, new, found):
    assert old in text
    with pytest.raises(Refusal) as refusal:
        load_program(text.replace(old, new))
    assert found in str(refusal.value)


def test_the_builder_refuses_what_cannot_be_meant():
    m = ModuleBuilder()
    d = m.device("d")
    shim, core = d.tile(0, 0), d.tile(0, 2)
    f = d.fifo("f", producer=shim, consumers=[core], depth=2, element=SMALL)
    kernel = d.kernel("k", [SMALL, "i32"], link_with="k.o")
    with pytest.raises(Refusal, match="there already"):
        d.fifo("f", producer=shim, consumers=[core], depth=2, element=SMALL)
    with pytest.raises(Refusal, match="one per end"):
        d.fifo("g", producer=shim, consumers=[core], depth=[2], element=SMALL)
    with pytest.raises(Refusal, match="first declaration"):
        d.kernel("k", [SMALL], link_with="k.o")
    with d.core(core) as c:
        (element,) = c.acquire(f, "Consume", 1)
        with pytest.raises(Refusal, match="arguments for @k"):
            c.call(kernel, element)
        with pytest.raises(Refusal, match="argument 0"):
            c.call(kernel, 1, 2)
    with d.sequence("run", [MemRef((64,), "bf16")]) as s:
        with pytest.raises(Refusal, match="from 8 to 71"):
            s.bd(0, 8, [64], [1])
        with pytest.raises(Refusal, match="without a token"):
            s.wait(s.task(f, [s.bd(0, 0, length=64)]))
        with pytest.raises(Refusal, match="a slice of"):
            s.view(0, 60, MemRef((8,), "bf16"))


# ---- cache and second opinion ------------------------------------------------------------------


def test_a_program_is_kept_under_its_text(text, tmp_path):
    first = load_program(text, cache=tmp_path)
    (kept,) = tmp_path.glob("*.program")
    assert kept.name.startswith(first.text_sha256)
    assert load_program(text, cache=tmp_path) == first
    assert load_program(text, cache=tmp_path).device("gemm") == first.device("gemm")


def test_a_torn_file_in_the_cache_is_made_anew(text, tmp_path):
    first = load_program(text, cache=tmp_path)
    for kept in tmp_path.iterdir():
        kept.write_bytes(kept.read_bytes()[:100])
    assert load_program(text, cache=tmp_path) == first


def test_a_device_is_read_alike_alone_and_among_others(text, tmp_path):
    pieces = split_devices(text)
    assert len(pieces) == len(load_program(text).devices) > 1
    whole = load_program(text, cache=tmp_path)
    for piece, device in zip(pieces, whole.devices, strict=True):
        if "aiex.run" not in piece:
            (alone,) = load_program(f"builtin.module {{\n{piece}\n}}\n").devices
            for part in ("buffers", "locks", "routes", "functions"):
                assert getattr(alone, part) == getattr(device, part)
    assert len(list(tmp_path.glob("*.device"))) == len(pieces)


def test_a_device_that_stands_twice_is_refused(text):
    pieces = split_devices(text)
    with pytest.raises(Refusal, match="twice"):
        load_program("\n".join(["builtin.module {", *pieces, pieces[0], "}"]) + "\n")


LOWERING = (
    "builtin.module(aie.device(aie-assign-lock-ids,aie-register-objectFifos,aie-objectFifo-stateful-transform,"
    "aie-assign-bd-ids,aie-assign-buffer-addresses))"
)


@pytest.mark.skipif(shutil.which("aie-opt") is None, reason="aie-opt of mlir-aie is not on PATH")
def test_aie_opt_lowers_the_design_to_the_same_program(text):
    done = subprocess.run(
        ["aie-opt", f"--pass-pipeline={LOWERING}"], input=text, capture_output=True, text=True, check=True
    )
    ours, theirs = load_program(text).device("gemm"), load_program(done.stdout).device("gemm")

    def blind(dma):
        return replace(dma, bds=tuple(replace(bd, where="") for bd in dma.bds))

    assert {replace(b, fifo=None) for b in ours.buffers} == set(theirs.buffers)
    assert set(ours.locks) == set(theirs.locks)
    assert {blind(dma) for dma in ours.dmas} == {blind(dma) for dma in theirs.dmas}
    assert {(r.source, r.dests) for r in ours.routes} == {(r.source, r.dests) for r in theirs.routes}


@pytest.mark.parametrize(
    ("element", "literal", "bits"),
    [
        ("bf16", "0xFF80", [0xFF80, 0xFF80]),  # -inf: the start of a maximum
        ("bf16", "[0xFF80, 1.0]", [0xFF80, 0x3F80]),
        ("bf16", "[-2.5, 0x7f80]", [0xC020, 0x7F80]),
        ("f32", "0xFF800000", [0xFF800000, 0xFF800000]),
        ("f32", "[1.5, 0x3F800000]", [0x3FC00000, 0x3F800000]),
        ("bf16", "3.0", [0x4040, 0x4040]),
    ],
)
def test_a_hexadecimal_literal_of_a_float_is_its_bits(element: str, literal: str, bits: list[int]) -> None:
    text = f"""
module {{
  aie.device(npu2) {{
    %tile = aie.tile(0, 2)
    %b = aie.buffer(%tile) {{sym_name = "b"}} : memref<2x{element}> = dense<{literal}>
  }}
}}"""
    (buffer,) = load_program(text).devices[0].buffers
    form = {"bf16": "<2H", "f32": "<2I"}[element]
    assert list(struct.unpack(form, buffer.initial)) == bits
