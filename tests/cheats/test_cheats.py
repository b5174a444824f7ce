# SPDX-License-Identifier: Apache-2.0
"""Each known cheat is rejected by the name of the property that it violates.

Where a cheat would be seen by a hash alone, it is also played by somebody who makes all hashes fit again.
"""

from __future__ import annotations

import json
import shutil

import pytest

from judge.fixture import write_fixture
from reference.oracle.weights import file_sha256
from tests.cheats.conftest import House, gate_of

pytestmark = pytest.mark.slow


def assert_rejected(house: House, name: str) -> dict:
    """NOT PROVEN, by this name."""
    found = house.evaluate()
    assert found["result"] == "NOT PROVEN"
    assert name in found["violated"], found["violated"]
    return found


# ---- files and records ----


def test_edited_threshold_in_the_policy(cheat_with_pack: House):
    policy = cheat_with_pack.pack / "judge" / "policy.toml"
    policy.write_text(policy.read_text().replace("block_positions = 64", "block_positions = 1"))
    assert_rejected(cheat_with_pack, "pack-as-shipped")


def test_edited_threshold_in_a_record(cheat: House):
    def raise_it(records):
        next(iter(gate_of(records, 3)["body"]["gates"].values()))["findings"][0]["threshold"] *= 10

    cheat.forge(raise_it)
    assert_rejected(cheat, "thresholds-of-the-policy")


def test_edited_evidence(cheat: House):
    text = cheat.evidence.read_text()
    cheat.evidence.write_text(text.replace('"passed":true', '"passed":false', 1))
    found = assert_rejected(cheat, "evidence-unbroken")
    assert "oracle-holds" in found["not_checked"]


def test_evidence_cut_off_and_frozen_again(cheat: House):
    lines = cheat.evidence.read_text().splitlines(keepends=True)
    frozen = next(i for i, line in enumerate(lines) if json.loads(line)["entry"]["kind"] == "freeze")
    cheat.evidence.write_text("".join(lines[:frozen]))
    assert_rejected(cheat, "evidence-unbroken")


def test_edited_figure_in_a_chain_that_fits(cheat: House):
    """A kernel's error made smaller, verdict and figure alike: only measuring again can tell."""

    def improve(records):
        entry = gate_of(records, 1)
        name, gate = next((n, g) for n, g in entry["body"]["gates"].items() if n.startswith("gemm"))
        gate["findings"][0]["value"] /= 2
        entry["figures"][f"{name}/{gate['findings'][0]['metric']}"]["value"] /= 2

    cheat.forge(improve)
    assert_rejected(cheat, "figures-repeat")


def test_skipped_gate(cheat: House):
    cheat.forge(lambda records: gate_of(records, 2)["body"]["gates"].pop("model layer 1 decode"))
    assert_rejected(cheat, "every-gate-passed")


def test_skipped_phase(cheat: House):
    def skip(records):
        records[:] = [record for record in records if record["entry"]["subject"] != "phase-2"]

    cheat.forge(skip)
    assert_rejected(cheat, "every-gate-passed")


def test_moved_gate(cheat: House):
    """A phase that was judged before the one that it rests on, in a chain whose hashes and times fit."""

    def move(records):
        first, second = (
            next(i for i, r in enumerate(records) if r["entry"]["subject"] == f"phase-{n}") for n in (2, 3)
        )
        times = [record["time"] for record in records]
        records.insert(first, records.pop(second))
        for record, time in zip(records, times, strict=True):
            record["time"] = time

    cheat.forge(move)
    assert_rejected(cheat, "every-gate-passed")


def test_written_verdict(cheat: House):
    """An evaluation.json that names the head of the evidence is no verdict."""
    head = json.loads(cheat.evidence.read_text().splitlines()[-1])["hash"]
    (cheat.folder / "evaluation.json").write_text(
        json.dumps({"verdict": "PROVEN (npu)", "result": "PROVEN", "head": head})
    )
    said = cheat.run("-c", STATUS, code=None)
    assert "PROVEN" not in said
    assert said.splitlines()[-1] == "next: scripts/evaluate.py fixture"


def test_skipped_kernel(cheat: House):
    def skip(records):
        gates = gate_of(records, 1)["body"]["gates"]
        gates.pop(next(name for name in gates if name.startswith("decode_attention")))

    cheat.forge(skip)
    assert_rejected(cheat, "every-gate-passed")


def test_other_weights(cheat: House, honest: House, tmp_path):
    """The model directory gets other weights after the freeze."""
    there, kept = honest.root / "model", tmp_path / "kept"
    shutil.copytree(there, kept)
    try:
        write_fixture(there, seed=9)
        assert_rejected(cheat, "inputs-unchanged")
    finally:
        shutil.copytree(kept, there, dirs_exist_ok=True)


def test_other_weights_under_a_remembered_hash(cheat: House, honest: House, tmp_path, monkeypatch):
    """Whoever may write the user's cache may write into it that the other weights have the old hash."""
    there, kept, home = honest.root / "model", tmp_path / "kept", tmp_path / "home"
    shutil.copytree(there, kept)
    before = file_sha256(kept / "model.safetensors", tmp_path / "none")
    try:
        write_fixture(there, seed=9)
        changed = file_sha256(there / "model.safetensors", home / ".cache" / "llm-to-npu")
        for page in (path for path in home.rglob("*") if path.is_file()):
            page.write_text(page.read_text().replace(changed, before))
        assert file_sha256(there / "model.safetensors", home / ".cache" / "llm-to-npu") == before
        monkeypatch.setenv("HOME", str(home))
        assert_rejected(cheat, "inputs-unchanged")
    finally:
        shutil.copytree(kept, there, dirs_exist_ok=True)


def test_fewer_layers_in_the_description(cheat: House):
    path = cheat.folder / "deployment.json"
    description = json.loads(path.read_text())
    description["choices"]["layers"] = [0, 1]
    path.write_text(json.dumps(description))
    found = assert_rejected(cheat, "deployment-as-frozen")
    assert "whole-model" in found["violated"]


def test_made_up_weights_sold_as_trained(cheat: House):
    cheat.describe_otherwise(lambda description: description.update(synthetic=False, provenance="as found"))
    found = assert_rejected(cheat, "weights-labelled")
    assert found["synthetic"]


def test_typed_in_number(cheat: House):
    with (cheat.folder / "perf_opt_traj.md").open("a") as page:
        page.write("\nDecode now runs at 41.7 tokens per second on the NPU.\n")
    found = assert_rejected(cheat, "documents-from-evidence")
    (problem,) = next(check for check in found["checks"] if check["name"] == "documents-from-evidence")["problems"]
    assert "41.7" in problem


def test_typed_in_number_between_the_markers(cheat: House):
    page = cheat.folder / "plan.md"
    page.write_text(page.read_text().replace("| passed |", "| passed twice |", 1))
    assert_rejected(cheat, "documents-from-evidence")


def test_stale_artifact(cheat: House):
    """The model was judged with an artifact that its choices do not give."""

    def other(records):
        gate_of(records, 3)["inputs"]["artifact model"] = gate_of(records, 3)["inputs"]["artifact fixture"]

    cheat.forge(other)
    assert_rejected(cheat, "artifacts-rebuilt")


def test_pack_with_a_file_more(cheat_with_pack: House):
    (cheat_with_pack.pack / "judge" / "lenient.py").write_text("")
    assert_rejected(cheat_with_pack, "pack-as-shipped")


def test_an_obstacle_blocks_and_proves_nothing(cheat: House):
    cheat.describe_otherwise(lambda description: description.update(model_dir=str(cheat.root / "gone")))
    found = cheat.evaluate()
    assert (found["result"], found["checks"]) == ("BLOCKED", [])
    assert "gone" in found["obstacle"]


# ---- packs that cheat, with a manifest and records that fit them ----


def test_host_fall_back(cheat_with_pack: House):
    """The device runs, and the oracle answers."""
    cheat_with_pack.alter_pack(
        "pipeline/model_session.py",
        '        return self.read(entry.values["logits"], (self.plan.widths.vocab_valid,))\n',
        '        return self.read(entry.values["logits"], (self.plan.widths.vocab_valid,)) * np.float32(1.0001)\n',
    )
    assert_rejected(cheat_with_pack, "work-on-the-device")


def test_fewer_layers_in_the_plan(cheat_with_pack: House):
    """The planner leaves out the last layer of every model; the artifacts' keys are forged to fit."""
    cheat_with_pack.alter_pack(
        "planner/plan.py",
        "        self.layers = choices.layers if choices.layers is not None else tuple(range(config.num_hidden_layers))\n",
        "        self.layers = choices.layers if choices.layers is not None else tuple(range(config.num_hidden_layers - 1))\n",
    )
    keys = json.loads(cheat_with_pack.run("-c", KEYS, str(cheat_with_pack.folder), str(cheat_with_pack.caches)))

    def fit(records):
        for record in records:
            for name, key in keys.items():
                if name in record["entry"]["inputs"]:
                    record["entry"]["inputs"][name] = key

    cheat_with_pack.forge(fit)
    assert_rejected(cheat_with_pack, "all-layers-ran")


def test_prompt_specific_answer(cheat_with_pack: House):
    """The recorded prompt is answered as recorded; every other one goes through layers whose MLP is out of order."""
    cheat_with_pack.alter_pack(
        "pipeline/model_session.py",
        "        hidden[: len(ids)] = self.packer.embedding(np.asarray(ids))\n",
        "        hidden[: len(ids)] = self.packer.embedding(np.asarray(ids))"
        " * (1 if len(ids) == 23 else np.asarray(1.5, BF16))\n",
    )
    found = assert_rejected(cheat_with_pack, "model-holds")
    assert "all-layers-ran" not in found["violated"]


def test_altered_oracle(cheat_with_pack: House):
    """An oracle that forgets epsilon agrees with a device that forgets it too; the second oracle does not."""
    cheat_with_pack.alter_pack(
        "reference/oracle/ops.py", "np.sqrt(mean_square + np.float32(eps))", "np.sqrt(mean_square)"
    )
    assert_rejected(cheat_with_pack, "oracle-holds")


STATUS = """
import sys
sys.argv = ["status", "fixture"]
from pipeline.verbs.console import run
from pipeline.verbs.status import status
run(status)
"""

KEYS = """
import json, sys
from pathlib import Path
from judge.fixture import write_fixture
from reference.oracle.weights import file_sha256
from pipeline.context import fixture_choices
from pipeline.deployment import Deployment
from pipeline.model_session import legality_of
from planner.module import write_module
from planner.plan import make_plan
from reference.oracle.config import load_config
deployment, cache = Deployment(Path(sys.argv[1])), Path(sys.argv[2]) / "evaluating"
choices = deployment.choices()
write_fixture(cache / "fixture")
model = (("artifact model", deployment.description.model_dir, choices),
         ("artifact fixture", cache / "fixture", fixture_choices(choices)))
legal = legality_of(cache)
print(json.dumps({name: write_module(make_plan(load_config(where), c, legal=legal)).key for name, where, c in model}))
"""
