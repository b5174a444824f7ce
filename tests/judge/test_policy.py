# SPDX-License-Identifier: Apache-2.0
"""The policy's rule: a threshold that its two measured numbers do not justify is refused, and so is what proves less."""

from __future__ import annotations

from pathlib import Path

import pytest

from judge.measurement import Measurement, select
from judge.policy import POLICY_PATH, load_policy
from refusal import Refusal

LIMITS = """
[limits]
kernel_dispatches = 3
block_positions = 64
text_positions = [512, 128, 128]
greedy_tokens = [64, 16, 16]
runner_tokens = 32
identity_steps = [1, 2, 17]
"""
# One line a threshold, as the file has it.
BIAS = 'threshold = 1e-4, floor = 6e-5, weakest_fault = "floor_rounding", weakest_value = 2e-3'
WORST = 'threshold = 5e-3, floor = 1.8e-3, weakest_fault = "operand_dropped", weakest_value = 0.7'
GATE = f"""
[[gate]]
gate = "phase1.add"
faults = ["floor_rounding", "operand_dropped"]
elsewhere = {{}}
floor_seeds = [0, 1, 2]
measured = "python -m judge.measure_policy --gate phase1.add"
measured_on = "random operands"
thresholds = [
  {{ metric = "bias", {BIAS}, catches = ["floor_rounding"] }},
  {{ metric = "rel_worst_position", {WORST}, catches = ["operand_dropped"] }},
]
"""


def load(tmp_path: Path, text: str):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return load_policy(path)


def test_a_justified_policy_loads(tmp_path: Path):
    policy = load(tmp_path, LIMITS + GATE)
    assert policy.of("phase1.add")["bias"].threshold == 1e-4
    assert policy.limits.kernel_dispatches == 3
    assert len(policy.sha256) == 64


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("threshold = 1e-4", "threshold = 1.3e-4", "at most 2 x floor"),
        ("threshold = 5e-3", "threshold = 5.5e-3", "at most 3 x floor"),
        ("threshold = 1e-4", "threshold = 5e-5", "at least the honest floor"),
        ("weakest_value = 2e-3", "weakest_value = 1.9e-4", "half of the weakest fault"),
        ("weakest_value = 2e-3", "weakest_value = 0.0", "half of the weakest fault"),
        ("floor = 6e-5", "floor = nan", "finite"),
        ("threshold = 1e-4", "threshold = inf", "finite"),
        ("floor = 6e-5, ", "", "floor"),
        (", weakest_value = 2e-3", "", "weakest_value"),
        ('measured = "python -m judge.measure_policy --gate phase1.add"\n', "", "measured"),
        ('measured_on = "random operands"', 'measured_on = ""', "measured_on"),
        ("floor_seeds = [0, 1, 2]", "floor_seeds = [0, 0]", "two seeds"),
        ('catches = ["floor_rounding"]', "catches = []", "weakest among"),
        ('catches = ["operand_dropped"]', 'catches = ["operand_dropped", "theta"]', "listed for the gate"),
        ('faults = ["floor_rounding",', 'faults = ["floor_rounding", "cut_rounding",', "catches the seeded fault cut_rounding"),
        ("elsewhere = {}", 'elsewhere = { floor_rounding = "phase1.none" }\nwaive = true', "waive"),
        ('metric = "rel_worst_position"', 'metric = "bias"', "two thresholds"),
        ("[limits]", "[bounds]", "tables"),
        ("kernel_dispatches = 3\n", "", "kernel_dispatches"),
    ],
)  # fmt: skip
def test_what_breaks_the_rule_or_lacks_a_number_is_refused(tmp_path: Path, old: str, new: str, message: str):
    text = LIMITS + GATE
    assert old in text
    with pytest.raises(Refusal, match=message):
        load(tmp_path, text.replace(old, new, 1))


def test_a_gate_may_stand_once(tmp_path: Path):
    with pytest.raises(Refusal, match="stands twice"):
        load(tmp_path, LIMITS + GATE + GATE)


def test_a_fault_may_be_caught_elsewhere_only_where_it_really_is(tmp_path: Path):
    other = GATE.replace("phase1.add", "phase1.gemm").replace(
        '"operand_dropped"]\nelse', '"operand_dropped", "tail"]\nelse'
    )
    sound = LIMITS + GATE + other.replace("elsewhere = {}", 'elsewhere = { tail = "phase1.add" }')
    with pytest.raises(Refusal, match="catches the seeded fault tail"):
        load(tmp_path, sound)
    caught = GATE.replace('"operand_dropped"]\nelse', '"operand_dropped", "tail"]\nelse').replace(
        'catches = ["operand_dropped"]', 'catches = ["operand_dropped", "tail"]'
    )
    assert load(tmp_path, sound.replace(GATE, caught)).gates["phase1.gemm"].elsewhere == {"tail": "phase1.add"}


def test_an_unknown_gate_is_refused_with_the_command_that_measures_it(tmp_path: Path):
    with pytest.raises(Refusal, match="measure_policy --gate phase9"):
        load(tmp_path, LIMITS + GATE).of("phase9")


def measurement(**faults: dict[str, float]) -> Measurement:
    measured = Measurement("phase1.x", (0, 1), "by hand")
    measured.add_floor({"abs": 0.01, "rel": 0.001})
    for fault, figures in faults.items():
        measured.add_fault(fault, figures)
    return measured


def test_thresholds_are_twice_the_floor_where_faults_allow_it():
    gate = select(measurement(strong={"abs": 1.0, "rel": 1.0}), {})
    assert {row.metric: row.threshold for row in gate.thresholds} == {"abs": 0.02, "rel": 0.002}


def test_a_weak_fault_pulls_one_threshold_down_to_half_of_itself():
    gate = select(measurement(strong={"abs": 1.0, "rel": 1.0}, weak={"abs": 0.01, "rel": 0.0032}), {})
    rows = {row.metric: row for row in gate.thresholds}
    assert rows["rel"].threshold == 0.0016
    assert rows["rel"].catches == ("strong", "weak")
    assert rows["abs"].threshold == 0.02


def test_a_fault_that_nothing_shows_stops_the_measurement():
    with pytest.raises(Refusal, match="fault weak"):
        select(measurement(strong={"abs": 1.0, "rel": 1.0}, weak={"abs": 0.011, "rel": 0.0011}), {})


def test_the_shipped_policy_keeps_the_rule_and_has_every_gate():
    gates = load_policy().gates
    kernels = {"gemm_bf16", "gemm_bfp16", "gemv", "rmsnorm", "rope", "silu_mul", "add", "attention_prefill",
               "attention_decode", "lm_head"}  # fmt: skip
    assert {f"phase1.{kernel}" for kernel in kernels} <= gates.keys()
    for subject in ("fixture", "model"):
        assert f"phase0.{subject}" in gates
        assert f"phase7.{subject}.mixed" in gates
        for precision in ("bf16", "bfp16", "mixed"):
            assert {f"phase2.{subject}.{precision}", f"phase3.{subject}.{precision}"} <= gates.keys()


def test_an_edited_threshold_in_the_shipped_policy_is_refused(tmp_path: Path):
    text = POLICY_PATH.read_text()
    row = next(line for line in text.splitlines() if 'metric = "rel"' in line)
    number = row.split("threshold = ")[1].split(",")[0]
    with pytest.raises(Refusal, match="floor"):
        load(tmp_path, text.replace(row, row.replace(f"threshold = {number}", f"threshold = {float(number) * 1.1}")))
