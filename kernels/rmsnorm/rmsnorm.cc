// SPDX-License-Identifier: Apache-2.0
// RMSNorm of ROWS rows: y = x * gamma / sqrt(mean(x^2) + EPSILON).
//
// x, y   [ROWS][DIM] bf16; the true row is DIM_VALID long, what follows is padding: never read into a result, and
//        written as zero
// gamma  [DIM] bf16
// Sum of squares, mean and scale are fp32. The scale multiplies as three bf16 terms (8 + 8 + 8 bits of its 24-bit
// significand), since AIE2P multiplies bf16 exactly and has no fp32 vector multiplier; y is rounded once.
#include <aie_api/aie.hpp>
#include <stdint.h>

#if !defined(DIM) || !defined(DIM_VALID) || !defined(EPSILON) || !defined(ROWS)
#error "rmsnorm.cc needs -DDIM, -DDIM_VALID, -DEPSILON and -DROWS"
#endif

static_assert(DIM % 32 == 0, "whole vectors of 32 bf16 elements");
static_assert(DIM_VALID > 0 && DIM_VALID <= DIM, "the true length lies within the padded one");

namespace {

constexpr unsigned lanes = 32;
constexpr unsigned whole = DIM_VALID / lanes * lanes;     // elements in vectors without padding
constexpr unsigned tail = DIM_VALID - whole;              // true elements in the one mixed vector
constexpr unsigned written = whole + (tail ? lanes : 0u); // from here on y is padding alone

using Vector = aie::vector<bfloat16, lanes>;
using Sum = aie::accum<accfloat, lanes>;

// An fp32 value as three bf16 terms: value = high + middle + low to 24 bits.
struct Scale {
  Vector high, middle, low;

  explicit Scale(float value) {
    Sum rest;
    rest.from_vector(aie::broadcast<float, lanes>(value));
    high = rest.template to_vector<bfloat16>();
    rest = aie::sub(rest, high);
    middle = rest.template to_vector<bfloat16>();
    rest = aie::sub(rest, middle);
    low = rest.template to_vector<bfloat16>();
  }
};

// x with padding lanes replaced by zero, in the one vector that has both.
inline Vector load_tail(const bfloat16 *x) {
  const aie::mask<lanes> padding = aie::mask<lanes>::from_uint32(~0u << tail);
  return aie::select(aie::load_v<lanes>(x + whole), aie::zeros<bfloat16, lanes>(), padding);
}

inline float sum_of_squares(const bfloat16 *__restrict x) {
  Sum sum = aie::zeros<accfloat, lanes>();
  for (unsigned i = 0; i < whole; i += lanes) {
    const Vector v = aie::load_v<lanes>(x + i);
    sum = aie::mac(sum, v, v);
  }
  if constexpr (tail != 0) {
    const Vector v = load_tail(x);
    sum = aie::mac(sum, v, v);
  }
  return aie::reduce_add(sum.template to_vector<float>());
}

// x * gamma * scale: the product has 16 significant bits, so that its two bf16 terms are exact.
inline Vector normalise(const Vector &x, const Vector &gamma, const Scale &scale) {
  const Sum product = aie::mul(x, gamma);
  const Vector high = product.template to_vector<bfloat16>();
  const Vector low = aie::sub(product, high).template to_vector<bfloat16>();
  Sum y = aie::mul(high, scale.low);
  y = aie::mac(y, low, scale.middle);
  y = aie::mac(y, low, scale.high);
  y = aie::mac(y, high, scale.middle);
  y = aie::mac(y, high, scale.high);
  return y.template to_vector<bfloat16>();
}

inline void normalise_row(const bfloat16 *__restrict x, const bfloat16 *__restrict gamma, bfloat16 *__restrict y) {
  constexpr float count_inverse = 1.0f / float(DIM_VALID);
  const Scale scale(aie::invsqrt(sum_of_squares(x) * count_inverse + float(EPSILON)));
  for (unsigned i = 0; i < whole; i += lanes)
    aie::store_v(y + i, normalise(aie::load_v<lanes>(x + i), aie::load_v<lanes>(gamma + i), scale));
  if constexpr (tail != 0)
    aie::store_v(y + whole, normalise(load_tail(x), load_tail(gamma), scale));
  for (unsigned i = written; i < DIM; i += lanes)
    aie::store_v(y + i, aie::zeros<bfloat16, lanes>());
}

} // namespace

extern "C" {

void rmsnorm_rows(const bfloat16 *x, const bfloat16 *gamma, bfloat16 *y) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned row = 0; row < ROWS; ++row)
    normalise_row(x + row * DIM, gamma, y + row * DIM);
}

} // extern "C"
