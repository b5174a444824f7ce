# SPDX-License-Identifier: Apache-2.0
"""Phase 1: faults in kernel sources and design texts, caught by the gate that every kernel of a plan goes through."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from judge.gates import judge_kernel
from judge.policy import load_policy
from judge.verdict import Verdict
from kernels.add import stage as add
from kernels.attention_decode import stage as attention_decode
from kernels.attention_prefill import stage as attention_prefill
from kernels.designs import attention_prefill as attention_prefill_text
from kernels.designs import gemm as gemm_text
from kernels.designs import rowwise as rowwise_text
from kernels.designs.attention_decode import DecodeAttentionDesign
from kernels.designs.attention_prefill import PrefillAttentionDesign
from kernels.designs.design import OpDesign
from kernels.designs.gemm import GemmDesign
from kernels.designs.gemv import GemvDesign
from kernels.designs.rowwise import AddDesign, RmsNormDesign, RopeDesign, SiluMulDesign
from kernels.gemm import stage as gemm
from kernels.gemv import stage as gemv
from kernels.rmsnorm import stage as rmsnorm
from kernels.rope import stage as rope
from kernels.silu_mul import stage as silu_mul
from npu.device import Device, DeviceFault
from pipeline.exercise import exercise, gate_of
from pipeline.phases.kernels import seed_of
from tests.faults.plant import Edit, planted_python, planted_source
from tests.faults.stale_device import StaleDevice
from tests.twin_device import twin

ROUND_EVEN = "  aie::set_rounding(aie::rounding_mode::conv_even);\n"

# Small shapes with what shows faults: GQA with two KV heads, columns of padding, a K of many accumulation steps.
DESIGNS: dict[str, OpDesign] = {
    "add": AddDesign(64, 128),
    "attention_decode": DecodeAttentionDesign(256, 256, 4, 2, 32),
    "attention_prefill": PrefillAttentionDesign(64, 4, 2, 32, mode="bf16"),
    "gemm": GemmDesign(64, 512, 128, 16, 32, 16, "bf16"),
    "gemv": GemvDesign(256, 128, 2),  # of 64 outputs the gain scatters beyond its limit
    "gemv_norm": GemvDesign(64, 128, 2, "norm", valid=112, epsilon=1e-5),
    "rmsnorm": RmsNormDesign(64, 128, 112, 1e-5),
    "rope": RopeDesign(64, 6, 2, 32),
    "silu_mul": SiluMulDesign(64, 256),
}


@dataclass(frozen=True)
class Fault:
    """Edits of a stage's C++ source or of a module's Python text, and the design that they are run with."""

    name: str
    design: str
    module: ModuleType
    edits: tuple[Edit, ...] = field(repr=False)


def fault(name: str, design: str, module: ModuleType, *edits: Edit) -> Fault:
    return Fault(name, design, module, edits)


INTERLEAVED: tuple[Edit, ...] = (
    (
        "low = aie::load_v<lanes>(x + i), high = aie::load_v<lanes>(x + half + i);",
        "low = aie::filter_even(aie::load_v<2 * lanes>(x + 2 * i)),\n"
        "        high = aie::filter_odd(aie::load_v<2 * lanes>(x + 2 * i));",
    ),
    (
        "    aie::store_v(y + i, turned_low.template to_vector<bfloat16>());\n"
        "    aie::store_v(y + half + i, turned_high.template to_vector<bfloat16>());\n",
        "    const auto [first, second] = aie::interleave_zip(turned_low.template to_vector<bfloat16>(),\n"
        "                                                     turned_high.template to_vector<bfloat16>(), 1);\n"
        "    aie::store_v(y + 2 * i, first);\n"
        "    aie::store_v(y + 2 * i + lanes, second);\n",
    ),
)

SOURCE_FAULTS = [
    fault("rope_interleaved", "rope", rope, *INTERLEAVED),
    fault("rope_interleaved", "attention_decode", attention_decode, *INTERLEAVED),
    fault("mask_one_ahead", "attention_prefill", attention_prefill, ("if (key > token)", "if (key > token + 1)")),
    fault("mask_one_behind", "attention_prefill", attention_prefill, ("if (key > token)", "if (key >= token)")),
    fault(
        "mask_one_ahead", "attention_decode", attention_decode,
        ("seen = position(header) - first_key;", "seen = position(header) + 1 - first_key;"),
    ),
    fault(
        "mask_one_behind", "attention_decode", attention_decode,
        ("seen = position(header) - first_key;", "seen = position(header) - 1 - first_key;"),
    ),
    fault(
        "kv_heads_tiled", "attention_decode", attention_decode,
        ("queries + head * HEAD_DIM);", "queries + (head % KV_HEADS * group + head / KV_HEADS) * HEAD_DIM);"),
        ("out + (head * group + i) * HEAD_DIM + d * 8", "out + (i * KV_HEADS + head) * HEAD_DIM + d * 8"),
    ),
    fault("eps_wrong", "rmsnorm", rmsnorm, ("float(EPSILON)", "1e-6f")),
    fault("eps_wrong", "gemv_norm", gemv, ("float(EPSILON)", "1e-6f")),
    fault("mean_over_padding", "rmsnorm", rmsnorm, ("1.0f / float(valid)", "1.0f / float(dim)")),
    fault(
        "padding_leaks", "rmsnorm", rmsnorm,
        ("aie::mask<lanes> padding = aie::mask<lanes>::from_uint32(~0u << tail)", "aie::mask<lanes> padding"),
    ),
    fault(
        "padding_leaks", "gemv_norm", gemv,
        ("aie::mask<lanes> padding = aie::mask<lanes>::from_uint32(~0u << tail)", "aie::mask<lanes> padding"),
    ),
    fault(
        "bf16_accumulation", "gemm", gemm,
        (
            "  aie::store_v(acc0, c00.template to_vector<float>());\n"
            "  aie::store_v(acc0 + block, c01.template to_vector<float>());\n"
            "  aie::store_v(acc1, c10.template to_vector<float>());\n"
            "  aie::store_v(acc1 + block, c11.template to_vector<float>());\n",
            "  const auto narrow = [](const Block &c) {\n"
            "    aie::accum<accfloat, block> sum;\n"
            "    sum.from_vector(c.template to_vector<bfloat16>());\n"
            "    return sum.template to_vector<float>();\n"
            "  };\n"
            "  aie::store_v(acc0, narrow(c00));\n"
            "  aie::store_v(acc0 + block, narrow(c01));\n"
            "  aie::store_v(acc1, narrow(c10));\n"
            "  aie::store_v(acc1 + block, narrow(c11));\n",
        ),
    ),
    fault(
        "accumulator_not_cleared", "gemm", gemm,
        ("aie::store_v(acc + i, zero);", "aie::store_v(acc + i, aie::load_v<16>(acc + i));"),
    ),
    # Rounding is a sticky register that is floor until a kernel sets it.
    *(
        fault("rounding_not_set", name, module, (ROUND_EVEN, ""))
        for name, module in (("add", add), ("rmsnorm", rmsnorm), ("rope", rope), ("silu_mul", silu_mul))
    ),
    fault(
        "rounding_not_set", "gemv", gemv,
        ("void gemv_rows(const bfloat16 *w, const bfloat16 *x, Out *y, int32_t first) {\n" + ROUND_EVEN,
         "void gemv_rows(const bfloat16 *w, const bfloat16 *x, Out *y, int32_t first) {\n"),
    ),
    fault(
        "rounding_floor", "gemm", gemm,
        ("void gemm_store(const float *acc, bfloat16 *c) {\n" + ROUND_EVEN,
         "void gemm_store(const float *acc, bfloat16 *c) {\n  aie::set_rounding(aie::rounding_mode::floor);\n"),
    ),
]  # fmt: skip

DESIGN_FAULTS = [
    fault(
        "kv_heads_tiled", "attention_prefill", attention_prefill_text,
        ("q_first = kv_head * g.group * dim", "q_first = kv_head * dim"),
        ("sizes, [TOKEN_BLOCK * width, dim, width, 1])", "sizes, [TOKEN_BLOCK * width, g.kv_heads * dim, width, 1])"),
        ("sizes, [TOKEN_BLOCK * out_width, dim, out_width, 1])",
         "sizes, [TOKEN_BLOCK * out_width, g.kv_heads * dim, out_width, 1])"),
    ),
    fault(
        "output_partly_unwritten", "add", rowwise_text,
        ("col * share, share, stream.width)", "col * share, share - (col == 7), stream.width)"),
    ),
    fault(
        "output_partly_unwritten", "gemm", gemm_text,
        ("[count, 1, ROWS * g.m, g.n], [COLUMNS * g.n, 0, g.N, 1]",
         "[count, 1, ROWS * g.m, g.n], [COLUMNS * g.n, 0, g.N - g.n, 1]"),
    ),
]  # fmt: skip


def judged(design: OpDesign, device: Device | None = None) -> Verdict:
    """Phase 1 of one design: what `pipeline.phases.kernels.run` does with each."""
    dispatches, _ = exercise(design, device or twin(), seed_of(design))
    return judge_kernel(gate_of(design), dispatches, load_policy())


@cache
def honest(name: str) -> Verdict:
    return judged(DESIGNS[name])


def names(verdict: Verdict) -> set[str]:
    return {str(failure.name) for failure in verdict.failures}


def title(one: Fault) -> str:
    return f"{one.name}-{one.design}"


@pytest.mark.parametrize("name", DESIGNS)
def test_the_unplanted_kernel_passes(name: str) -> None:
    assert honest(name).passed, "\n".join(honest(name).lines())


@pytest.mark.parametrize("one", SOURCE_FAULTS, ids=title)
def test_a_fault_in_a_kernel_source_is_caught(one: Fault, tmp_path: Path) -> None:
    with planted_source(one.module, *one.edits, folder=tmp_path):
        verdict = judged(DESIGNS[one.design])
    assert not verdict.passed
    # By a figure or by a name that stands for values, not because something was not measured.
    assert verdict.missed or names(verdict) & {"non_finite", "zero_rows"}, verdict.lines()


@pytest.mark.parametrize("one", DESIGN_FAULTS, ids=title)
def test_a_fault_in_a_design_text_is_caught(one: Fault) -> None:
    with planted_python(one.module, *one.edits):
        verdict = judged(DESIGNS[one.design])
    assert not verdict.passed
    if one.name == "output_partly_unwritten":
        assert [str(f.name) for f in verdict.failures] == ["unwritten"] * 3
    else:
        assert verdict.missed


def test_a_stale_second_dispatch_is_caught() -> None:
    verdict = judged(DESIGNS["add"], StaleDevice(twin()))
    assert "stale" in names(verdict)
    assert [f.positions for f in verdict.failures if str(f.name) == "stale"] == [(1,), (2,)]


def test_a_device_that_returns_before_it_has_written_is_caught() -> None:
    verdict = judged(DESIGNS["add"], StaleDevice(twin(), repeats=False))
    assert "unwritten" in names(verdict)


def test_a_shortened_output_descriptor_does_not_complete() -> None:
    edit = ("col * share, share, stream.width)", "col * share, share - (stream.produce and col == 7), stream.width)")
    with planted_python(rowwise_text, edit), pytest.raises(DeviceFault, match="256 bytes are left in stream 's2_c7x'"):
        judged(DESIGNS["add"])
