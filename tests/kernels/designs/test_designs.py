# SPDX-License-Identifier: Apache-2.0
"""Every design from its text on the twin: values, work per core, share of vector multiply-adds, DDR bytes."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest

from kernels.designs.attention_decode import DecodeAttentionDesign
from kernels.designs.attention_prefill import PrefillAttentionDesign
from kernels.designs.design import OpDesign, single_design_artifact
from kernels.designs.gemm import GemmDesign
from kernels.designs.gemv import GemvDesign, rows_for
from kernels.designs.rowwise import AddDesign, RmsNormDesign, RopeDesign, SiluMulDesign
from npu.legality.check import check
from npu.mlir.load import load_program
from pipeline.exercise import exercise
from tests.twin_device import CACHE, twin

EPSILON = 1e-5
DESIGNS: dict[str, OpDesign] = {
    "gemm bfp16": GemmDesign(64, 128, 256, 16, 32, 32),
    "gemm bf16, several rounds": GemmDesign(128, 96, 384, 16, 32, 24, mode="bf16"),
    "gemm fp32 out": GemmDesign(64, 128, 256, 16, 64, 32, mode="bf16", out="f32"),
    "gemv": GemvDesign(256, 128, rows_for(256, 128)),
    "gemv behind a norm": GemvDesign(192, 96, rows_for(192, 96), "norm", valid=96, epsilon=EPSILON),
    "gemv with residual": GemvDesign(128, 256, rows_for(128, 256), "add"),
    "gemv in parts": GemvDesign(128, 256, 4, parts=2),
    "gemv in parts with residual": GemvDesign(128, 256, 2, "add", parts=2),
    "gemv whose residual takes two parts": GemvDesign(128, 192, 2, "add", parts=3),
    "gemv gate and up": GemvDesign(256, 128, rows_for(256, 128, matrices=2), "swiglu", valid=128, epsilon=EPSILON),
    "gemv fp32 out": GemvDesign(512, 128, rows_for(512, 128), "norm", "f32", 128, EPSILON),
    "rmsnorm": RmsNormDesign(64, 128, 128, EPSILON),
    "rmsnorm of a padded row": RmsNormDesign(64, 128, 96, EPSILON),
    "rope": RopeDesign(64, 6, 2, 32),
    "silu_mul": SiluMulDesign(64, 256),
    "add": AddDesign(64, 128),
    "prefill attention, 3 heads a group": PrefillAttentionDesign(64, 9, 3, 64),
    "prefill attention, several tiles a core": PrefillAttentionDesign(256, 4, 2, 32),
    "prefill attention, 7 heads a group": PrefillAttentionDesign(64, 7, 1, 32),
    "decode attention, 8 cores": DecodeAttentionDesign(256, 512, 4, 2, 32),
    "decode attention, 32 cores": DecodeAttentionDesign(1024, 1024, 9, 3, 64),
}


@pytest.fixture(scope="module", params=list(DESIGNS), ids=list(DESIGNS))
def ran(request):
    """A design with what three dispatches gave and the log of the last."""
    design = DESIGNS[request.param]
    dispatches, session = exercise(design, twin(), seed=7)
    return design, dispatches, list(session.log())[-1]


def test_values_agree_with_fp64_products_and_fp32_formulas(ran):
    design, dispatches, _ = ran
    # bf16 has 8 bits: one rounding errs by 2^-9 at most. bfp16ebs8 truncates a block of 8 to 8 bits of its largest.
    bound = 2.5e-2 if getattr(design, "mode", "") == "bfp16" else 5e-3
    for dispatch in dispatches:
        got, want = dispatch.got.astype(np.float64), dispatch.want.astype(np.float64)
        assert np.isfinite(got).all()
        assert np.abs(got - want).sum() <= bound * np.abs(want).sum()


def test_ddr_bytes_are_the_pages_formula(ran):
    design, _, record = ran
    assert record.ddr_read_bytes + record.ddr_write_bytes == design.ddr_bytes


def test_every_placed_core_does_within_twice_the_mean_work(ran):
    design, _, record = ran
    work = np.array(list(record.vector_ops.values()), float)
    assert len(work) >= (32 if isinstance(design, GemmDesign | GemvDesign) else 8)
    assert work.max() <= 2 * work.mean()
    if isinstance(design, DecodeAttentionDesign):
        return  # cores whose keys all lie beyond the drawn position have nothing to do
    one_round = isinstance(design, PrefillAttentionDesign) and design.kv_heads * design.tokens // 64 == 1
    assert one_round or work.min() >= work.mean() / 2  # one KV head, one block of tokens: early tokens see few keys


def test_multiply_adds_go_through_the_vector_unit(ran):
    design, _, record = ran
    total, vector = sum(record.mul_adds.values()), sum(record.vector_mul_adds.values())
    assert vector >= 0.95 * total  # an addition multiplies nothing
    assert vector >= 0.95 * design.macs or isinstance(design, DecodeAttentionDesign)  # dead keys are not computed


@pytest.mark.parametrize("name", list(DESIGNS))
def test_text_is_legal(name):
    program = load_program(single_design_artifact(DESIGNS[name]).text, cache=CACHE)
    assert check(program) == []


@pytest.mark.skipif(
    shutil.which("aie-opt") is None, reason="no aie-opt on the PATH: its verdict on the texts is not known here"
)
@pytest.mark.parametrize("name", list(DESIGNS))
def test_text_is_accepted_by_aie_opt(name, tmp_path):
    text = tmp_path / "design.mlir"
    text.write_text(single_design_artifact(DESIGNS[name]).text)
    resources = (
        "builtin.module(aie.device(aie-assign-lock-ids,aie-register-objectFifos,aie-objectFifo-stateful-transform,"
        "aie-assign-bd-ids,aie-lower-cascade-flows,aie-lower-broadcast-packet,aie-lower-multicast,"
        "aie-assign-tile-controller-ids,aie-assign-buffer-addresses,aie-assign-core-link-files),"
        "convert-scf-to-cf,aie.device(aie-create-pathfinder-flows))"
    )
    ran = subprocess.run(
        ["aie-opt", f"--pass-pipeline={resources}", str(text)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "Bank-aware allocation failed" not in ran.stderr


def test_packed_gemm_weight_is_read_back_by_its_stated_layout():
    design = GemmDesign(64, 64, 256, 16, 32, 16, mode="bf16")
    weight = np.arange(256 * 64, dtype=np.float32).reshape(256, 64) % 251  # exact in bf16
    packed = design.pack_b(weight).astype(np.float32)
    place = 0
    for column in range(8):
        for j in range(2):
            for kk in range(2):
                for kb in range(4):
                    for nb in range(2):
                        for k in range(8):
                            for n in range(8):
                                row = (j * 8 + column) * 16 + nb * 8 + n
                                assert packed[place] == weight[row, kk * 32 + kb * 8 + k]
                                place += 1


def test_packed_gemv_weight_is_read_back_by_its_stated_layout():
    design = GemvDesign(128, 32, 2, "swiglu", valid=32, epsilon=EPSILON)
    gate = np.arange(128 * 32, dtype=np.float32).reshape(128, 32) % 127
    packed = design.pack(gate, gate + 128).astype(np.float32).reshape(8, 2, 4, 2, 2, 32)
    for column in range(8):
        for element in range(2):
            for core_row in range(4):
                for r in range(2):
                    row = column * 16 + core_row * 4 + element * 2 + r
                    assert (packed[column, element, core_row, 0, r] == gate[row]).all()
                    assert (packed[column, element, core_row, 1, r] == gate[row] + 128).all()
