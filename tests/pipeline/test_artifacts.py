# SPDX-License-Identifier: Apache-2.0
"""A stale artifact is never used: whatever can change a result changes the object's name and the artifact's key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernels.designs import rowwise
from kernels.designs.design import OpDesign, single_design_artifact
from kernels.designs.gemm import GemmDesign
from kernels.designs.rowwise import RmsNormDesign
from kernels.rmsnorm import stage as rmsnorm
from npu.artifact import KernelObject
from planner.module import write_module
from planner.plan import make_plan
from reference.oracle.config import load_config
from tests.faults.deployed import SMALL, fixture_directory
from tests.faults.plant import planted_python, planted_source
from tests.faults.test_kernel_faults import judged

pytestmark = pytest.mark.slow

NORM = RmsNormDesign(64, 128, 128, 1e-5)


def object_names(design: OpDesign) -> set[str]:
    return {obj.name for obj in single_design_artifact(design).objects}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (NORM, replace(NORM, epsilon=1e-6)),
        (NORM, replace(NORM, valid=112)),
        # equal n, another k: the object bakes k in
        (GemmDesign(64, 128, 128, 16, 32, 16), GemmDesign(64, 128, 128, 16, 64, 16)),
        (GemmDesign(64, 128, 128, 16, 32, 16, "bf16"), GemmDesign(64, 128, 128, 16, 32, 16, "bfp16")),
    ],
    ids=["epsilon", "valid", "k", "mode"],
)
def test_a_define_is_in_the_objects_name_and_in_the_key(one: OpDesign, other: OpDesign) -> None:
    assert not object_names(one) & object_names(other)
    assert one.name != other.name
    assert single_design_artifact(one).key != single_design_artifact(other).key


def test_an_edited_source_is_in_the_objects_name_and_in_the_key(tmp_path: Path) -> None:
    before = single_design_artifact(NORM)
    with planted_source(rmsnorm, ("// RMSNorm of ROWS rows", "// RMSNorm of some rows"), folder=tmp_path):
        after = single_design_artifact(NORM)
    assert before.objects[0].name != after.objects[0].name
    assert before.objects[0].name in before.text
    assert before.objects[0].name not in after.text
    assert before.key != after.key


def test_a_source_that_changed_under_an_objects_name_changes_the_key(tmp_path: Path) -> None:
    source = tmp_path / "kernel.cc"
    source.write_text("// one\n")
    artifact = replace(single_design_artifact(NORM), objects=(KernelObject.of(source, {}),))
    before = artifact.key
    source.write_text("// two\n")
    assert artifact.key != before


def test_a_design_text_is_in_the_key_though_the_parameters_are_the_same() -> None:
    before = single_design_artifact(NORM)
    with planted_python(rowwise, ("depth=2, element=stream.element", "depth=3, element=stream.element")):
        after = single_design_artifact(NORM)
    assert before.text != after.text
    assert before.key != after.key


def test_results_follow_the_source_and_come_back_with_it(tmp_path: Path) -> None:
    """The same design in one process and one cache: right, planted, right again."""
    assert judged(NORM).passed
    with planted_source(rmsnorm, ("float(EPSILON)", "1e-6f"), folder=tmp_path):
        assert not judged(NORM).passed
    assert judged(NORM).passed


def test_a_deployment_with_another_epsilon_is_another_artifact() -> None:
    config = load_config(fixture_directory())
    keys = {
        write_module(make_plan(replace(config, rms_norm_eps=eps), SMALL, legal=lambda design: True)).key
        for eps in (1e-5, 1e-6)
    }
    assert len(keys) == 2
