# SPDX-License-Identifier: Apache-2.0
"""The cost model: every term has a published rate, sums are what they say, and its error is computed, not claimed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest

from kernels.designs.design import single_design_artifact
from kernels.designs.rowwise import AddDesign
from npu import cost_rates as rates
from npu.cost import (
    CoreWork,
    Flow,
    Prediction,
    Term,
    Work,
    configuration_bytes,
    flow_of,
    instruction_cycles,
    predict_dispatch,
    predict_entry,
    predict_flow,
    predict_runs,
    switch_term,
)
from npu.cost_error import POINTS_PATH, cost_error, load_points
from npu.cost_rates import RATES, Rate
from npu.mlir.load import load_program
from npu.program import (
    AwaitTask,
    BufferDescriptor,
    Channel,
    ConfigureTask,
    Core,
    DeviceProgram,
    Direction,
    DmaProgram,
    FreeTask,
    Program,
    Route,
    Run,
    Sequence,
    StartTask,
    TileId,
)
from npu.twin.cores import COUNTERS
from npu.twin.log import DesignTotals
from pipeline.work import flow_of_design
from refusal import Refusal

SHIM, CORE = TileId(0, 0), TileId(0, 2)


def counted(dispatches: int = 2) -> DesignTotals:
    """Two dispatches of a design: core (1, 2) worked more than core (0, 2); shim 3 moved most."""
    row = {"vector_ops": 3600, "loads": 400, "stores": 100}
    busy = np.array([row.get(name, 0) for name in COUNTERS], np.uint64)
    return DesignTotals(
        "d", dispatches, Counter(), 1_000_000, 140_000, Counter({(0, 2): 4, (1, 2): 4}),
        {(0, 2): busy // 2, (1, 2): busy},
        Counter({"shim(0,0) MM2S 0": 60_000, "shim(3,0) MM2S 0": 40_000, "shim(3,0) MM2S 1": 50_000}),
    )  # fmt: skip


def tiny(name: str = "d", cores: int = 1) -> DeviceProgram:
    """One stream into a core: an element of 1,024 bytes."""
    source, dest = Channel(SHIM, Direction.MM2S, 0), Channel(CORE, Direction.S2MM, 0)
    element = BufferDescriptor(2, 0, 512, buffer="b")
    task = ConfigureTask(0, source, (BufferDescriptor(2, 0, 4096, argument=0),), True)
    sequence = Sequence("run", (), (task, StartTask(0), AwaitTask(0), FreeTask(0)))
    return DeviceProgram(
        name, "npu2", (SHIM, CORE), dmas=(DmaProgram(dest, (element, element)),), routes=(Route(source, (dest,)),),
        cores=tuple(Core(TileId(col, 2), ()) for col in range(cores)), sequences=(sequence,),
    )  # fmt: skip


# ---- sources ----


def test_a_rate_without_a_source_or_a_date_cannot_be_made() -> None:
    for source, date in (("", "2026"), ("somewhere", ""), ("  ", "2026")):
        with pytest.raises(Refusal, match="where the number is from"):
            Rate("r", 1.0, "B/s", source, date)


@pytest.mark.parametrize("value", (0.0, -1.0, float("nan"), float("inf")))
def test_a_rate_is_a_finite_number_above_zero(value: float) -> None:
    with pytest.raises(Refusal):
        Rate("r", value, "B/s", "somewhere", "2026")


def test_a_term_without_a_rate_cannot_be_made() -> None:
    with pytest.raises(Refusal, match="rate with a source"):
        Term("DDR", 1e-6, 57.0, "B", None)  # type: ignore[arg-type]


def test_a_prediction_is_never_anything_but_a_model() -> None:
    term = Term("DDR", 1e-6, 57.0, "B", rates.DDR)
    with pytest.raises(Refusal, match="model"):
        Prediction("d", (), (term,), provenance="npu")
    with pytest.raises(Refusal, match="no overlapped term"):
        Prediction("d", (), ())
    with pytest.raises(FrozenInstanceError):
        Prediction("d", (), (term,)).provenance = "npu"  # type: ignore[misc]


def test_every_line_of_a_prediction_names_the_source_of_its_rate() -> None:
    device = tiny()
    prediction = predict_dispatch(device, device.sequence("run"), counted(), launch=rates.STANDALONE_DISPATCH)
    for term, line in zip((*prediction.serial, *prediction.overlapped), prediction.lines()[1:], strict=True):
        assert term.rate.source in line
    assert "(model)" in prediction.lines()[0]
    assert len(RATES) >= 15


# ---- what is counted ----


def test_work_is_the_mean_dispatch_of_the_busiest_of_each() -> None:
    work = Work.of(counted())
    assert work.core == CoreWork((1, 2), 2, 1800, 200, 50)
    assert work.channel == ("shim(0,0) MM2S 0", 30_000)
    assert work.column == ("shim(3,0) MM2S", 45_000)  # two channels share the column
    assert work.ddr_bytes == 570_000


def test_cycles_of_a_core_are_those_of_its_busiest_slot_and_a_cost_a_call() -> None:
    assert CoreWork((0, 2), 2, 1800, 200, 50).cycles == 1800 + 2 * 60
    assert CoreWork((0, 2), 0, 10, 400, 50).cycles == 200  # two loads a cycle
    assert CoreWork((0, 2), 0, 10, 40, 50).cycles == 50


def test_nothing_is_predicted_for_a_design_that_never_ran() -> None:
    with pytest.raises(Refusal, match="at least one on the twin"):
        Work.of(counted(dispatches=0))
    with pytest.raises(Refusal, match="no counts of @d"):
        predict_runs("e", [("d", True)], {"d": tiny()}, {})


def test_instructions_after_the_first_wait_overlap_with_data() -> None:
    bd = BufferDescriptor(2, 0, 64, argument=0)
    first = ConfigureTask(0, Channel(SHIM, Direction.MM2S, 0), (bd, bd), False)
    later = ConfigureTask(1, Channel(SHIM, Direction.MM2S, 0), (bd,), False)
    sequence = Sequence("run", (), (first, StartTask(0), AwaitTask(0), later, StartTask(1), FreeTask(1)))
    a_bd = 2 * 100 + 8 * 13
    assert instruction_cycles(sequence) == (2 * a_bd + 100, 100 + a_bd + 100)


# ---- sums ----


def test_serial_terms_add_up_and_the_largest_overlapped_one_counts() -> None:
    flow = Flow(
        Work(CoreWork((0, 2), 0, 1.8e5, 0, 0), ("c", 8900.0), ("s", 14350.0), 57_000.0), (1800.0, 180.0), 8900.0
    )
    prediction = predict_flow("d", flow)
    assert prediction.bound.name == "compute"
    fill = 1e-6 + 1330 / 1.8e9
    assert prediction.seconds == pytest.approx(100e-6 + 1e-6 + fill)
    named = {term.name: term.seconds for term in prediction.overlapped}
    assert named == pytest.approx({"compute": 1e-4, "channel": 1e-6, "column": 1e-6, "DDR": 1e-6, "controller": 1e-7})


@pytest.mark.parametrize("name", ("compute", "channel", "column", "DDR", "controller"))
def test_each_resource_can_bind_and_is_named(name: str) -> None:
    amount = dict.fromkeys(("compute", "channel", "column", "DDR", "controller"), 1.0) | {name: 1e9}
    work = Work(
        CoreWork((0, 2), 1, amount["compute"], 0, 0), ("c", amount["channel"]), ("s", amount["column"]), amount["DDR"]
    )
    assert predict_flow("d", Flow(work, (0.0, amount["controller"]), 0.0)).bound.name == name


def test_a_switch_is_a_floor_and_the_designs_bytes_over_a_rate_never_a_constant() -> None:
    small, large = switch_term(tiny(cores=8)), switch_term(tiny(cores=32))
    assert large.seconds > small.seconds > rates.SWITCH_FLOOR.value
    assert large.amount - small.amount == 24 * rates.CORE_CODE_BYTES.value
    assert configuration_bytes(tiny(cores=0)) == 4 * (2 * 8 + 2 * 6)


def test_an_entry_is_one_launch_and_switches_where_the_design_changes() -> None:
    a, b = tiny("a"), tiny("b")
    flow = flow_of(a, a.sequence("run"), counted())
    once = predict_flow("a", flow).seconds
    runs = [("a", True), ("a", False), ("b", False), ("a", True)]
    entry = predict_runs("e", runs, {"a": a, "b": b}, {"a": flow, "b": flow})
    assert {name: (count, switches) for name, (count, switches, _) in entry.parts.items()} == {"a": (3, 2), "b": (1, 1)}
    assert entry.seconds == pytest.approx(52e-6 + 4 * once + 3 * switch_term(a).seconds)
    assert sum(entry.by_term().values()) == pytest.approx(entry.seconds)
    assert entry.provenance == "model"


def test_an_entry_of_a_module_is_the_runs_of_its_sequence() -> None:
    a, b = tiny("a"), tiny("b")
    main = DeviceProgram("main", "npu2", sequences=(Sequence("e", (), (Run("a", "run", ()), Run("b", "run", ()))),))
    program = Program((a, b, main), "0" * 64)
    found = predict_entry(program, "main", "e", {"a": Work.of(counted()), "b": counted()})
    flow = flow_of(a, a.sequence("run"), counted())
    same = predict_runs("e", [("a", True), ("b", True)], {"a": a, "b": b}, {"a": flow, "b": flow})
    assert found.seconds == pytest.approx(same.seconds)
    with pytest.raises(Refusal, match="no counts of @b"):
        predict_entry(program, "main", "e", {"a": counted()})


# ---- against published timings ----


def test_the_error_is_computed_from_the_points_and_stays_what_it_was() -> None:
    statements = {statement.kernel: statement for statement in cost_error()}
    points = load_points().points
    assert statements["all"].count == len(points) >= 60
    assert {"GEMM", "GEMV", "EltwiseAdd", "RMSNorm", "SiLU", "RoPE"} <= statements.keys()
    # A first estimate: a change of the model that makes it worse than this must be seen.
    assert statements["all"].median < 0.30
    assert statements["all"].largest < 0.65


def test_a_rate_that_is_off_shows_in_the_stated_error(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cost_error()[-1].median
    monkeypatch.setattr(rates, "DDR", Rate("DDR", 7.2e9, "B/s", "planted", "2026"))
    assert cost_error()[-1].median > 2 * before


def test_points_say_where_they_were_published_and_hold_our_own_counts(tmp_path: Path) -> None:
    assert "mlir-air" in load_points().source
    cache = tmp_path / "cache"
    cache.mkdir()
    point = min((p for p in load_points().points if p.kernel == "EltwiseAdd"), key=lambda p: p.ddr_bytes)
    rows, width = (int(part[1:]) for part in point.design.split("_")[1:3])
    design = AddDesign(rows, width)
    assert point.design == design.name
    program = load_program(single_design_artifact(design).text).device(design.name)
    assert instruction_cycles(program.sequence("run")) == point.instructions
    assert point.ddr_bytes == design.ddr_bytes  # the page's formula, counted on the twin


@pytest.mark.parametrize("damage", ("no source", "no points", "unknown field"))
def test_a_points_file_that_is_not_whole_is_refused(tmp_path: Path, damage: str) -> None:
    raw = json.loads(POINTS_PATH.read_text())
    if damage == "no source":
        raw["source"] = ""
    elif damage == "no points":
        raw["points"] = []
    else:
        raw["points"][0]["measured_by_us"] = True
    path = tmp_path / "points.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(Refusal):
        cost_error(path)


def test_counts_of_a_small_design_come_from_the_twin_and_are_kept(tmp_path: Path) -> None:
    from npu.twin.device import TwinDevice

    design = AddDesign(8, 64)
    flow = flow_of_design(design, TwinDevice(tmp_path), tmp_path)
    assert flow.work.ddr_bytes == design.ddr_bytes == 3 * 8 * 64 * 2
    assert flow.work.core.calls == 1  # one row a column
    assert flow_of_design(design, TwinDevice(tmp_path), tmp_path) == flow
    assert len(list((tmp_path / "work").iterdir())) == 1
