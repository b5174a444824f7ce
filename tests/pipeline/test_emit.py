# SPDX-License-Identifier: Apache-2.0
"""emit -> run_here.sh -> import-results, end to end with stand-ins for the tools and the array, and what each step refuses."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from judge import evidence
from judge.fixture import write_fixture
from pipeline import exercise
from pipeline.context import CACHE_VARIABLE
from pipeline.emission import RECEIPTS, RUNTIME
from pipeline.intake import choices_for
from pipeline.model_session import legality_of
from pipeline.verbs.emit import emit
from pipeline.verbs.import_results import import_results
from planner.module import write_module
from planner.plan import make_plan
from reference.oracle.config import load_config
from refusal import Refusal
from tests.skills.test_documents import wrong_commands
from tests.stand_ins import npu_tools
from tests.twin_device import CACHE

PACK = Path(__file__).resolve().parents[2]
ADD = ("add", "-M", "64", "-N", "128")
# The runtime's own copy of `npu` stays in charge; the twin, which the stand-in runs on, is found beside it.
PYXRT = f"""
import os, sys
sys.path.append({str(PACK)!r})
import npu
npu.__path__.append({str(PACK / "npu")!r})
import npu.xrt
npu.xrt.DISPATCH_SECONDS = 300.0  # the twin is no NPU
from tests.stand_ins.fake_xrt import FakeXrt
from tests.twin_device import twin
_fake = FakeXrt(twin())
_fake.fault = os.environ.get("FAKE_XRT_FAULT", "")
def __getattr__(name):
    return getattr(_fake, name)
"""


@dataclass
class Bench:
    """A working directory, and a machine with an NPU (of stand-ins) beside it."""

    desk: Path
    tools: dict[str, str]

    def run_here(self, folder: Path, *words: str, fault: str = "") -> subprocess.CompletedProcess[str]:
        environment = self.tools | {"FAKE_XRT_FAULT": fault, "PYTHON": sys.executable, "TMPDIR": str(self.desk)}
        return subprocess.run(
            ["sh", str(folder / "run_here.sh"), *words], env=environment, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("machine")
    (folder / "python").mkdir()
    (folder / "python" / "pyxrt.py").write_text(PYXRT)
    return npu_tools.install(folder) | {"PYTHONPATH": str(folder / "python")}


@pytest.fixture
def bench(tmp_path, monkeypatch, machine) -> Bench:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CACHE_VARIABLE, str(CACHE / "twin"))
    return Bench(tmp_path, machine)


@pytest.fixture(scope="module")
def ran(tmp_path_factory, machine):
    """A desk on which `add` was emitted and run: (desk, folder); tests copy it."""
    desk = tmp_path_factory.mktemp("ran desk")
    before = Path.cwd()
    os.chdir(desk)
    os.environ[CACHE_VARIABLE] = str(CACHE / "twin")
    try:
        assert emit([*ADD, "--out", "box"]).code == 0
        ended = Bench(desk, machine).run_here(desk / "box")
        assert ended.returncode == 0, ended.stdout + ended.stderr
    finally:
        os.chdir(before)
        del os.environ[CACHE_VARIABLE]
    return desk


@pytest.fixture
def box(ran, bench) -> Path:
    """An own copy of the emitted folder with its results, and of the receipt."""
    for name in ("box", "deployments"):
        shutil.copytree(ran / name, bench.desk / name)
    return bench.desk / "box"


def reseal(folder: Path, change) -> None:
    """Edit results.json the way a careful forger would: with a seal that fits."""
    raw = json.loads((folder / "results.json").read_text())
    raw.pop("digest")
    change(raw)
    (folder / "results.json").write_text(json.dumps(raw | {"digest": evidence.digest(raw)}))


def records() -> list[evidence.Record]:
    return list(evidence.records(RECEIPTS / "evidence.jsonl"))


def test_a_kernel_goes_out_and_comes_back_as_evidence_marked_npu(box):
    end = import_results([str(box / "results.json")])
    assert end.code == 0
    (record,) = records()
    entry = record.entry
    assert (entry.device, entry.tier) == ("npu", "npu")
    assert entry.body["passed"]
    assert entry.body["rejudged"]
    assert {figure.provenance for figure in entry.figures.values()} == {"npu"}
    assert entry.figures["time/median"].value > 0
    assert {"abs", "rel", "bias", "gain", "abs_worst_position"} <= set(entry.figures)
    manifest = evidence.file_digest(box / "manifest.json")
    assert entry.inputs["emission"] == manifest
    assert "stand-in version" in entry.body["tools"]["clang"]


def test_results_hold_three_dispatches_and_at_least_twenty_times_with_their_spread(box):
    (found,) = json.loads((box / "results.json").read_text())["designs"].values()
    assert [dispatch["status"] for dispatch in found["dispatches"]] == ["COMPLETED"] * 3
    assert [read["equal_to_twin"] for read in found["reads"]] == [1.0] * 3
    assert len(found["seconds"]) >= 20
    assert found["time"]["least"] <= found["time"]["quartile_low"] <= found["time"]["median"] <= found["time"]["most"]


def test_run_heres_figures_are_the_judges(box):
    """Two implementations of one definition: run_here's in NumPy alone, and judge.metrics."""
    import_results([str(box / "results.json")])
    (found,) = json.loads((box / "results.json").read_text())["designs"].values()
    for metric in ("abs", "rel", "pearson_loss", "bias", "gain"):
        worst = max(read["against_oracle"][metric] for read in found["reads"])
        assert records()[0].entry.figures[metric].value == pytest.approx(worst, rel=1e-6, abs=1e-12), metric


def test_the_three_cases_differ_and_the_manifest_covers_every_file(box):
    description = json.loads(next(box.glob("designs/*/design.json")).read_text())
    reads = [step for step in description["tape"] if step["do"] == "read"]
    assert len({step["want"] for step in reads}) == len({step["twin"] for step in reads}) == 3
    assert description["gate"] == "phase1.add"
    assert description["thresholds"]["rel"] > 0
    listed = set(json.loads((box / "manifest.json").read_text())["files"])
    made_later = {"manifest.json", "results.json"}
    there = {str(p.relative_to(box)) for p in box.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert {p for p in there if not p.startswith(("outputs/", "build/"))} - made_later == listed


def test_what_is_emitted_imports_nothing_but_the_standard_library_and_numpy():
    allowed = sys.stdlib_module_names | {
        "numpy",
        "refusal",
        "npu.artifact",
        "npu.device",
        "npu.kernel_source",
        "npu.toolchain",
        "npu.xrt",
    }
    for name in (*RUNTIME, "pipeline/run_here.py"):
        tree = ast.parse((PACK / name).read_text())
        for node in ast.walk(tree):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert [m for m in modules if m not in allowed and m.split(".")[0] not in allowed] == [], name


def test_without_outputs_the_figures_are_run_heres_and_the_record_says_so(box):
    shutil.rmtree(box / "outputs")
    assert import_results([str(box / "results.json")]).code == 0
    assert records()[0].entry.body["rejudged"] is False
    assert "abs_worst_position" not in records()[0].entry.figures


def test_an_edited_results_file_is_refused(box):
    text = (box / "results.json").read_text()
    (box / "results.json").write_text(text.replace('"status": "COMPLETED"', '"status": "TIMEOUT"', 1))
    with pytest.raises(Refusal, match="seal does not fit"):
        import_results([str(box / "results.json")])


def test_better_figures_under_a_new_seal_do_not_help_where_the_outputs_are(box):
    output = next((box / "outputs").glob("*.npy"))
    values = np.load(output)
    np.save(output, values + 1)
    with pytest.raises(Refusal, match="the output that was recorded"):
        import_results([str(box / "results.json")])


def spoil_output(box: Path) -> None:
    """A device that computed something else: the recorded output and its hash agree with each other, not with the oracle."""
    (found,) = json.loads((box / "results.json").read_text())["designs"].values()
    name = found["reads"][1]["output"]
    values = np.load(box / "outputs" / f"{name}.npy") ^ np.uint16(0x0100)
    other = hashlib.sha256(values.tobytes()).hexdigest()
    np.save(box / "outputs" / f"{other}.npy", values)

    def swap(raw: dict) -> None:
        next(iter(raw["designs"].values()))["reads"][1]["output"] = other

    reseal(box, swap)


def test_wrong_outputs_fail_whatever_the_results_file_claims(box):
    spoil_output(box)
    end = import_results([str(box / "results.json")])
    assert end.code == 1
    assert "debug-wrong-values" in end.next
    assert not records()[0].entry.body["passed"]


def change_kernel(box: Path) -> None:
    path = next(box.glob("designs/*/kernels/add/add.cc"))
    path.write_text(path.read_text() + "// faster\n")


def change_expectation(box: Path) -> None:
    (box / json.loads(next(box.glob("designs/*/design.json")).read_text())["tape"][-1]["want"]).unlink()


@pytest.mark.parametrize("change", [change_kernel, change_expectation])
def test_a_changed_folder_neither_runs_nor_counts(box, bench, change):
    change(box)
    ended = bench.run_here(box)
    assert ended.returncode == 2
    assert "refused: files changed" in ended.stderr
    with pytest.raises(Refusal, match="changed or are gone"):
        import_results([str(box / "results.json")])


def test_results_of_another_emission_are_refused(box, bench):
    emit(["add", "-M", "64", "-N", "64", "--out", "other"])
    with pytest.raises(Refusal, match="results of emission"):
        import_results([str(box / "results.json"), "--emitted", "other"])


def test_an_emission_that_was_not_made_here_is_refused(box):
    shutil.rmtree("deployments")
    with pytest.raises(Refusal, match="was not made here"):
        import_results([str(box / "results.json")])


def test_another_artifact_a_missing_design_and_an_invented_status_are_refused(box):
    original = (box / "results.json").read_text()

    def first(raw: dict) -> dict:
        return next(iter(raw["designs"].values()))

    for change, reason in (
        (lambda raw: first(raw).update(artifact="0" * 64), "ran artifact"),
        (lambda raw: raw["designs"].clear(), "every design"),
        (lambda raw: first(raw).update(status="FINE"), "status 'FINE'"),
    ):
        (box / "results.json").write_text(original)
        reseal(box, change)
        with pytest.raises(Refusal, match=reason):
            import_results([str(box / "results.json")])


def test_a_status_other_than_completed_fails_even_under_a_seal_that_fits(box):
    def hide(raw: dict) -> None:
        next(iter(raw["designs"].values()))["dispatches"][2]["status"] = "TIMEOUT"

    reseal(box, hide)
    assert import_results([str(box / "results.json")]).code == 1
    assert records()[0].entry.figures == {}


def first(raw: dict) -> dict:
    return next(iter(raw["designs"].values()))


def remove(*path: object):
    """A change that takes one value out of the first design."""

    def change(raw: dict) -> None:
        place = first(raw)
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]

    return change


def put(value: object, *path: object):
    """A change that puts one value into the first design."""

    def change(raw: dict) -> None:
        place = first(raw)
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


def slower_median(raw: dict) -> None:
    first(raw)["time"]["median"] *= 0.5


def fewer_times(raw: dict) -> None:
    first(raw)["seconds"].pop()


def fewer_promised(raw: dict) -> None:
    raw["iterations"] = 3
    del first(raw)["seconds"][3:]


WHOLE = ("abs", "rel", "pearson_loss", "bias", "gain")
# what somebody sealed again -> words of the refusal
RESEALED = {
    **{f"no {name} against the oracle": (remove("reads", 1, "against_oracle", name), name) for name in WHOLE},
    **{f"no {name} against the twin": (remove("reads", 1, "against_twin", name), name) for name in WHOLE},
    "no figures of a read": (remove("reads", 1, "against_oracle"), "against_oracle"),
    "a figure below zero": (put(-0.001, "reads", 1, "against_oracle", "rel"), "rel"),
    "a figure that is a word": (put("small", "reads", 1, "against_oracle", "rel"), "rel"),
    "more than all is equal": (put(1.5, "reads", 0, "equal_to_twin"), "equal_to_twin"),
    "a correlation beyond its range": (put(2.5, "reads", 0, "against_oracle", "pearson_loss"), "pearson_loss"),
    "an output without a hash": (put("none", "reads", 0, "output"), "output"),
    "a failure that has no name": (put(["odd"], "reads", 0, "failures"), "odd"),
    "within although a failure is named": (put(["stale"], "reads", 1, "failures"), "within"),
    "within although its figure is beyond": (put(1.9, "reads", 1, "against_oracle", "rel"), "within"),
    "not within although it is": (put(False, "reads", 1, "within"), "within"),
    "not passed although it did": (put(False, "passed"), "passed"),
    "a time below zero": (put(-1e-6, "seconds", 4), "seconds"),
    "a time of nothing": (put(0.0, "seconds", 4), "seconds"),
    "a median that the times do not have": (slower_median, "median"),
    "a time fewer than promised": (fewer_times, "20"),
    "fewer promised than are due": (fewer_promised, "20"),
    "no spread": (remove("time"), "time"),
    "another gate": (put("", "gate"), "gate"),
    "a dispatch that is none": (put(7, "dispatches", 0), "dispatches"),
    "reads that are none": (put({}, "reads"), "reads"),
    "a design that is none": (lambda raw: raw["designs"].update({next(iter(raw["designs"])): []}), "designs"),
    "designs that are none": (lambda raw: raw.update(designs=[]), "designs"),
    "a machine that is none": (lambda raw: raw.update(machine=3), "machine"),
    "no start": (lambda raw: raw.pop("started"), "started"),
    "an end that is no time": (lambda raw: raw.update(ended="later"), "ended"),
    "a word more": (lambda raw: raw.update(trust="me"), "trust"),
}


@pytest.mark.parametrize("outputs", [True, False])
@pytest.mark.parametrize("how", RESEALED)
def test_results_that_are_not_whole_or_contradict_themselves_are_refused_whatever_their_seal(how, outputs, box):
    if not outputs:
        shutil.rmtree(box / "outputs")
    change, word = RESEALED[how]
    reseal(box, change)
    with pytest.raises(Refusal) as refused:
        import_results([str(box / "results.json")])
    assert word in str(refused.value)
    assert not (RECEIPTS / "evidence.jsonl").exists()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_results_with_a_number_that_is_none_are_refused(number, box):
    text = (box / "results.json").read_text()
    value = json.dumps(first(json.loads(text))["seconds"][0])
    (box / "results.json").write_text(text.replace(value, number, 1))
    with pytest.raises(Refusal, match="not a results file"):
        import_results([str(box / "results.json")])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"\xff\xfe", b'{"digest": 3}'])
def test_a_file_that_holds_no_results_is_refused(content, box):
    (box / "results.json").write_bytes(content)
    with pytest.raises(Refusal, match="not a results file"):
        import_results([str(box / "results.json")])


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"files": []}', b"\xff"])
def test_a_folder_whose_manifest_is_none_is_refused(content, box):
    (box / "manifest.json").write_bytes(content)
    with pytest.raises(Refusal, match=r"manifest\.json"):
        import_results([str(box / "results.json")])


def test_a_read_or_a_dispatch_that_is_missing_is_no_pass(box):
    original = (box / "results.json").read_text()
    for change in (remove("reads", 2), remove("dispatches", 2)):
        (box / "results.json").write_text(original)
        reseal(box, change)
        assert import_results([str(box / "results.json")]).code == 1
        assert not records()[-1].entry.body["passed"]
        assert records()[-1].entry.figures == {}


def test_the_same_output_twice_is_stale_also_where_nobody_named_it(box):
    """Faults RT-02 without its outputs, by somebody who deleted the word."""
    shutil.rmtree(box / "outputs")
    output = first(json.loads((box / "results.json").read_text()))["reads"][0]["output"]
    reseal(box, put(output, "reads", 1, "output"))
    end = import_results([str(box / "results.json")])
    assert end.code == 1
    assert "debug-stale-data" in end.next


def test_one_output_that_was_not_brought_along_is_missed(box):
    """Else the one output that is wrong could be left behind, and its own figures would count."""
    (box / "outputs" / f"{first(json.loads((box / 'results.json').read_text()))['reads'][1]['output']}.npy").unlink()
    with pytest.raises(Refusal, match="1 of 3 outputs"):
        import_results([str(box / "results.json")])


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_an_output_that_is_no_array_is_refused(content, box):
    output = next((box / "outputs").glob("*.npy"))
    output.write_bytes(content)
    with pytest.raises(Refusal, match="no array"):
        import_results([str(box / "results.json")])


def test_what_could_not_be_judged_without_outputs_is_named_in_the_record(box):
    shutil.rmtree(box / "outputs")
    import_results([str(box / "results.json")])
    body = records()[0].entry.body
    assert body["not_measured"] == ["abs_worst_position", "pearson_loss_worst_position", "rel_worst_position"]


def test_the_same_results_count_once(box):
    import_results([str(box / "results.json")])
    with pytest.raises(Refusal, match="holds these results"):
        import_results([str(box / "results.json")])


@pytest.mark.parametrize("fault, status", [("timeout", "TIMEOUT"), ("silent timeout", "TIMEOUT"), ("error", "ERROR")])
def test_a_dispatch_that_does_not_complete_fails_here_and_there(box, bench, fault, status):
    """Faults RT-01: half of the output is written, and the state is the only sign."""
    ended = bench.run_here(box, fault=fault)
    assert ended.returncode == 1
    assert import_results([str(box / "results.json")]).code == 1
    entry = records()[0].entry
    assert (entry.body["status"], entry.body["passed"], entry.figures) == (status, False, {})


def test_a_stale_device_fails_here_and_there(box, bench):
    """Faults RT-02: right once, and the same again from then on."""
    ended = bench.run_here(box, fault="stale")
    assert ended.returncode == 1
    (found,) = json.loads((box / "results.json").read_text())["designs"].values()
    assert "stale" in found["reads"][1]["failures"]
    assert import_results([str(box / "results.json")]).code == 1


def test_a_machine_without_its_tools_says_all_that_is_missing_and_leaves_no_results(box, bench):
    bench.tools = {"PATH": "/usr/bin:/bin"}
    ended = bench.run_here(box)
    assert ended.returncode == 2
    for name in ("pyxrt", "aiecc", "Peano"):
        assert name in ended.stderr
    assert not (box / "results.json").exists()


def test_fewer_than_twenty_timed_dispatches_are_refused(box, bench):
    assert bench.run_here(box, "--iterations", "3").returncode == 2


def test_emit_goes_on_where_it_stopped_and_never_into_a_finished_or_foreign_folder(bench):
    emit([*ADD, "--out", "box"])
    with pytest.raises(Refusal, match="finished emission"):
        emit([*ADD, "--out", "box"])
    Path("mine").mkdir()
    Path("mine/notes").write_text("x")
    with pytest.raises(Refusal, match="not empty"):
        emit([*ADD, "--out", "mine"])
    Path("box/manifest.json").unlink()  # as a kill before the end leaves it
    written = next(Path("box").glob("designs/*/design.json")).stat().st_mtime_ns
    emit([*ADD, "--out", "box"])
    assert next(Path("box").glob("designs/*/design.json")).stat().st_mtime_ns == written


def test_a_kernel_without_its_shape_is_refused(bench):
    with pytest.raises(Refusal, match="without -N"):
        emit(["add", "-M", "64", "--out", "box"])
    assert not Path("box").exists()


@pytest.mark.slow
def test_a_models_designs_and_its_whole_module_go_out_and_come_back(bench):
    write_fixture(Path("small"))
    words = ["small", "--layers", "1", "--context", "256", "--entry", "decode_256", "--module", "--out", "box"]
    # A slow machine needs several calls: emit returns within its limit and goes on when it is called again.
    for _ in range(6):
        assert emit(words).code == 0
        if Path("box/designs/module/design.json").exists():
            break
    folder = Path("box").absolute()
    description = json.loads((folder / "designs/module/design.json").read_text())
    assert description["flow"] == "elf"
    assert [len(sizes) for sizes in description["arguments"].values()] == [5] * len(description["arguments"])
    ended = bench.run_here(folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((folder / "results.json").read_text())["designs"]
    assert {read["equal_to_twin"] for read in found["module"]["reads"]} == {1.0}
    assert import_results([str(folder / "results.json")]).code == 0
    assert all(record.entry.synthetic_weights for record in records())
    assert {"npu:module"} < {record.entry.subject for record in records()}


def test_the_page_on_hardware_names_commands_and_files_that_are_there():
    text = (PACK / "docs" / "on-hardware.md").read_text()
    assert wrong_commands(text) == []
    assert "Nothing on this page has run on an NPU" in text
    # The example of the page, word for word, is a command line that emit takes.
    assert "scripts/emit.py rmsnorm -M 64 -N 576 --out for-the-npu" in text


def test_an_output_that_is_seen_in_another_order_is_judged_in_that_order(bench, monkeypatch):
    """`Case.view` may pick and permute elements; the folder carries the order as indices."""
    plain = exercise.case_of

    def turned(design, rng):
        case = plain(design, rng)
        return replace(case, want=case.want[:, ::-1][:32], view=lambda out: out.reshape(64, 128)[:, ::-1][:32])

    monkeypatch.setattr(exercise, "case_of", turned)
    monkeypatch.setattr("pipeline.emission.case_of", turned)
    emit([*ADD, "--out", "box"])
    folder = Path("box").absolute()
    reads = [s for s in json.loads(next(folder.glob("designs/*/design.json")).read_text())["tape"] if s["do"] == "read"]
    assert np.load(folder / reads[0]["order"])[:3].tolist() == [127, 126, 125]
    assert bench.run_here(folder).returncode == 0
    assert import_results([str(folder / "results.json")]).code == 0


RESOURCES = (
    "builtin.module(aie.device(aie-assign-lock-ids,aie-register-objectFifos,aie-objectFifo-stateful-transform,"
    "aie-assign-bd-ids,aie-lower-cascade-flows,aie-lower-broadcast-packet,aie-lower-multicast,"
    "aie-assign-tile-controller-ids,aie-assign-buffer-addresses,aie-assign-core-link-files),"
    "convert-scf-to-cf,aie.device(aie-create-pathfinder-flows))"
)
SEQUENCES = (
    "builtin.module(aie-materialize-runtime-sequences,aie.device(aie-materialize-bd-chains,"
    "aie-substitute-shim-dma-allocations,aie-assign-runtime-sequence-bd-ids,aie-dma-tasks-to-npu,"
    "aie-dma-to-npu,aie-lower-set-lock))"
)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("aie-opt"), reason="1 module of every design of a model: no aie-opt on the PATH")
def test_the_module_of_a_model_is_accepted_by_aie_opt_down_to_npu_instructions(bench):
    config = load_config(write_fixture(Path("small")))
    choices = choices_for(config, layers=1, context=256)
    plan = make_plan(config, choices, legal=legality_of(CACHE / "twin"))
    Path("0.mlir").write_text(write_module(plan).text)
    for step, passes in enumerate((RESOURCES, SEQUENCES)):
        command = ["aie-opt", f"--pass-pipeline={passes}", f"{step}.mlir", "-o", f"{step + 1}.mlir"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Bank-aware allocation failed" not in done.stderr
    lowered = Path("2.mlir").read_text()
    assert "aie.objectfifo" not in lowered
    assert "dma_configure_task" not in lowered


@pytest.mark.skipif(not shutil.which("aiecc"), reason="1 emitted design: no aiecc on the PATH")
def test_an_emitted_design_is_accepted_by_aiecc_without_its_kernels(box):
    text = next(box.glob("designs/*/design.mlir"))
    command = ["aiecc", "--no-compile", "--no-link", "--no-xchesscc", "--no-xbridge", "--no-compile-host", str(text)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=box)
    assert done.returncode == 0, done.stderr
