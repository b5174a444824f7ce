# SPDX-License-Identifier: Apache-2.0
"""Scalar stores in loops are refused; vector stores and stores outside loops are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu.twin.hostcc import lint_kernel_source
from refusal import Refusal

SCALAR_STORES = {
    "subscript": "for (int i = 0; i < n; i++) out[i] = in[i];",
    "compound": "for (int i = 0; i < n; i++) { out[i + 1] += in[i]; }",
    "nested subscript": "while (n--) { out[index[n]] = in[n]; }",
    "pointer walk": "for (int i = 0; i < n; i++) { *out++ = in[i]; }",
    "pointer on the next line": "for (int i = 0; i < n; i++)\n *out = in[i];",
    "pointer sum": "for (int i = 0; i < n; i++) { *(out + i) = in[i]; }",
    "local pointer": "bfloat16 *q = out + 4; do { q[n] = in[n]; } while (n--);",
    "local array": "bfloat16 row[16]; for (int i = 0; i < n; i++) { row[i] = in[i]; }",
    "inner loop": "for (int j = 0; j < n; j++) { if (j) { for (;;) { out[j] = in[j]; } } }",
    "increment": "for (int i = 0; i <= n; i++) { out[i]++; }",
}

HARMLESS = {
    "vector store": "for (int i = 0; i < n; i += 16) aie::store_v(out + i, aie::load_v<16>(in + i));",
    "vector iterator": "auto it = aie::begin_vector<16>(out); for (int i = 0; i < n; i++) { *it++ = aie::zeros<bfloat16, 16>(); }",
    "outside a loop": "out[0] = in[0]; for (int i = 0; i < n; i++) { aie::load_v<16>(in); }",
    "array of vectors": "aie::vector<bfloat16, 16> v[4]; for (int i = 0; i < n; i++) { v[i] = aie::load_v<16>(in); }",
    "comparison": "for (int i = 0; i < n; i++) { if (out[i] == in[i]) break; }",
    "comment": "for (int i = 0; i < n; i++) { /* out[i] = 0; */ // out[i] = 1;\n }",
    "after the loop": "for (int i = 0; i < n; i++) { aie::load_v<16>(in); } out[0] = in[0];",
}


def kernel(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "kernel.cc"
    path.write_text(
        "#include <aie_api/aie.hpp>\n"
        'extern "C" void k(const bfloat16 *__restrict in, bfloat16 *out, const int32_t *index, int32_t n) {\n'
        f"  {body}\n}}\n"
    )
    return path


@pytest.mark.parametrize("name", SCALAR_STORES)
def test_a_scalar_store_in_a_loop_is_refused_with_its_line(tmp_path, name):
    line = 3 + SCALAR_STORES[name].count("\n")
    with pytest.raises(Refusal, match=rf"1 scalar store\(s\) in a loop: line {line}: .*[=+]"):
        lint_kernel_source(kernel(tmp_path, SCALAR_STORES[name]))


@pytest.mark.parametrize("name", HARMLESS)
def test_other_code_passes(tmp_path, name):
    lint_kernel_source(kernel(tmp_path, HARMLESS[name]))


@pytest.mark.parametrize("parameter", ["float scale", "const bfloat16 scale", "double x"])
def test_a_float_by_value_is_refused(tmp_path, parameter):
    block = tmp_path / "block.cc"
    block.write_text(f'extern "C" {{\nvoid fine(float *p, int32_t n) {{}}\nvoid k(float *p, {parameter}) {{}}\n}}\n')
    single = tmp_path / "single.cc"
    single.write_text(f'extern "C" void k({parameter}, float *p) {{ p[0] = 0; }}\n')
    for path, line in ((block, 3), (single, 1)):
        with pytest.raises(Refusal, match=rf"line {line}: function k takes '{parameter}' by value"):
            lint_kernel_source(path)


def test_inner_functions_may_take_floats(tmp_path):
    path = tmp_path / "inner.cc"
    path.write_text(
        'static float half(float x) { return x / 2; }\nextern "C" void k(float *p) { p[0] = half(p[1]); }\n'
    )
    lint_kernel_source(path)
