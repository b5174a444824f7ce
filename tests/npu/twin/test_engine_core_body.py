# SPDX-License-Identifier: Apache-2.0
"""Core bodies that compute with scalars, hold several FIFO elements, and store by themselves."""

from __future__ import annotations

import numpy as np
import pytest

from npu.device import DeviceFault
from npu.program import Acquire, Core, FifoEnd, MemRef, Op, Release, TileId
from npu.twin.core_body import body_source, data_dependence
from npu.twin.memory import POISON, TILE_REGION, Memory, aligned_bytes
from npu.twin.scalar_ops import NAMESPACE, View, expression, load_element, store_element, subview
from tests.npu.twin import engine_designs as d

DATA = np.random.default_rng(3).integers(-(2**30), 2**30, 128).astype(np.int32)
OUT = np.zeros(128, np.int32)


def evaluate(name: str, *operands: int | float, **attributes: object) -> object:
    names = [f"a{i}" for i in range(len(operands))]
    text = expression(Op(name, "r", tuple(names), tuple(attributes.items())), names)
    return eval(text, {**NAMESPACE, **dict(zip(names, operands, strict=True))})


@pytest.mark.parametrize(
    ("name", "operands", "attributes", "expected"),
    [
        ("arith.addi", (2**31 - 1, 1), {"type": "i32"}, -(2**31)),
        ("arith.addi", (2**31 - 1, 1), {"type": "index"}, 2**31),
        ("arith.muli", (-3, 7), {"type": "i32"}, -21),
        ("arith.divsi", (-7, 2), {"type": "i32"}, -3),
        ("arith.remsi", (-7, 2), {"type": "i32"}, -1),
        ("arith.floordivsi", (-7, 2), {"type": "i32"}, -4),
        ("arith.ceildivsi", (7, 2), {"type": "i32"}, 4),
        ("arith.remui", (-1, 10), {"type": "i32"}, 5),
        ("arith.shrui", (-1, 28), {"type": "i32"}, 15),
        ("arith.cmpi", (-1, 1), {"predicate": "slt", "type": "i1"}, True),
        ("arith.cmpi", (-1, 1), {"predicate": "ult", "type": "i1"}, False),
        ("arith.select", (0, 4, 5), {"type": "i32"}, 5),
        ("arith.trunci", (300,), {"type": "i8"}, 44),
        ("arith.extui", (-1,), {"type": "i32"}, 2**32 - 1),
        ("arith.addf", (1.0, 2.0**-30), {"type": "f32"}, 1.0),
        ("arith.maxsi", (-5, 3), {"type": "i32"}, 3),
    ],
)
def test_scalar_operations_are_those_of_mlir(name, operands, attributes, expected) -> None:
    assert evaluate(name, *operands, **attributes) == expected


def test_an_unknown_operation_is_refused_by_name() -> None:
    with pytest.raises(DeviceFault, match=r"does not execute math\.cos in a core"):
        evaluate("math.cos", 1.0)


def buffer(dtype: str, elements: int) -> Memory:
    data = aligned_bytes(64, 64)
    data.view(np.uint32).fill(POISON)
    return Memory("b", data, MemRef((elements,), dtype), TILE_REGION, 64, TileId(0, 2))


def test_elements_round_and_wrap_as_their_type_does() -> None:
    half = View.of(buffer("bf16", 4))
    store_element(half, (1,), 1.00390625)  # half way between two bf16: to even
    store_element(half, (2,), 1.01171875)
    assert (load_element(half, (1,)), load_element(half, (2,))) == (1.0, 1.015625)
    byte = View.of(buffer("i8", 4))
    store_element(byte, (0,), 200)
    assert load_element(byte, (0,)) == -56


def test_views_stay_inside() -> None:
    whole = View(buffer("i32", 12), "i32", 0, (3, 4), (4, 1))
    column = subview(whole, (1, 2), (2, 2), (1, 1))
    store_element(column, (1, 1), 5)
    assert load_element(whole, (2, 3)) == 5
    with pytest.raises(DeviceFault, match="outside"):
        load_element(column, (2, 0))


def test_a_core_that_computes_by_itself(tmp_path) -> None:
    """Loads, arithmetic and stores without any kernel: it depends on data, so the event tier runs it."""
    text = d.module(
        d.TILES,
        d.fifo("of_in", "s", "c", 16),
        d.fifo("of_out", "c", "s", 16),
        d.core(
            "c",
            "%seven = arith.constant 7 : i32\n%c16 = arith.constant 16 : index",
            d.acquire("x", "of_in", "Consume", 16),
            d.acquire("y", "of_out", "Produce", 16),
            "scf.for %i = %c0 to %c16 step %c1 {\n%e = memref.load %x[%i] : memref<16xi32>\n"
            "%f = arith.muli %e, %seven : i32\nmemref.store %f, %y[%i] : memref<16xi32>\n}",
            d.release("of_in", "Consume"),
            d.release("of_out", "Produce"),
        ),
        d.sequence(
            [128, 128],
            d.task("t", "of_in", "a", 128),
            d.task("u", "of_out", "b", 128, attributes=d.TOKEN),
            d.start("t", "u"),
            d.wait("u"),
            d.free("t"),
        ),
    )
    opened = d.session(text, tmp_path, tier="auto")
    with np.errstate(over="ignore"):
        assert (d.run(opened, [DATA], OUT) == DATA * np.int32(7)).all()
    (note,) = opened.totals()["main"].notes
    assert "stores a value computed from data" in note


def test_a_window_holds_elements_over_several_acquires(tmp_path) -> None:
    """out[i] = in[i] + in[i+1]: two are held, one is released, and the last one at the end."""
    kind = "memref<16xi32>"
    text = d.module(
        d.function("sum_two", kind, kind, kind, "i32"),
        d.TILES,
        d.fifo("of_in", "s", "c", 16, depth=3),
        d.fifo("of_out", "c", "s", 16),
        d.core(
            "c",
            "%n = arith.constant 16 : i32\n%c7 = arith.constant 7 : index",
            "scf.for %i = %c0 to %c7 step %c1 {",
            d.acquire("x", "of_in", "Consume", 16, count=2),
            d.acquire("y", "of_out", "Produce", 16),
            f"func.call @sum_two(%x, %xb, %y, %n) : ({kind}, {kind}, {kind}, i32) -> ()",
            d.release("of_in", "Consume"),
            d.release("of_out", "Produce"),
            "}",
            d.release("of_in", "Consume"),
        ),
        d.sequence(
            [128, 112],
            d.task("t", "of_in", "a", 128),
            d.task("u", "of_out", "b", 112, attributes=d.TOKEN),
            d.start("t", "u"),
            d.wait("u"),
            d.free("t"),
        ),
    )
    opened = d.session(text, tmp_path, tier="auto")
    for _ in range(2):
        got = d.run(opened, [DATA], np.zeros(112, np.int32))
        rows = DATA.reshape(8, 16)
        assert got.tolist() == (rows[:-1] + rows[1:]).reshape(-1).tolist()
    assert [r.tier for r in opened.log()] == ["event", "replay"]


END = FifoEnd("f", "Consume", ("p", "q"), "have", "room")


def test_acquiring_more_than_the_pool_is_refused() -> None:
    core = Core(TileId(0, 2), (Acquire(0, 3, ("x", "y", "z")),), (END,))
    with pytest.raises(DeviceFault, match=r"acquires 3 elements of 'f'.*pool has 2"):
        body_source(core, frozenset({"p", "q"}))


def test_releasing_more_than_is_held_is_refused(tmp_path) -> None:
    text = d.map_design().replace(d.release("of_in", "Consume"), d.release("of_in", "Consume", 2))
    with pytest.raises(DeviceFault, match=r"core\(0,2\) releases 2 elements of 'of_in' and holds 1"):
        d.run(d.session(text, tmp_path), [DATA], OUT)


def test_a_value_loaded_from_a_fifo_element_is_data() -> None:
    body = (
        Acquire(0, 1, ("x",)),
        Op("arith.constant", "c", (), (("value", 0),)),
        Op("memref.load", "n", ("x", "c")),
        Op("arith.addi", "m", ("n", "c"), (("type", "i32"),)),
        Release(0, 1),
    )
    core = Core(TileId(0, 2), body, (END,))
    assert data_dependence(core, frozenset()) is None  # loaded, but nothing depends on it
