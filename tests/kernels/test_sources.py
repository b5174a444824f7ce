# SPDX-License-Identifier: Apache-2.0
"""What every kernel source promises: known includes, rounding set in each function, no scalar stores in loops, no NumPy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kernels
from kernels.add.stage import AddStage
from kernels.attention_decode.stage import DecodeAttentionStage
from kernels.attention_prefill.stage import PrefillAttentionStage
from kernels.gemm.stage import GemmStage
from kernels.gemv.stage import GemvStage
from kernels.rmsnorm.stage import RmsNormStage
from kernels.rope.stage import RopeStage
from kernels.silu_mul.stage import SiluMulStage
from kernels.stage import Stage, float_literal
from npu.kernel_source import source_with_headers
from npu.program import MemRef
from npu.twin.hostcc import lint_kernel_source
from tests.kernels.compiled import Compiled

KERNELS = Path(kernels.__file__).parent

STAGES: list[Stage] = [
    GemmStage(16, 16, 16),
    *(GemvStage(64, 2, 4, kind=kind, epsilon=1e-5) for kind in ("plain", "norm", "add", "swiglu")),
    RmsNormStage(64, 64, 1e-5),
    RopeStage(32, 2, 1),
    SiluMulStage(64),
    AddStage(64),
    PrefillAttentionStage(32, 32, 2, 1, 2),
    DecodeAttentionStage(4, 2, 32),
]
SOURCES = sorted({stage.source for stage in STAGES})
FILES = sorted({path.resolve() for source in SOURCES for path in source_with_headers(source)})


def test_every_header_of_the_pack_is_included_by_a_kernel() -> None:
    assert {path for path in FILES if path.suffix == ".hpp"} == set((KERNELS / "include").iterdir())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_includes_only_the_aie_api_stdint_and_headers_of_the_pack(path: Path) -> None:
    included = re.findall(r"#include\s+(\S+)", path.read_text())
    ours = {f'"{header.name}"' for header in FILES} | {f'"../include/{header.name}"' for header in FILES}
    assert included
    assert set(included) <= {"<aie_api/aie.hpp>", "<stdint.h>"} | ours


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_has_no_scalar_store_in_a_loop(path: Path) -> None:
    lint_kernel_source(path)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_function_sets_the_rounding_itself(source: Path) -> None:
    exported = "".join(re.findall(r'extern "C" \{(.*?)\n\} // extern "C"', source.read_text(), re.DOTALL))
    functions = exported.count("\nvoid ") - exported.count("#else\nvoid ")
    assert functions > 0
    # both branches of an #if share or repeat the call
    assert exported.count("aie::set_rounding(aie::rounding_mode::conv_even);") >= functions


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: f"{stage.name}-{getattr(stage, 'kind', '')}")
def test_object_exports_what_the_stage_declares(stage: Stage) -> None:
    exported = Compiled(stage).library.kernels()
    assert set(stage.functions) <= set(exported)
    for arguments in stage.functions.values():
        assert all(
            argument == "i32" or (isinstance(argument, MemRef) and argument.nbytes % 4 == 0) for argument in arguments
        )


def test_object_names_follow_source_and_defines() -> None:
    assert AddStage(64).object.name == AddStage(64).object.name != AddStage(96).object.name


@pytest.mark.parametrize("value", [1e-5, 1e-6, 0.0, 1.0, 0.18033688, 1 / 3])
def test_float_literals_read_back_as_the_same_fp32(value: float) -> None:
    import numpy as np

    text = float_literal(value)
    assert text.endswith("f")
    assert np.float32(text[:-1]) == np.float32(value)
    assert re.fullmatch(r"-?\d+(\.\d+)?(e[-+]\d+)?f", text) and ("." in text or "e" in text)
