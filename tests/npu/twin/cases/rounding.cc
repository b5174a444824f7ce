// SPDX-License-Identifier: Apache-2.0
// Narrowing of floats and accumulators under every rounding and saturation mode.
#include <aie_api/aie.hpp>

template <typename Out, unsigned N, typename Tag, typename In>
static void srs(const In *in, Out *out, int32_t n, int32_t shift) {
  for (int i = 0; i < n; i += N) {
    aie::accum<Tag, N> acc(aie::load_v<N>(in + i));
    aie::store_unaligned_v(out + i, acc.template to_vector<Out>(shift));
  }
}

extern "C" {

void narrow(const float *in, bfloat16 *out, int32_t n, int32_t mode) {
  aie::set_rounding(static_cast<aie::rounding_mode>(mode));
  for (int i = 0; i < n; i += 16) {
    aie::accum<accfloat, 16> acc(aie::load_v<16>(in + i));
    aie::store_v(out + i, acc.to_vector<bfloat16>());
  }
}

// The mode is whatever the core was left in.
void narrow_as_is(const float *in, bfloat16 *out, int32_t n) {
  for (int i = 0; i < n; i += 4) {
    aie::accum<accfloat, 4> acc(aie::load_unaligned_v<4>(in + i));
    for (unsigned j = 0; j < 4; ++j)
      out[i + j] = bfloat16(acc.to_vector<float>().get(j));
  }
}

void widen(const bfloat16 *in, float *out, int32_t n) {
  for (int i = 0; i < n; i += 32)
    aie::store_v(out + i, aie::accum<accfloat, 32>(aie::load_v<32>(in + i)).to_vector<float>());
}

void srs_8(const int32 *in, int8 *out, int32_t n, int32_t shift) { srs<int8, 16, acc32>(in, out, n, shift); }
void srs_16(const int32 *in, int16 *out, int32_t n, int32_t shift) { srs<int16, 16, acc32>(in, out, n, shift); }
void srs_u8(const int32 *in, uint8 *out, int32_t n, int32_t shift) { srs<uint8, 16, acc64>(in, out, n, shift); }

void set_modes(int32_t rounding, int32_t saturation) {
  aie::set_rounding(static_cast<aie::rounding_mode>(rounding));
  aie::set_saturation(static_cast<aie::saturation_mode>(saturation));
}

// A constant is folded to nearest even by the compiler, whatever the register says.
void constant(bfloat16 *out) {
  constexpr bfloat16 third = 1.0f / 3.0f;
  aie::store_v(out, aie::broadcast<bfloat16, 8>(third));
}
}
