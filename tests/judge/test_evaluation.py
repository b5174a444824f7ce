# SPDX-License-Identifier: Apache-2.0
"""The verdict of an evaluation, the numbers in prose, the device's log, and chance told from faults."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from judge.device_log import (
    LAYER_OPERATORS,
    PlannedDispatch,
    Ran,
    Step,
    layer_problems,
    log_problems,
    mac_problems,
    step_macs,
)
from judge.evaluation import PROPERTIES, Evaluation, check, differences, report
from judge.fresh_data import judge_fresh, problems
from judge.metrics import Failure, NamedFailure
from judge.numbers import Evidence, unjustified
from judge.verdict import Finding, Verdict


def evaluation(
    *broken: str, synthetic: bool = False, leave_out: str = "", obstacle: str = "", device: str = "npu"
) -> Evaluation:
    checks = [
        check(name, ["it is broken"] if name in broken else [], "all of it") for name in PROPERTIES if name != leave_out
    ]
    return Evaluation("x", tuple(checks), "00", synthetic, device, obstacle)


# ---- the verdict ----


def test_all_properties_looked_at_and_held_is_proven():
    assert evaluation().verdict == "PROVEN (npu)"
    assert evaluation().result.exit_code == 0


@pytest.mark.parametrize("name", PROPERTIES)
def test_one_violated_property_is_not_proven_by_name(name):
    found = evaluation(name)
    assert (found.result, found.violated, found.result.exit_code) == ("NOT PROVEN", (name,), 1)
    assert f"## {name}" in report(found)


@pytest.mark.parametrize("name", PROPERTIES)
def test_what_nobody_looked_at_is_not_proven(name):
    assert evaluation(leave_out=name).result == "NOT PROVEN"
    assert f"| {name} | not checked |" in report(evaluation(leave_out=name))


def test_a_check_that_looked_at_nothing_does_not_hold():
    assert not check("kernels-hold", []).holds


def test_an_unknown_property_cannot_be_checked():
    with pytest.raises(KeyError):
        check("looks-good", [], "me")


def test_made_up_weights_and_the_twin_are_always_said():
    assert evaluation(synthetic=True, device="twin").verdict == "PROVEN on synthetic weights (values by the twin)"


def test_an_obstacle_blocks_unless_something_was_violated_before_it():
    assert evaluation(leave_out="whole-model", obstacle="no compiler").result.exit_code == 3
    assert evaluation("inputs-unchanged", obstacle="no compiler").result.exit_code == 1


def test_differences_name_changed_missing_and_additional_entries():
    lines = differences("file", {"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"})
    assert lines == ["file b: found 2, expected 3", "file c: found nothing, expected 4"]


# ---- numbers in prose ----

KNOWN = Evidence(
    [{"kl": 0.0123456, "ms": 1.953, "tokens": [32, 64], "note": "score_512 in 7 steps", "hash": "ab12" * 16}]
)


@pytest.mark.parametrize(
    "text",
    ["KL was 0.0123", "1.95 ms predicted", "32 tokens, then 64", "1.23% by that measure", "bucket 512", "the 3 phases", "phase-3",
     "bf16 on XDNA2", "prefill_777 is a name", "1. first\n2. second", "record ab12ab12ab12", "0.012 and -0.012"],
)  # fmt: skip
def test_numbers_that_the_evidence_has_pass(text):
    assert unjustified(text, KNOWN) == []


@pytest.mark.parametrize(
    "text",
    ["41.7 tokens per second", "KL was 0.0129", "8 ms", "a gain of 37%", "record ab13ab12ab12", "about 1,024 tokens", "3x faster",
     "took 9 s", "~40", "ratio=17"],
)  # fmt: skip
def test_numbers_that_nobody_measured_are_named(text):
    assert len(unjustified(text, KNOWN)) == 1


# ---- the device's log ----


@dataclass(frozen=True)
class Config:
    """As much of a ModelConfig as multiply-adds follow from."""

    num_hidden_layers: int = 2
    hidden_size: int = 4
    intermediate_size: int = 8
    q_size: int = 4
    kv_size: int = 2
    vocab_size: int = 10


def step(layers: int = 2) -> Step:
    places = ((0, 0, 64), (2, 128, 8))
    covers = [tuple(f"layers.{i}.{name}" for name in LAYER_OPERATORS) for i in range(layers)]
    dispatches = [PlannedDispatch("layer", places, names) for names in covers]
    head = PlannedDispatch("head", ((4, 0, 40),), ("final_norm", "lm_head"))
    return Step("decode_256", (*dispatches, head), rows=1, keys=3, with_head=True)


def ran(planned: Step) -> list[Ran]:
    return [Ran(planned.entry, d.design, d.places) for d in planned.dispatches]


def test_macs_of_a_step_by_hand():
    """qkv 4*(4+2*2) + o 4*4 + gate and up 2*4*8 + down 8*4 = 144, attention 2*4*(3+1) = 32; two layers; head 4*10."""
    assert step_macs(Config(), step()) == 2 * (144 + 32) + 40


def test_a_log_that_is_the_plan_passes():
    assert layer_problems(Config(), [step()]) == []
    assert log_problems([step(), step()], [*ran(step()), *ran(step())]) == []
    assert mac_problems(Config(), [step()], {"layer": 352, "head": 40}) == []


def test_a_design_configured_once_for_several_runs_is_the_same_log():
    layer, head = step().dispatches[0], step().dispatches[-1]
    joined = [Ran("decode_256", "layer", layer.places * 2), Ran("decode_256", "head", head.places)]
    assert log_problems([step()], joined) == []


def test_a_layer_left_out_of_the_plan_is_named():
    (problem,) = layer_problems(Config(), [step(layers=1)])
    assert "layers.1.attn_norm" in problem
    assert mac_problems(Config(), [step(layers=1)], {"layer": 176, "head": 40})


@pytest.mark.parametrize("index", range(3))
def test_a_dispatch_that_did_not_run_is_named(index):
    log = ran(step())
    del log[index]
    assert log_problems([step()], log)


def test_a_dispatch_on_other_slices_is_named():
    log = ran(step())
    log[1] = Ran("decode_256", "layer", ((0, 0, 64), (2, 0, 8)))
    assert "bytes 0+8" in log_problems([step()], log)[0]


def test_work_that_the_host_did_is_missing_on_the_device():
    assert "head did 0" in mac_problems(Config(), [step()], {"layer": 400})[0]


# ---- chance and faults ----


def verdict(**losses: float) -> Verdict:
    """Losses in units of the threshold."""
    findings = tuple(Finding(name, value, 1.0, 0.5) for name, value in losses.items())
    return Verdict("g", all(f.passed for f in findings), findings, (), (), 1, 0.0, "")


def drawn(*verdicts: Verdict) -> list[str]:
    queue = list(verdicts)
    return problems("g", judge_fresh(lambda number: queue[number]))


def test_a_gate_that_passes_is_drawn_once():
    assert len(judge_fresh(lambda number: verdict(abs=0.9))) == 1


def test_a_single_miss_is_chance():
    assert drawn(verdict(abs=1.2), verdict(abs=0.8), verdict(abs=0.9)) == []


def test_misses_of_different_metrics_are_chance():
    assert drawn(verdict(abs=1.2, rel=0.5), verdict(abs=0.9, rel=1.1), verdict(abs=0.9, rel=0.5)) == []


def test_the_same_metric_twice_is_a_fault():
    (problem,) = drawn(verdict(abs=1.2), verdict(abs=0.8), verdict(abs=1.1))
    assert "abs missed 2 of 3" in problem


@pytest.mark.parametrize("value", [2.0, 50.0, float("nan"), float("inf")])
def test_where_the_weakest_fault_may_lie_is_never_chance(value):
    assert drawn(verdict(abs=value), verdict(abs=0.1), verdict(abs=0.1))


def test_a_named_failure_is_never_chance():
    failed = Verdict("g", False, (), (NamedFailure(Failure.STALE, "again"),), (), 1, 0.0, "")
    assert drawn(failed, verdict(abs=0.1), verdict(abs=0.1))
    assert drawn(verdict(abs=1.2), failed, verdict(abs=0.1))
