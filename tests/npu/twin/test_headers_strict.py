# SPDX-License-Identifier: Apache-2.0
"""What the device's API refuses is refused here: at compile time with the call's name, at run time by a trap."""

from __future__ import annotations

import atexit
import ctypes
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from npu.twin import hostcc
from refusal import Refusal
from tests.npu.twin import compiled_cases as cases

pytestmark = pytest.mark.slow

# A statement that must not compile, and what the error must say.
ILLEGAL = {
    "width of 192 bits": ("aie::vector<bfloat16, 12> v;", "aie::vector<T, N>"),
    "width of 2048 bits": ("aie::vector<bfloat16, 128> v;", "aie::vector<T, N>"),
    "double": ("aie::vector<double, 4> v;", "aie::vector<T, N>: T must be"),
    "accumulator of 128 lanes": ("aie::accum<accfloat, 128> v;", "aie::accum<Tag, N>"),
    "unknown accumulator tag": ("aie::accum<float, 16> v;", "aie::accum<Tag, N>: Tag must be"),
    "bfloat16 times float": ("aie::mul(x, f);", "aie::mul"),
    "product of two sizes": ("aie::mul(x, wide);", "aie::mul"),
    "integer accumulator for floats": ("aie::mac(iacc, x, x);", "aie::mac"),
    "mac into a vector": ("aie::mac(x, x, x);", "aie::mac"),
    "mac of another size": ("aie::mac(acc, wide, wide);", "aie::mac"),
    "msc of mixed types": ("aie::msc(acc, x, f);", "aie::msc"),
    "product into acc32": ("aie::mul<acc32>(x, x);", "aie::mul"),
    "add of mixed types": ("aie::add(x, f);", "aie::add"),
    "scalar of another type": ("aie::add(x, 1.0f);", "aie::add"),
    "integer accumulator plus floats": ("aie::add(iacc, x);", "aie::add"),
    "max of an accumulator": ("aie::max(acc, acc);", "max"),
    "integer lanes as floats": ("iacc.to_vector<float>();", "aie::accum::to_vector<T>"),
    "float lanes as integers": ("acc.to_vector<int16>();", "aie::accum::to_vector<T>"),
    "acc32 from floats": ("aie::accum<acc32, 16> a(f);", "aie::accum::from_vector"),
    "wide accumulator as vector": ("aie::vector<bfloat16, 64> v = aie::accum<accfloat, 64>();", "accum"),
    "integer accumulator as vector": ("aie::vector<int32, 16> v = iacc;", "accum"),
    "store of another type": ("aie::store_v((float *)p, x);", "aie::store_v"),
    "exp2 of bfloat16": ("aie::exp2<bfloat16>(x);", "aie::exp2"),
    "exp2 to float": ("aie::exp2<float>(f);", "aie::exp2<T>: T must be bfloat16"),
    "tanh of an accumulator": ("aie::tanh<bfloat16>(acc);", "aie::tanh"),
    "vector square root": ("aie::sqrt(f);", "aie::sqrt"),
    "shape 4x4x4 of bfloat16": ("aie::mmul<4, 4, 4, bfloat16> m;", "aie::mmul<M, K, N"),
    "shape 8x16x8 of bfloat16": ("aie::mmul<8, 16, 8, bfloat16> m;", "aie::mmul<M, K, N"),
    "mixed operand types": ("aie::mmul<8, 8, 8, bfloat16, int8> m;", "aie::mmul<M, K, N"),
    "integer tag for bfloat16": ("aie::mmul<8, 8, 8, bfloat16, bfloat16, acc32> m;", "the accumulator tag"),
    "operand of another size": ("aie::mmul<8, 8, 8, bfloat16> m; m.mac(x, x);", "aie::mmul::mac"),
    "operand of another type": ("aie::mmul<4, 4, 8, int16> m; m.mac(f, f);", "aie::mmul::mac"),
    "select by a mask of another size": ("aie::select(x, x, aie::mask<32>());", "aie::select"),
    "interleave of mixed types": ("aie::interleave_zip(x, wide, 1);", "aie::interleave_zip"),
    "a wider extract": ("x.extract<32>(0);", "aie::vector::extract"),
    "an unknown call": ("aie::sliding_mul<8, 8>(x, x);", "sliding_mul"),
    "loop hints without their header": ("AIE_LOOP_UNROLL(2) for (int i = 0; i < 4; ++i) ;", "AIE_LOOP_UNROLL"),
}

FRAME = """#include <aie_api/aie.hpp>
extern "C" void kernel(const bfloat16 *p, const float *q, aie::accum<acc32, 16> iacc) {{
  auto x = aie::load_v<16>(p);
  auto wide = aie::load_v<32>(p);
  auto f = aie::load_v<16>(q);
  aie::accum<accfloat, 16> acc(f);
  {statement}
}}
"""


@cache
def precompiled_headers() -> tuple[str, ...]:
    """Options that let g++ take the headers precompiled, which saves most of the time of a refusal."""
    compiler = hostcc.find_compiler().command
    if not compiler[0].endswith("g++") or compiler[0].endswith("clang++"):
        return ()
    place = Path(tempfile.mkdtemp(prefix="aie-headers-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    (place / "aie_api").mkdir()
    header = hostcc.INCLUDE_ROOT / "aie_api" / "aie.hpp"
    options = ["-std=c++20", "-xc++-header", str(header), "-o", str(place / "aie_api" / "aie.hpp.gch")]
    subprocess.run([*compiler, *options], check=True)
    return (f"-I{place}",)


def compile_text(text: str) -> str:
    """The compiler's errors for a kernel text; empty when it is accepted."""
    options = ("-std=c++20", "-fsyntax-only", *precompiled_headers(), f"-I{hostcc.INCLUDE_ROOT}", "-xc++", "-")
    command = [*hostcc.find_compiler().command, *options]
    answer = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return "" if answer.returncode == 0 else answer.stderr


@cache
def errors() -> dict[str, str]:
    """What the compiler says of every illegal statement."""
    precompiled_headers()
    texts = [FRAME.format(statement=statement) for statement, _ in ILLEGAL.values()]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(ILLEGAL, pool.map(compile_text, texts), strict=True))


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_call_is_a_compile_error_that_names_it(name):
    said = errors()[name]
    assert said, "the statement compiled"
    assert ILLEGAL[name][1] in said


def test_the_frame_itself_compiles():
    assert compile_text(FRAME.format(statement="aie::mul(x, x); aie::mac(acc, x, x); aie::add(acc, x);")) == ""


OUT = np.zeros(64, cases.BF16)


@pytest.mark.parametrize(
    ("symbol", "offset", "message"),
    [
        ("load_aligned", 32, "aie::load_v"),
        ("load_aligned", 2, "aie::load_v"),
        ("load_short", 8, "aie::load_v"),
        ("iterate", 32, "aie vector iterator"),
        ("load_promised", 2, "aie::load_unaligned_v"),
    ],
)
def test_a_misaligned_load_traps_and_names_the_call(symbol, offset, message):
    data, out = cases.aligned(np.arange(128).astype(cases.BF16)), cases.aligned(OUT)
    kernels = cases.library("traps")
    cases.call(kernels, symbol, data, out)
    with pytest.raises(Refusal, match=message) as refusal:
        cases.call(kernels, symbol, data.ctypes.data + offset, out)
    assert "is not aligned" in str(refusal.value)


def test_a_misaligned_store_traps_and_unaligned_calls_do_not():
    data, out = cases.aligned(np.arange(128).astype(cases.BF16)), cases.aligned(np.zeros(128, cases.BF16))
    kernels = cases.library("traps")
    with pytest.raises(Refusal, match="aie::store_v: address"):
        cases.call(kernels, "store_aligned", data, out.ctypes.data + 32)
    cases.call(kernels, "load_unaligned", data.ctypes.data + 2, out)
    np.testing.assert_array_equal(out[:32], data[1:33])


@pytest.mark.parametrize(
    ("symbol", "legal", "illegal", "message"),
    [
        ("lane_beyond", 31, 32, "index 32; expected 0 to 31"),
        ("transpose_wrong", 4, 8, "aie::transpose: 8 x 8"),
    ],
)
def test_an_index_out_of_range_traps(symbol, legal, illegal, message):
    data, out = cases.aligned(np.arange(128).astype(cases.BF16)), cases.aligned(OUT)
    cases.call(cases.library("traps"), symbol, data, out, legal)
    with pytest.raises(Refusal, match=message):
        cases.call(cases.library("traps"), symbol, data, out, illegal)


def test_an_unknown_rounding_mode_traps():
    cases.call(cases.library("traps"), "round_by", cases.CONV_ODD)
    with pytest.raises(Refusal, match=r"set_rounding\(4\)"):
        cases.call(cases.library("traps"), "round_by", 4)


def test_a_core_goes_on_after_a_trap():
    data, out, core = cases.aligned(np.arange(128).astype(cases.BF16)), cases.aligned(OUT), cases.CoreState()
    with pytest.raises(Refusal):
        cases.call(cases.library("traps"), "load_aligned", data.ctypes.data + 2, out, core=core)
    cases.call(cases.library("traps"), "load_aligned", data, out, core=core)
    assert core.trap_message == b""
    assert core.loads == 1


@pytest.mark.skipif(platform.machine() != "x86_64", reason="MXCSR is x86's")
def test_denormals_survive_a_process_that_flushes_them():
    kernels, tiny = cases.library("traps"), np.float32(2.0**-140)
    data, out = cases.aligned(np.full(16, tiny)), cases.aligned(np.zeros(16, np.float32))
    get_mode = ctypes.CFUNCTYPE(ctypes.c_uint32)(kernels.address("host_float_mode"))
    set_mode = ctypes.CFUNCTYPE(None, ctypes.c_uint32)(kernels.address("set_host_float_mode"))
    before = get_mode()
    flushing = before | 0x8040
    try:
        set_mode(flushing)
        cases.call(kernels, "twice", data, out)
        assert get_mode() & 0xFFC0 == flushing & 0xFFC0
    finally:
        set_mode(before)
    assert out.tolist() == [2.0**-139] * 16


def test_a_kernel_without_a_core_state_stops_the_process_with_a_message():
    path = cases.library("traps").path
    program = f"import ctypes; ctypes.CDLL({str(path)!r}).round_by(0)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert answer.returncode != 0
    assert "no core state is set" in answer.stderr
