# SPDX-License-Identifier: Apache-2.0
"""The registry: a kernel that was verified as it is now is not run again; anything changed, altered or unproven is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from judge import evidence
from judge.fixture import write_fixture
from judge.policy import load_policy
from kernels.designs.design import OpDesign, single_design_artifact
from kernels.designs.rowwise import AddDesign, SiluMulDesign
from npu.artifact import Artifact
from npu.twin.device import TwinDevice
from pipeline import manifest, registry
from pipeline.conduct import run_phase
from pipeline.context import PhaseContext
from pipeline.deployment import Deployment
from pipeline.intake import describe
from pipeline.phases import kernels
from pipeline.registry import Registry, Row, engine_version, harvest, merge, rows_of

DESIGNS: tuple[OpDesign, ...] = (AddDesign(64, 128), SiluMulDesign(64, 128))


class Desk:
    """A working directory whose deployments plan two small designs; it counts what was run."""

    def __init__(self, root: Path, model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.model, self.cache = root, model, cache
        self.ran: list[str] = []
        self.lines: list[str] = []
        real = kernels.exercise

        def counted(design: OpDesign, *rest: object) -> object:
            self.ran.append(design.name)
            return real(design, *rest)

        monkeypatch.setattr(kernels, "exercise", counted)
        monkeypatch.setattr(kernels, "make_plan", lambda *_, **__: SimpleNamespace(designs=DESIGNS))

    def phase1(self, name: str, reuse: bool = True) -> evidence.Record:
        """Run phase 1 of a new deployment of the model; returns its record."""
        deployment = Deployment.start(describe(str(self.model), device="twin", name=name), self.root)
        inputs = deployment.description.inputs
        entry = evidence.Entry(
            evidence.Kind.GATE, "phase-0", {"passed": True, "gates": {}}, inputs=inputs, synthetic_weights=True
        )
        evidence.append(deployment.evidence, entry)
        ctx = PhaseContext(deployment, TwinDevice(self.cache), self.cache, self.lines.append, reuse=reuse)
        self.ran.clear()
        assert run_phase(ctx, 1) == 0, self.lines
        return self.last(name)

    def last(self, name: str) -> evidence.Record:
        found = [r for r in evidence.records(self.root / name / "evidence.jsonl") if r.entry.subject == "phase-1"]
        return found[-1]

    def rows(self) -> list[Row]:
        lines = (self.root / registry.NAME).read_bytes().splitlines()
        return [msgspec.json.decode(line, type=Row) for line in lines]

    def change_rows(self, **changes: object) -> None:
        lines = [json.dumps(msgspec.to_builtins(row) | changes) for row in self.rows()]
        (self.root / registry.NAME).write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fixture(tmp_path_factory.mktemp("m") / "small")


@pytest.fixture(scope="module")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def desk(tmp_path: Path, model: Path, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path / "deployments", model, kernel_cache, monkeypatch)


@pytest.fixture
def verified(desk: Desk) -> Desk:
    """A desk where one deployment has passed phase 1."""
    desk.phase1("first")
    assert desk.ran == [design.name for design in DESIGNS]
    return desk


def test_a_row_carries_what_its_verdict_depended_on_and_the_record_it_is_from(verified: Desk) -> None:
    rows, record = verified.rows(), verified.last("first")
    assert [row.design for row in rows] == [design.name for design in DESIGNS]
    for row, design in zip(rows, DESIGNS, strict=True):
        artifact = single_design_artifact(design)
        assert row.artifact == artifact.key
        assert set(row.kernels) == {obj.name for obj in artifact.objects}
        assert row.policy == load_policy().sha256
        assert (row.device, row.engine, row.deployment) == ("twin", engine_version(), "first")
        assert row.pack == record.entry.inputs["pack"]
        assert row.record == record.hash


def test_the_next_deployment_runs_none_of_it_again_and_its_record_says_so(verified: Desk) -> None:
    first = verified.last("first")
    second = verified.phase1("second")
    assert verified.ran == []
    assert second.entry.body["passed"] is True
    assert second.entry.body["gates"] == first.entry.body["gates"]
    for design in DESIGNS:
        assert second.entry.body["data"]["reused"][design.name] == (
            f"re-used from record {first.hash} of deployment first"
        )
    assert any(f"re-used from record {first.hash[:12]}" in line for line in verified.lines)


def test_what_was_re_used_gives_no_rows_of_its_own(verified: Desk) -> None:
    second = verified.phase1("second")
    assert rows_of(second, "second") == []
    assert {row.deployment for row in verified.rows()} == {"first"}


def test_judging_a_phase_again_and_evaluating_run_everything(verified: Desk) -> None:
    verified.phase1("second", reuse=False)
    assert len(verified.ran) == len(DESIGNS)
    assert len(verified.rows()) == len(DESIGNS)  # known already


def test_another_engine_makes_every_row_stale(verified: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "engine_version", lambda: "e" * 64)
    verified.phase1("second")
    assert len(verified.ran) == len(DESIGNS)


@pytest.mark.parametrize("what", ["policy", "device", "engine", "artifact", "kernels"])
def test_a_row_of_another_policy_device_engine_or_source_is_not_found(what: str, verified: Desk) -> None:
    design, policy, engine = DESIGNS[0], load_policy().sha256, engine_version()
    artifact = single_design_artifact(design)
    found = Registry(verified.root).find(design.name, artifact, policy, "twin", engine)
    assert found
    assert found.design == design.name
    asked = {"policy": policy, "device": "twin", "engine": engine}
    if what == "artifact":
        artifact = with_another_text(artifact)
    elif what == "kernels":
        verified.change_rows(kernels={"add_0.o": "0" * 64})
    else:
        asked[what] = "f" * 64
    assert (
        Registry(verified.root).find(design.name, artifact, asked["policy"], asked["device"], asked["engine"]) is None
    )


def with_another_text(artifact: Artifact) -> Artifact:
    """The same artifact with one more comment in its text: another key."""
    return replace(artifact, text=artifact.text + "// changed\n")


def test_the_engine_is_every_file_that_runs_feeds_or_judges_a_kernel(tmp_path: Path) -> None:
    for name in ("npu/twin/engine.py", "kernels/add/add.cc", "judge/gates.py", "pipeline/exercise.py",
                 "reference/oracle/ops.py", "npu/twin/include/aie_api/aie.hpp"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one")
    seen = {engine_version.__wrapped__(tmp_path)}
    for path in sorted(p for p in tmp_path.rglob("*") if p.is_file()):
        path.write_text("two")
        seen.add(engine_version.__wrapped__(tmp_path))
    assert len(seen) == 7


FORGERIES: dict[str, dict[str, object]] = {
    "a verdict that is not the record's": {"verdict": {"gate": "add", "passed": True, "findings": [], "failures": []}},
    "a record that is not there": {"record": "a" * 64},
    "a deployment that is not there": {"deployment": "elsewhere"},
    "a deployment outside the folder": {"deployment": "../elsewhere"},
    "another pack": {"pack": "b" * 64},
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_an_altered_row_is_refused_and_the_kernel_runs(forgery: str, verified: Desk) -> None:
    verified.change_rows(**FORGERIES[forgery])
    verified.phase1("second")
    assert len(verified.ran) == len(DESIGNS)
    assert any("registry row not used" in line for line in verified.lines)


def test_an_altered_chain_takes_its_rows_along(verified: Desk) -> None:
    path = verified.root / "first" / "evidence.jsonl"
    path.write_text(path.read_text().replace('"passed":true', '"passed":false', 1))
    verified.phase1("second")
    assert len(verified.ran) == len(DESIGNS)
    assert any("its evidence is broken" in line for line in verified.lines)


def test_a_failed_design_gives_no_row(verified: Desk) -> None:
    record = verified.last("first")
    body = json.loads(json.dumps(record.entry.body))
    body["gates"][DESIGNS[0].name]["passed"] = False
    failed = msgspec.structs.replace(record, entry=msgspec.structs.replace(record.entry, body=body))
    assert [row.design for row in rows_of(failed, "first")] == [DESIGNS[1].name]


def test_a_torn_line_is_passed_by(verified: Desk) -> None:
    with (verified.root / registry.NAME).open("ab") as stream:
        stream.write(b'{"design": "half a ro')
    verified.phase1("second")
    assert verified.ran == []


def pack_like(folder: Path) -> Path:
    """An empty pack with a manifest."""
    (folder / "kernels").mkdir(parents=True)
    manifest.write(folder)
    return folder


@pytest.fixture
def shipped(verified: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pack into which the desk's rows were merged, with its manifest written after."""
    pack = pack_like(tmp_path / "pack")
    monkeypatch.setattr(registry, "engine_version", lambda *_: engine_version())
    assert merge(verified.root, pack) == (len(DESIGNS), 1)
    manifest.write(pack)
    return pack


def shipped_row(pack: Path, elsewhere: Path) -> Row | None:
    """What a desk without deployments finds in the pack."""
    files = (pack / "kernels" / registry.NAME, pack / "kernels" / registry.SHIPPED_EVIDENCE.name)
    found = Registry(elsewhere, *files, pack)
    design = DESIGNS[0]
    return found.find(design.name, single_design_artifact(design), load_policy().sha256, "twin", engine_version())


def test_merged_rows_serve_another_desk_with_their_record(shipped: Path, verified: Desk, tmp_path: Path) -> None:
    row = shipped_row(shipped, tmp_path / "another desk")
    assert row is not None
    assert row.record == verified.last("first").hash


def test_merging_twice_changes_nothing(shipped: Path, verified: Desk) -> None:
    before = (shipped / "kernels" / registry.NAME).read_bytes()
    assert merge(verified.root, shipped) == (len(DESIGNS), 1)
    assert (shipped / "kernels" / registry.NAME).read_bytes() == before


@pytest.mark.parametrize("file", [registry.NAME, registry.SHIPPED_EVIDENCE.name, manifest.NAME])
def test_a_pack_whose_registry_its_manifest_does_not_vouch_for_is_not_believed(
    file: str, shipped: Path, tmp_path: Path
) -> None:
    path = shipped / file if file == manifest.NAME else shipped / "kernels" / file
    path.write_bytes(b"" if file == manifest.NAME else path.read_bytes() + b"\n")
    assert shipped_row(shipped, tmp_path / "another desk") is None


def test_a_shipped_record_that_was_altered_is_not_believed_even_under_a_new_manifest(
    shipped: Path, tmp_path: Path
) -> None:
    path = shipped / "kernels" / registry.SHIPPED_EVIDENCE.name
    path.write_text(path.read_text().replace('"phase-1"', '"phase-2"'))
    manifest.write(shipped)
    assert shipped_row(shipped, tmp_path / "another desk") is None


def test_stale_rows_are_not_merged(verified: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "engine_version", lambda *_: "e" * 64)
    assert merge(verified.root, pack_like(tmp_path / "pack")) == (0, 0)


def test_harvesting_a_record_twice_adds_nothing(verified: Desk) -> None:
    assert harvest(verified.root, verified.last("first"), "first") == 0
