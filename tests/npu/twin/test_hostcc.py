# SPDX-License-Identifier: Apache-2.0
"""The host kernel compiler: content addresses, refusals, and calls into a compiled library."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from npu.twin import hostcc
from refusal import Refusal
from tests.npu.twin import compiled_cases as cases

KERNEL = """#include <aie_api/aie.hpp>
#include "{header}"
extern "C" void scale(const bfloat16 *in, bfloat16 *out) {{
  aie::store_v(out, aie::mul(aie::load_v<16>(in), bfloat16(FACTOR)).to_vector<bfloat16>());
}}
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A kernel that includes a header beside it, which includes one in another directory."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "scale.cc").write_text(KERNEL.format(header="factor.h"))
    (tmp_path / "factor.h").write_text('#include "base.h"\n')
    (tmp_path / "deep" / "base.h").write_text("#ifndef FACTOR\n#define FACTOR 2.0f\n#endif\n")
    return tmp_path / "scale.cc"


def compiled(kernel: Path, defines: dict[str, str | None] | None = None) -> Path:
    where = kernel.parent
    return hostcc.compile_kernel(kernel, defines or {}, cache=where / "cache", include=[where / "deep"], flags=["-O0"])


def scaled(library: Path, value: float) -> float:
    data, out = cases.aligned(np.full(16, value, cases.BF16)), cases.aligned(np.zeros(16, cases.BF16))
    cases.call(hostcc.KernelLibrary(library), "scale", data, out)
    return float(out[0])


def test_the_same_source_is_compiled_once(kernel, monkeypatch):
    first = compiled(kernel)
    monkeypatch.setattr(hostcc, "_run_compiler", None)
    assert compiled(kernel) == first
    assert scaled(first, 3) == 6


def test_a_change_of_source_header_or_define_is_a_new_library(kernel):
    libraries = [compiled(kernel), compiled(kernel, {"FACTOR": "4.0f"})]
    (kernel.parent / "deep" / "base.h").write_text("#define FACTOR 8.0f\n")
    libraries.append(compiled(kernel))
    kernel.write_text(kernel.read_text() + "\n// a word more\n")
    libraries.append(compiled(kernel))
    assert len(set(libraries)) == 4
    assert [scaled(library, 1) for library in libraries] == [2, 4, 8, 8]


def test_the_address_holds_no_path_of_this_machine(kernel, tmp_path_factory):
    other = tmp_path_factory.mktemp("elsewhere")
    (other / "deep").mkdir()
    for name in ("scale.cc", "factor.h", "deep/base.h"):
        (other / name).write_text((kernel.parent / name).read_text())
    assert compiled(kernel).name == compiled(other / "scale.cc").name


def test_no_partial_file_is_left(kernel):
    library = compiled(kernel)
    kernel.write_text("this is not C++")
    with pytest.raises(Refusal):
        compiled(kernel)
    assert {p.suffix for p in library.parent.iterdir()} == {".so", ".lock"}


def test_a_compile_error_names_source_call_and_compiler(kernel):
    kernel.write_text('#include <aie_api/aie.hpp>\nextern "C" void k() { aie::vector<bfloat16, 12> v; }\n')
    with pytest.raises(Refusal) as refusal:
        compiled(kernel)
    assert "aie::vector<T, N>: AIE2P has vectors of" in refusal.value.found
    assert str(kernel) in refusal.value.where
    assert hostcc.find_compiler().version in refusal.value.where


def test_a_missing_quoted_header_is_refused_before_the_compiler_runs(kernel):
    (kernel.parent / "factor.h").unlink()
    with pytest.raises(Refusal, match=r'#include "factor.h" was not found'):
        compiled(kernel)


def test_bad_defines_and_missing_sources_are_refused(kernel):
    with pytest.raises(Refusal, match="a C identifier"):
        compiled(kernel, {"1X": None})
    with pytest.raises(Refusal, match="not a file"):
        hostcc.compile_kernel(kernel.with_name("none.cc"), {}, cache=kernel.parent)


def test_no_compiler_is_refused_with_what_to_install(monkeypatch):
    hostcc.find_compiler.cache_clear()
    monkeypatch.setattr(hostcc.shutil, "which", lambda name: None)
    monkeypatch.setattr(hostcc.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Refusal, match=r"install g\+\+ .* pip install ziglang"):
        hostcc.find_compiler()
    hostcc.find_compiler.cache_clear()


def test_a_missing_symbol_is_refused_with_the_exported_kernels():
    kernels = cases.library("traps")
    assert "load_aligned" in kernels.kernels()
    with pytest.raises(Refusal, match=r"no function 'load_alinged'.*load_aligned"):
        kernels.address("load_alinged")
    with pytest.raises(Refusal, match="no function 'memcpy'"):
        kernels.address("memcpy")


def test_a_library_without_the_emulation_headers_is_refused(kernel):
    kernel.write_text('extern "C" void k() {}\n')
    with pytest.raises(Refusal, match="core state of None bytes"):
        hostcc.KernelLibrary(compiled(kernel))


def test_an_address_may_be_called_directly_once_the_core_is_set():
    kernels = cases.library("traps")
    core = hostcc.CoreState()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(kernels.set_core_address)(ctypes.addressof(core))
    ctypes.CFUNCTYPE(None, ctypes.c_int32)(kernels.address("round_by"))(cases.CONV_EVEN)
    assert core.rounding == cases.CONV_EVEN
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(kernels.set_core_address)(None)


def test_negative_integers_pass_as_32_bit_arguments():
    values = cases.aligned(np.zeros(128, cases.BF16))
    with pytest.raises(Refusal, match="index 4294967295"):
        cases.call(cases.library("traps"), "lane_beyond", values, values, -1)
