# SPDX-License-Identifier: Apache-2.0
"""Event and replay tier have one meaning: bit for bit, whatever the threads, the names, the process or the slices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from npu.device import DeviceFault
from npu.mlir.load import load_program
from npu.twin.device import TwinSession
from tests.npu.twin import engine_designs as d

DATA = np.random.default_rng(7).integers(-(2**20), 2**20, 128).astype(np.int32)
OUT = np.zeros(128, np.int32)


def tiers(opened: TwinSession) -> list[str]:
    return [record.tier for record in opened.log()]


# ---- names ---------------------------------------------------------------------------------------


def test_renaming_every_symbol_changes_no_bit(tmp_path) -> None:
    """The twin knows no kernel, FIFO, device or sequence by its name."""
    plain = d.map_design()
    renamed = plain
    for old, new in (("add_one", "zq7"), ("of_in", "qa"), ("of_out", "qb"), ("@seq", "@qs"), ("@main", "@qm")):
        renamed = renamed.replace(old, new)
    first = d.run(d.session(plain, tmp_path), [DATA], OUT)
    opened = d.session(renamed, tmp_path, tier="auto", entry="qm")
    for tier in ("event", "replay"):
        assert d.run(opened, [DATA], OUT, entry="qs").tobytes() == first.tobytes()
        assert tiers(opened)[-1] == tier


@pytest.mark.parametrize("tier", ["event", "auto"])
def test_a_kernel_that_adds_one_to_one_lane_changes_exactly_that_lane(tier, tmp_path) -> None:
    plain = d.session(d.map_design(), tmp_path, tier=tier)
    swapped = d.session(d.map_design("add_one_lane3"), tmp_path, tier=tier)
    for _ in range(2):
        difference = d.run(swapped, [DATA], OUT) - d.run(plain, [DATA], OUT)
        assert difference.tolist() == [int(i % 16 == 3) for i in range(128)]


# ---- threads -------------------------------------------------------------------------------------


def wide_design(cores: int = 8, elements: int = 4096) -> str:
    """Eight columns, each shim -> memtile -> core -> shim, so that levels are wide and rich enough to share."""
    kind = f"memref<{elements}xi32>"
    names = [f"c{letter}" for letter in "abcdefgh"[:cores]]
    total = 4 * elements * cores
    parts = [d.function("add_one", kind, kind, "i32")]
    tasks, starts, waits, frees = [], [], [], []
    for column, name in enumerate(names):
        parts += [
            f"%s{name} = aie.tile({column}, 0)\n%m{name} = aie.tile({column}, 1)\n%{name} = aie.tile({column}, 2)",
            d.fifo(f"in_{name}", f"s{name}", f"m{name}", elements),
            d.fifo(f"to_{name}", f"m{name}", name, elements, depth=1),
            f"aie.objectfifo.link [@in_{name}] -> [@to_{name}] ([] [])",
            d.fifo(f"out_{name}", name, f"s{name}", elements, depth=1),
            d.map_core(name, "add_one", f"to_{name}", f"out_{name}", elements),
        ]
        piece = f"{4 * elements * column}, {4 * elements}"
        tasks += [
            d.task(f"t{name}", f"in_{name}", "a", total, piece),
            d.task(f"u{name}", f"out_{name}", "b", total, piece, d.TOKEN),
        ]
        starts.append(d.start(f"t{name}", f"u{name}"))
        waits.append(d.wait(f"u{name}"))
        frees.append(d.free(f"t{name}"))
    return d.module(*parts, d.sequence([total, total], *tasks, *starts, *waits, *frees))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_the_result(threads, tmp_path) -> None:
    data = np.random.default_rng(threads).integers(-99, 99, 4 * 4096 * 8).astype(np.int32)
    opened = d.session(wide_design(), tmp_path, tier="auto", threads=threads)
    for tier in ("event", "replay", "replay"):
        assert (d.run(opened, [data], np.zeros_like(data)) == data + 1).all()
        assert tiers(opened)[-1] == tier
    (schedule,) = [r.schedule for r in opened._replays.values()]
    assert schedule.phases[:, 2].any(), "no phase is shared by the threads: the test shows nothing"


# ---- poison --------------------------------------------------------------------------------------


def test_a_kernel_that_reads_unwritten_memory_sees_the_same_poison_in_both_tiers(tmp_path) -> None:
    opened = d.session(d.map_design("accumulate", total=32), tmp_path, tier="auto")
    small = DATA[:32] + 1
    results = [d.run(opened, [small], np.zeros(32, np.int32)).tobytes() for _ in range(3)]
    assert tiers(opened) == ["event", "replay", "replay"]
    assert results[0] == results[1] == results[2]
    poison = np.array([0x7FA57FA5], np.uint32).view(np.int32)
    with np.errstate(over="ignore"):
        assert results[0] == (small + poison).tobytes()


# ---- slices --------------------------------------------------------------------------------------


def two_level(offsets: list[tuple[int, int]]) -> str:
    """@main runs @work on slices of one arena, one configure each."""
    runs = []
    for number, (source, dest) in enumerate(offsets):
        tag = "abcdefgh"[number]
        for letter, offset in (("x", source), ("y", dest)):
            runs.append(
                f"%{letter}{tag}v = memref.subview %a[{offset}] [128] [1] : memref<1024xi32> to "
                f"memref<128xi32, strided<[1], offset: {offset}>>\n"
                f"%{letter}{tag} = memref.reinterpret_cast %{letter}{tag}v to offset: [0], sizes: [128], strides: [1] : "
                f"memref<128xi32, strided<[1], offset: {offset}>> to memref<128xi32>"
            )
        runs.append(
            f"aiex.configure @work {{\naiex.run @seq(%x{tag}, %y{tag}) : (memref<128xi32>, memref<128xi32>)\n}}"
        )
    work = d.map_design().replace("@main", "@work").removeprefix("module {\n").rstrip().removesuffix("}")
    main = "aie.device(npu2) @main {\n" + d.sequence([1024], *runs, name="all") + "\n}\n"
    return "module {\n" + work + main + "}\n"


def test_one_schedule_serves_every_slice(tmp_path) -> None:
    text = two_level([(0, 512), (128, 640), (512, 768), (640, 896)])
    arena = np.zeros(1024, np.int32)
    arena[:256] = np.arange(256)
    opened = d.session(text, tmp_path, tier="auto")
    opened.bind("all", {0: "arena"})
    opened.allocate("arena", 4096)
    for _ in range(2):
        opened.write("arena", 0, arena)
        opened.run("all")
        got = opened.read("arena", 0, (1024,), np.int32)
        assert got[512:768].tolist() == [*range(1, 257)]
        assert got[768:].tolist() == [*range(2, 258)]
    assert tiers(opened) == ["event", *["replay"] * 7]
    assert [r.arguments for r in opened.log()][1] == ((0, 512, 512), (0, 2560, 512))
    assert len(list((tmp_path / "schedules").iterdir())) == 1


def test_slices_that_overlap_have_a_schedule_of_their_own(tmp_path) -> None:
    """In place is a hazard that separate buffers do not have."""
    text = two_level([(0, 512), (0, 0), (64, 0)])
    outputs = []
    for tier in ("event", "auto"):
        opened = d.session(text, tmp_path, tier=tier)
        opened.bind("all", {0: "arena"})
        opened.allocate("arena", 4096)
        for _ in range(2):
            opened.write("arena", 0, np.arange(1024, dtype=np.int32))
            opened.run("all")
        outputs.append(opened.read("arena", 0, (1024,), np.int32).tobytes())
    assert outputs[0] == outputs[1]
    assert len(list((tmp_path / "schedules").iterdir())) == 3


def test_runs_inside_one_configure_share_its_memory(tmp_path) -> None:
    """The second run goes on where the first has left the core's sums; a new configure starts again."""
    kind = "memref<16xi32>"
    work = d.module(
        d.function("accumulate", kind, kind, "i32"),
        d.function("add_one", kind, kind, "i32"),
        d.TILES,
        f'%sums = aie.buffer(%c) {{sym_name = "sums"}} : {kind} = dense<0>',
        d.fifo("of_in", "s", "c", 16),
        d.fifo("of_out", "c", "s", 16),
        d.core(
            "c",
            "%n = arith.constant 16 : i32",
            d.acquire("x", "of_in", "Consume", 16),
            d.acquire("y", "of_out", "Produce", 16),
            f"func.call @accumulate(%x, %sums, %n) : ({kind}, {kind}, i32) -> ()",
            f"func.call @add_one(%sums, %y, %n) : ({kind}, {kind}, i32) -> ()",
            d.release("of_in", "Consume"),
            d.release("of_out", "Produce"),
        ),
        d.sequence(
            [16, 16],
            d.task("t", "of_in", "a", 16),
            d.task("u", "of_out", "b", 16, attributes=d.TOKEN),
            d.start("t", "u"),
            d.wait("u"),
            d.free("t"),
        ),
    )
    work = work.replace("@main", "@work").removeprefix("module {\n").rstrip().removesuffix("}")
    run = "aiex.run @seq(%a, {}) : (memref<16xi32>, memref<16xi32>)"
    body = f"aiex.configure @work {{\n{run.format('%b')}\n{run.format('%c')}\n}}\naiex.configure @work {{\n{run.format('%d')}\n}}"
    main = "aie.device(npu2) @main {\n" + d.sequence([16, 16, 16, 16], body, name="all") + "\n}\n"
    opened = d.session("module {\n" + work + main + "}\n", tmp_path, tier="auto")
    opened.bind("all", {0: "a", 1: "b", 2: "c", 3: "d"})
    for name in "abcd":
        opened.allocate(name, 64)
    for _ in range(2):
        opened.write("a", 0, DATA[:16])
        opened.run("all")
        for name, times in (("b", 1), ("c", 2), ("d", 1)):
            assert (opened.read(name, 0, (16,), np.int32) == times * DATA[:16] + 1).all()
    assert tiers(opened) == ["event", "event", "replay", "replay"]
    assert [record.sequence for record in opened.log()][:2] == ["seq+seq", "seq"]


def test_an_inner_slice_beyond_its_argument_is_refused(tmp_path) -> None:
    program = load_program(two_level([(0, 512)]))
    opened = d.session(program, tmp_path)
    run = program.device("main").sequences[0].instructions[0]
    object.__setattr__(run.arguments[0], "offset_bytes", 4000)
    opened.bind("all", {0: "arena"})
    opened.allocate("arena", 4096)
    with pytest.raises(DeviceFault, match=r"bytes 4000..4512 of argument 0.*out of range"):
        opened.run("all")


# ---- stored schedules ----------------------------------------------------------------------------


def test_a_new_session_replays_what_an_earlier_one_recorded(tmp_path) -> None:
    d.run(d.session(d.map_design(), tmp_path, tier="auto"), [DATA], OUT)
    opened = d.session(d.map_design(), tmp_path, tier="auto")
    assert (d.run(opened, [DATA], OUT) == DATA + 1).all()
    assert tiers(opened) == ["replay"]


def test_a_changed_define_never_meets_a_stale_schedule(tmp_path) -> None:
    d.run(d.session(d.map_design(), tmp_path, tier="auto"), [DATA], OUT)
    opened = d.session(d.map_design(), tmp_path, tier="auto", BIAS="5")
    for tier in ("event", "replay"):
        assert (d.run(opened, [DATA], OUT) == DATA + 5).all()
        assert tiers(opened)[-1] == tier


def test_a_changed_design_never_meets_a_stale_schedule(tmp_path) -> None:
    d.run(d.session(d.map_design(), tmp_path, tier="auto"), [DATA], OUT)
    opened = d.session(d.map_design(elements=32), tmp_path, tier="auto")
    d.run(opened, [DATA], OUT)
    assert tiers(opened) == ["event"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "renamed"])
def test_a_damaged_schedule_is_recorded_again(damage, tmp_path) -> None:
    d.run(d.session(d.map_design(), tmp_path, tier="auto"), [DATA], OUT)
    d.run(d.session(d.map_design(elements=32), tmp_path, tier="auto"), [DATA], OUT)
    files = sorted((tmp_path / "schedules").iterdir(), key=lambda p: p.stat().st_mtime_ns)
    content = bytearray(files[0].read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
    elif damage == "empty":
        content = bytearray()
    else:
        content = bytearray(files[1].read_bytes())  # a whole file of another design under this name
    files[0].write_bytes(content)
    opened = d.session(d.map_design(), tmp_path, tier="auto")
    assert (d.run(opened, [DATA], OUT) == DATA + 1).all()
    assert tiers(opened) == ["event"]
    assert (d.run(opened, [DATA], OUT) == DATA + 1).all()


def test_a_process_killed_while_it_stores_leaves_nothing_to_read(tmp_path) -> None:
    """The process ends between writing and renaming; the next one records again."""
    script = (
        "import os, pathlib, sys, numpy as np\n"
        "pathlib.Path.replace = lambda self, target: os._exit(9)\n"
        "from tests.npu.twin import engine_designs as d\n"
        "data = np.arange(128, dtype=np.int32)\n"
        "d.run(d.session(d.map_design(), pathlib.Path(sys.argv[1]), tier='auto'), [data], data)\n"
    )
    d.library()  # compiled before: only the schedule is written by the child
    root = Path(__file__).parents[3]
    child = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert child.returncode == 9
    assert [p.suffix for p in (tmp_path / "schedules").iterdir()] == [".partial"]
    opened = d.session(d.map_design(), tmp_path, tier="auto")
    assert (d.run(opened, [DATA], OUT) == DATA + 1).all()
    assert tiers(opened) == ["event"]


# ---- data-dependent control flow -----------------------------------------------------------------

KIND = "memref<16xi32>"


def counted_core(count: str) -> str:
    """A core that repeats add_one as often as `count` (operations that define %times) says."""
    return d.core(
        "c",
        "%n = arith.constant 16 : i32",
        d.acquire("x", "of_in", "Consume", 16),
        d.acquire("y", "of_out", "Produce", 16),
        f"func.call @add_one(%x, %y, %n) : ({KIND}, {KIND}, i32) -> ()",
        count,
        f"scf.for %k = %c0 to %times step %c1 {{\nfunc.call @add_one(%y, %y, %n) : ({KIND}, {KIND}, i32) -> ()\n}}",
        d.release("of_in", "Consume"),
        d.release("of_out", "Produce"),
    )


def counted(count: str, *instructions: str) -> str:
    return d.module(
        d.function("add_one", KIND, KIND, "i32"),
        d.TILES,
        '%rtp = aie.buffer(%c) {sym_name = "rtp"} : memref<4xi32>',
        d.fifo("of_in", "s", "c", 16),
        d.fifo("of_out", "c", "s", 16),
        counted_core(count),
        d.sequence(
            [128, 128],
            *instructions,
            d.task("t", "of_in", "a", 128),
            d.task("u", "of_out", "b", 128, attributes=d.TOKEN),
            d.start("t", "u"),
            d.wait("u"),
            d.free("t"),
        ),
    )


def test_a_loop_bound_read_from_data_runs_in_the_event_tier_only(tmp_path) -> None:
    text = counted("%w = memref.load %x[%c0] : memref<16xi32>\n%times = arith.index_cast %w : i32 to index")
    data = np.repeat(np.arange(8, dtype=np.int32), 16)
    opened = d.session(text, tmp_path, tier="auto")
    for values in (data, data[::-1].copy()):
        assert (d.run(opened, [values], OUT) == values + 1 + values).all()
    assert tiers(opened) == ["event", "event"]
    (note,) = opened.totals()["main"].notes
    assert note.startswith("event tier only") and "a loop bound of core(0,2) depends on data" in note
    with pytest.raises(DeviceFault, match="tier 'replay' was asked for"):
        d.run(d.session(text, tmp_path, tier="replay"), [data], OUT)


def test_a_loop_bound_from_rtp_write_is_a_constant_of_the_sequence(tmp_path) -> None:
    load = "%w = memref.load %rtp[%c1] : memref<4xi32>\n%times = arith.index_cast %w : i32 to index"
    opened = d.session(counted(load, "aiex.npu.rtp_write(@rtp, 1, 3)"), tmp_path, tier="auto")
    for tier in ("event", "replay"):
        assert (d.run(opened, [DATA], OUT) == DATA + 4).all()
        assert tiers(opened)[-1] == tier


def test_a_parameter_that_no_sequence_writes(tmp_path) -> None:
    load = "%w = memref.load %rtp[%c1] : memref<4xi32>\n%times = arith.index_cast %w : i32 to index"
    with pytest.raises(DeviceFault, match="loads byte 4 of buffer 'rtp' of core\\(0,2\\), which nobody wrote"):
        d.run(d.session(counted(load), tmp_path), [DATA], OUT)
