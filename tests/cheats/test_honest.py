# SPDX-License-Identifier: Apache-2.0
"""Honest deployments pass their evaluation; what they are is said, and what they are not is never said."""

from __future__ import annotations

import json

import pytest

from judge.evaluation import PROPERTIES
from tests.cheats.conftest import House, gate_of

pytestmark = pytest.mark.slow


def test_an_honest_deployment_is_proven_on_synthetic_weights(honest: House):
    found = honest.evaluate()
    assert found["violated"] == []
    assert found["not_checked"] == []
    assert found["verdict"] == "PROVEN on synthetic weights (values by the twin)"
    assert {check["name"] for check in found["checks"]} == set(PROPERTIES)


def test_more_fresh_data_and_true_numbers_in_the_prose_pass_too(cheat: House):
    entry = gate_of([json.loads(line) for line in cheat.evidence.read_text().splitlines()], 3)
    name, figure = next(iter(entry["figures"].items()))
    with (cheat.folder / "plan.md").open("a") as page:
        page.write(f"\nPhase 3 measured {figure['value']:.3g} for {name}; the context is 512 tokens, 3 layers.\n")
    found = cheat.evaluate("--positions", "128", "--tokens", "32", nonce="00" * 16)
    assert found["violated"] == []
    assert found["result"] == "PROVEN"


def test_a_clock_that_was_set_back_in_the_middle_is_told_and_costs_nothing(cheat: House):
    def earlier(records):
        for record in records[len(records) // 2 :]:
            record["time"] = record["time"].replace("20", "19", 1)

    cheat.forge(earlier)
    found = cheat.evaluate()
    assert found["violated"] == []
    assert "set back" in found["facts"]["clock"]


def test_another_model_of_the_same_shape_is_proven(honest: House, tmp_path):
    other = House(tmp_path / "other project", honest.pack, honest.caches).deploy(seed=3)
    assert other.evaluate(nonce="a7" * 16)["result"] == "PROVEN"
