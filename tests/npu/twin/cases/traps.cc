// SPDX-License-Identifier: Apache-2.0
// What goes wrong at run time on a core: each must trap and say where.
#include <aie_api/aie.hpp>

extern "C" {
void load_aligned(const bfloat16 *a, bfloat16 *out) { aie::store_v(out, aie::load_v<32>(a)); }
void load_short(const bfloat16 *a, bfloat16 *out) { aie::store_v(out, aie::load_v<8>(a)); }
void load_unaligned(const bfloat16 *a, bfloat16 *out) { aie::store_v(out, aie::load_unaligned_v<32>(a)); }
void load_promised(const bfloat16 *a, bfloat16 *out) { aie::store_v(out, aie::load_unaligned_v<32>(a, 8)); }
void store_aligned(const bfloat16 *a, bfloat16 *out) { aie::store_v(out, aie::load_v<32>(a)); }
void iterate(const bfloat16 *a, bfloat16 *out) { aie::store_v(out, aie::add(*aie::cbegin_vector<32>(a), bfloat16(0))); }
void extract_beyond(const bfloat16 *a, bfloat16 *out, int32_t index) {
  aie::store_v(out, aie::load_v<32>(a).extract<16>(index));
}
void lane_beyond(const bfloat16 *a, float *out, int32_t lane) { *out = aie::load_v<32>(a).get(lane); }
void transpose_wrong(const bfloat16 *a, bfloat16 *out, int32_t rows) {
  aie::store_v(out, aie::transpose(aie::load_v<32>(a), rows, 8));
}
void twice(const float *a, float *out) { aie::store_v(out, aie::add(aie::load_v<16>(a), aie::load_v<16>(a))); }
uint32_t host_float_mode() { return __builtin_ia32_stmxcsr(); }
void set_host_float_mode(uint32_t mode) { __builtin_ia32_ldmxcsr(mode); }
void round_by(int32_t mode) { aie::set_rounding(static_cast<aie::rounding_mode>(mode)); }
}
