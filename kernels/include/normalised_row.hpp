// SPDX-License-Identifier: Apache-2.0
// RMSNorm of one row: y = x * gamma / sqrt(mean(x^2) + epsilon), over the first `valid` of `dim` elements.
//
// What follows the true row is padding: never read into a result, and written as zero. Sum of squares, mean and scale are
// fp32; y is rounded once.
#pragma once
#include "fp32_terms.hpp"

template <unsigned dim, unsigned valid>
class NormalisedRow {
  static_assert(dim % 32 == 0, "whole vectors of 32 bf16 elements");
  static_assert(valid > 0 && valid <= dim, "the true length lies within the padded one");

  static constexpr unsigned lanes = 32;
  static constexpr unsigned whole = valid / lanes * lanes;         // elements in vectors without padding
  static constexpr unsigned tail = valid - whole;                  // true elements in the one mixed vector
  static constexpr unsigned written = whole + (tail ? lanes : 0u); // from here on y is padding alone

  using Vector = aie::vector<bfloat16, lanes>;
  using Sum = aie::accum<accfloat, lanes>;
  using Scale = Terms<lanes>;

  // x with padding lanes replaced by zero, in the one vector that has both.
  static Vector load_tail(const bfloat16 *x) {
    const aie::mask<lanes> padding = aie::mask<lanes>::from_uint32(~0u << tail);
    return aie::select(aie::load_v<lanes>(x + whole), aie::zeros<bfloat16, lanes>(), padding);
  }

  static float sum_of_squares(const bfloat16 *__restrict x) {
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

  // x * gamma * scale: the product of two bf16 has 16 significant bits, so that its two bf16 terms are exact.
  static Vector scaled(const Vector &x, const Vector &gamma, const Scale &scale) {
    const Sum exact = aie::mul(x, gamma);
    const Vector high = exact.template to_vector<bfloat16>();
    const Vector low = aie::sub(exact, high).template to_vector<bfloat16>();
    Sum y = aie::mul(high, scale.low);
    y = aie::mac(y, low, scale.middle);
    y = aie::mac(y, low, scale.high);
    y = aie::mac(y, high, scale.middle);
    y = aie::mac(y, high, scale.high);
    return y.template to_vector<bfloat16>();
  }

public:
  static void store(const bfloat16 *__restrict x, const bfloat16 *__restrict gamma, bfloat16 *__restrict y,
                    const float &epsilon) {
    constexpr float count_inverse = 1.0f / float(valid);
    const Scale scale(constant<lanes>(aie::invsqrt(sum_of_squares(x) * count_inverse + epsilon)));
    for (unsigned i = 0; i < whole; i += lanes)
      aie::store_v(y + i, scaled(aie::load_v<lanes>(x + i), aie::load_v<lanes>(gamma + i), scale));
    if constexpr (tail != 0)
      aie::store_v(y + whole, scaled(load_tail(x), load_tail(gamma), scale));
    for (unsigned i = written; i < dim; i += lanes)
      aie::store_v(y + i, aie::zeros<bfloat16, lanes>());
  }
};
