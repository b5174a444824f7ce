# SPDX-License-Identifier: Apache-2.0
"""What a design moves and computes on the twin, against plain Python loops over lists."""

from __future__ import annotations

import numpy as np
import pytest

from tests.npu.twin import engine_designs as d

TIERS = ("event", "replay")


def numbers(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**20), 2**20, count).astype(np.int32)


def run_twice(text: str, tmp_path, inputs: list[np.ndarray], output: np.ndarray) -> np.ndarray:
    """The output of the event tier; asserts that a second run, replayed, gives the same bits on other data too."""
    opened = d.session(text, tmp_path, tier="auto")
    first = d.run(opened, inputs, output)
    changed = [np.flip(array) for array in inputs]
    again = d.run(opened, changed, output)
    checked = d.run(d.session(text, tmp_path, tier="event"), changed, output)
    assert [record.tier for record in opened.log()] == ["event", "replay"]
    assert again.tobytes() == checked.tobytes()
    return first


def passthrough(elements: int = 32, total: int = 256, dims: str = "") -> str:
    return d.module(
        d.TILES,
        d.fifo("of_in", "s", "m", elements),
        d.fifo("of_out", "m", "s", elements, dims=dims),
        "aie.objectfifo.link [@of_in] -> [@of_out] ([] [])",
        d.sequence(
            [total, total],
            d.task("t", "of_in", "a", total),
            d.task("u", "of_out", "b", total, attributes=d.TOKEN),
            d.start("t", "u"),
            d.wait("u"),
            d.free("t"),
        ),
    )


def test_a_passthrough_moves_every_byte_once(tmp_path) -> None:
    data = numbers(256)
    assert (run_twice(passthrough(), tmp_path, [data], np.zeros_like(data)) == data).all()


def test_memtile_dims_reorder_each_element(tmp_path) -> None:
    data = numbers(256)
    text = passthrough(dims="dimensionsToStream [<size = 8, stride = 1>, <size = 4, stride = 8>]")
    expected = []
    for element in range(8):
        block = data[32 * element : 32 * element + 32]
        expected += [block[i * 1 + j * 8] for i in range(8) for j in range(4)]
    assert run_twice(text, tmp_path, [data], np.zeros_like(data)).tolist() == expected


def test_a_core_adds_one(tmp_path) -> None:
    data = numbers(128)
    assert (run_twice(d.map_design(), tmp_path, [data], np.zeros_like(data)) == data + 1).all()


def test_a_broadcast_reaches_every_destination_and_a_join_keeps_their_order(tmp_path) -> None:
    kind = "memref<16xi32>"
    cores = [f"c{letter}" for letter in "pqrs"]
    text = d.module(
        d.function("scale_by", kind, kind, "i32", "i32"),
        d.TILES,
        *(f"%{name} = aie.tile(0, {row + 2})" for row, name in enumerate(cores)),
        d.fifo("of_in", "s", " ".join(cores), 16),
        *(d.fifo(f"of_{name}", name, "m", 16) for name in cores),
        d.fifo("of_out", "m", "s", 64),
        f"aie.objectfifo.link [{', '.join('@of_' + c for c in cores)}] -> [@of_out] ([0, 16, 32, 48] [])",
        *(
            d.core(
                name,
                f"%n = arith.constant 16 : i32\n%k = arith.constant {index + 2} : i32",
                d.acquire("x", "of_in", "Consume", 16),
                d.acquire("y", f"of_{name}", "Produce", 16),
                f"func.call @scale_by(%x, %y, %k, %n) : ({kind}, {kind}, i32, i32) -> ()",
                d.release("of_in", "Consume"),
                d.release(f"of_{name}", "Produce"),
            )
            for index, name in enumerate(cores)
        ),
        d.sequence(
            [64, 256],
            d.task("t", "of_in", "a", 64),
            d.task("u", "of_out", "b", 256, attributes=d.TOKEN),
            d.start("t", "u"),
            d.wait("u"),
            d.free("t"),
        ),
    ).replace("%c = aie.tile(0, 2)\n", "")
    data = numbers(64)
    got = run_twice(text, tmp_path, [data], np.zeros(256, np.int32))
    expected = [data[16 * e + i] * k for e in range(4) for k in (2, 3, 4, 5) for i in range(16)]
    assert got.tolist() == expected


def test_a_distribute_gives_each_core_its_part(tmp_path) -> None:
    kind = "memref<8xi32>"
    cores = [f"c{letter}" for letter in "pqrs"]
    text = d.module(
        d.function("add_one", kind, kind, "i32"),
        d.TILES,
        *(f"%{name} = aie.tile(0, {row + 2})" for row, name in enumerate(cores)),
        d.fifo("of_in", "s", "m", 32),
        *(d.fifo(f"to_{name}", "m", name, 8) for name in cores),
        *(d.fifo(f"of_{name}", name, "m", 8) for name in cores),
        d.fifo("of_out", "m", "s", 32),
        f"aie.objectfifo.link [@of_in] -> [{', '.join('@to_' + c for c in cores)}] ([] [0, 8, 16, 24])",
        # joined in reverse order
        f"aie.objectfifo.link [{', '.join('@of_' + c for c in cores[::-1])}] -> [@of_out] ([0, 8, 16, 24] [])",
        *(d.map_core(name, "add_one", f"to_{name}", f"of_{name}", 8) for name in cores),
        d.sequence(
            [128, 128],
            d.task("t", "of_in", "a", 128),
            d.task("u", "of_out", "b", 128, attributes=d.TOKEN),
            d.start("t", "u"),
            d.wait("u"),
            d.free("t"),
        ),
    ).replace("%c = aie.tile(0, 2)\n", "")
    data = numbers(128)
    got = run_twice(text, tmp_path, [data], np.zeros_like(data))
    expected = [data[32 * e + 8 * (3 - part) + i] + 1 for e in range(4) for part in range(4) for i in range(8)]
    assert got.tolist() == expected


STRIDED = "0, 32, [<size = 4, stride = 64>, <size = 2, stride = 16>, <size = 4, stride = 4>, <size = 4, stride = 1>]"


def strided(repeat: int) -> str:
    """The input task steps its outermost dimension (the iteration) once per execution."""
    total = 32 * (repeat + 1)
    return d.module(
        d.TILES,
        d.fifo("of_in", "s", "m", 32),
        d.fifo("of_out", "m", "s", 32),
        "aie.objectfifo.link [@of_in] -> [@of_out] ([] [])",
        d.sequence(
            [256, total],
            d.task("t", "of_in", "a", 256, STRIDED, f"repeat_count = {repeat} : i32"),
            d.task("u", "of_out", "b", total, attributes=d.TOKEN),
            d.start("t", "u"),
            d.wait("u"),
            d.free("t"),
        ),
    )


@pytest.mark.parametrize("repeat", [0, 1, 3, 5])
def test_an_outer_dimension_moves_one_step_per_execution(repeat, tmp_path) -> None:
    """repeat_count 0 moves the first step only; beyond the size the iteration starts again."""
    data = numbers(256)
    got = run_twice(strided(repeat), tmp_path, [data], np.zeros(32 * (repeat + 1), np.int32))
    expected = [
        data[(n % 4) * 64 + i * 16 + j * 4 + k]
        for n in range(repeat + 1)
        for i in range(2)
        for j in range(4)
        for k in range(4)
    ]
    assert got.tolist() == expected


def test_one_shim_transfer_fills_elements_of_another_length(tmp_path) -> None:
    """The stream is a queue of bytes: BD boundaries of the two sides need not meet."""
    text = d.module(
        d.TILES,
        d.fifo("of_in", "s", "m", 24),
        d.fifo("of_out", "m", "s", 24),
        "aie.objectfifo.link [@of_in] -> [@of_out] ([] [])",
        d.sequence(
            [240, 240],
            d.task("t", "of_in", "a", 240, "0, 160"),
            d.task("v", "of_in", "a", 240, "160, 80"),
            d.task("u", "of_out", "b", 240, "120, 120"),
            d.task("w", "of_out", "b", 240, "0, 120", d.TOKEN),
            d.start("t", "v", "u", "w"),
            d.wait("w"),
            d.free("t", "v", "u"),
        ),
    )
    data = numbers(240)
    got = run_twice(text, tmp_path, [data], np.zeros_like(data))
    assert got.tolist() == [*data[120:], *data[:120]]


def test_a_memtile_pads_with_zeros(tmp_path) -> None:
    text = d.module(
        d.TILES,
        d.fifo("of_in", "s", "m", 24),
        "aie.objectfifo @of_out(%m dimensionsToStream [<size = 4, stride = 6>, <size = 6, stride = 1>], {%s}, 2 : i32) "
        "{padDimensions = #aie<bd_pad_layout_array[<const_pad_before = 1, const_pad_after = 0>, "
        "<const_pad_before = 0, const_pad_after = 2>]>} : !aie.objectfifo<memref<40xi32>>",
        "aie.objectfifo.link [@of_in] -> [@of_out] ([] [])",
        d.sequence(
            [48, 80],
            d.task("t", "of_in", "a", 48),
            d.task("u", "of_out", "b", 80, attributes=d.TOKEN),
            d.start("t", "u"),
            d.wait("u"),
            d.free("t"),
        ),
    )
    data = numbers(48)
    got = run_twice(text, tmp_path, [data], np.zeros(80, np.int32))
    expected = []
    for element in range(2):
        expected += [0] * 8
        for row in range(4):
            expected += [*data[24 * element + 6 * row : 24 * element + 6 * row + 6], 0, 0]
    assert got.tolist() == expected


def test_each_dispatch_starts_a_core_with_floor_rounding(tmp_path) -> None:
    text = d.map_design("sticky_rounding", 16, 64)
    opened = d.session(text, tmp_path, tier="auto")
    for _ in range(3):
        got = d.run(opened, [numbers(64)], np.zeros(64, np.int32))
        assert got.reshape(4, 16)[:, 0].tolist() == [0, 12, 12, 12]


def test_the_log_says_what_ran(tmp_path) -> None:
    opened = d.session(d.map_design(), tmp_path, tier="auto")
    for _ in range(2):
        d.run(opened, [numbers(128)], np.zeros(128, np.int32))
    event, replay = opened.log()
    for record, tier in ((event, "event"), (replay, "replay")):
        assert (record.design, record.sequence, record.tier) == ("main", "seq", tier)
        assert record.arguments == ((0, 0, 512), (1, 0, 512))
        assert record.kernel_calls == {(0, 2): 8}
        assert (record.ddr_read_bytes, record.ddr_write_bytes) == (512, 512)
        assert dict(record.channel_bytes)["core(0,2) S2MM 0"] == 512
    totals = opened.totals()["main"]
    assert (totals.dispatches, totals.kernel_calls[0, 2], totals.ddr_read_bytes) == (2, 16, 1024)


def test_multiply_adds_are_counted_per_core_and_dispatch(tmp_path) -> None:
    opened = d.session(d.map_design("vector_square"), tmp_path, tier="auto")
    for _ in range(3):
        d.run(opened, [numbers(128)], np.zeros(128, np.int32))
    for record in opened.log():
        assert record.mul_adds == record.vector_mul_adds == {(0, 2): 8 * 32}
        assert record.vector_ops[0, 2] > 0
    assert opened.totals()["main"].counter("mul_adds_vector") == {(0, 2): 3 * 8 * 32}


def test_a_buffer_begins_with_its_initial_value(tmp_path) -> None:
    """In every dispatch anew, also when the kernel has changed it: configure loads it again."""
    kind = "memref<16xi32>"
    text = d.module(
        d.function("accumulate", kind, kind, "i32"),
        d.function("add_one", kind, kind, "i32"),
        d.TILES,
        f'%sums = aie.buffer(%c) {{sym_name = "sums"}} : {kind} = dense<5>',
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
            [64, 64],
            d.task("t", "of_in", "a", 64),
            d.task("u", "of_out", "b", 64, attributes=d.TOKEN),
            d.start("t", "u"),
            d.wait("u"),
            d.free("t"),
        ),
    )
    data = numbers(64)
    got = run_twice(text, tmp_path, [data], np.zeros_like(data))
    assert (got.reshape(4, 16) == 6 + np.cumsum(data.reshape(4, 16), axis=0)).all()
