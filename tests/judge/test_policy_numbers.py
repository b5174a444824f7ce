# SPDX-License-Identifier: Apache-2.0
"""The numbers in policy.toml are measurements: a sample of them is measured again and must come out the same.

The sample is what takes seconds: four kernels, the oracle and one block of the fixture. Everything else is measured
again by the command that each gate names; the gates of a trained model need its weights.
"""

from __future__ import annotations

import ast
import sys

import pytest

from judge.measure_kernels import measure_kernel
from judge.measure_models import measure_block, measure_oracle
from judge.measure_policy import LIMITS, fixture_probe, main, policy_text
from judge.measurement import Measurement
from judge.policy import POLICY_PATH, Policy

pytestmark = pytest.mark.slow

# Another BLAS adds in another order; FP32 noise of phase 0 follows it, rounded values hardly do.
NOISE = {"phase0.fixture": 0.5}
SAME = 0.02


def hold(policy: Policy, measured: Measurement) -> None:
    """Both numbers of every threshold of a gate equal those measured now."""
    tolerance = NOISE.get(measured.gate, SAME)
    gate = policy.gates[measured.gate]
    assert set(gate.faults) == set(measured.faults)
    assert gate.floor_seeds == measured.seeds
    for row in gate.thresholds:
        weakest = measured.faults[row.weakest_fault][row.metric]
        assert row.floor == pytest.approx(measured.floors[row.metric], rel=tolerance), (row.metric, "floor")
        assert row.weakest_value == pytest.approx(weakest, rel=SAME), (row.metric, row.weakest_fault)
        for fault in row.catches:
            assert measured.faults[fault][row.metric] >= row.weakest_value * (1 - SAME), (row.metric, fault)


@pytest.mark.parametrize("kernel", ["add", "rmsnorm", "rope", "attention_decode"])
def test_kernel_gates(kernel: str, policy: Policy):
    hold(policy, measure_kernel(kernel, policy.limits))


def test_the_oracle_gate_of_the_fixture(policy: Policy):
    hold(policy, measure_oracle(fixture_probe(), policy.limits))


def test_the_block_gate_of_the_fixture(policy: Policy):
    hold(policy, measure_block(fixture_probe(), "bf16", policy.limits))


def test_the_file_is_what_the_program_writes(policy: Policy):
    assert policy.limits == LIMITS
    assert policy_text(policy.gates) == POLICY_PATH.read_text()


def test_the_command_that_a_gate_names_is_the_one_that_measures_it(policy: Policy, capsys: pytest.CaptureFixture[str]):
    command = policy.gates["phase1.add"].measured
    assert command.startswith("python -m judge.measure_policy ")
    before = POLICY_PATH.read_bytes()
    assert main(command.split()[3:]) == 0
    assert 'gate = "phase1.add"' in capsys.readouterr().out
    assert POLICY_PATH.read_bytes() == before, "without --write nothing is written"


def test_the_judge_sees_the_reference_alone():
    allowed = {"judge", "reference", "refusal", "msgspec", "numpy", *sys.stdlib_module_names}
    for path in POLICY_PATH.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert {name.split(".")[0] for name in names if name} <= allowed, path
