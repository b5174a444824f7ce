// SPDX-License-Identifier: Apache-2.0
// Products of fp32 values on a vector unit that multiplies bf16 exactly and has no fp32 multiplier.
//
// An fp32 value is the sum of three bf16 terms of 8 bits each, which hold its 24-bit significand. A product of two such
// values keeps the six pairs of terms that reach fp32's precision, the smallest first.
#pragma once
#include <aie_api/aie.hpp>

// value = high + middle + low.
template <unsigned lanes>
struct Terms {
  aie::vector<bfloat16, lanes> high, middle, low;

  explicit Terms(const aie::accum<accfloat, lanes> &value) {
    high = value.template to_vector<bfloat16>();
    const aie::accum<accfloat, lanes> rest = aie::sub(value, high);
    middle = rest.template to_vector<bfloat16>();
    low = aie::sub(rest, middle).template to_vector<bfloat16>();
  }
};

template <unsigned lanes>
inline aie::accum<accfloat, lanes> sum_of(const aie::vector<float, lanes> &values) {
  aie::accum<accfloat, lanes> sum;
  sum.from_vector(values);
  return sum;
}

template <unsigned lanes>
inline aie::accum<accfloat, lanes> constant(float value) {
  return sum_of<lanes>(aie::broadcast<float, lanes>(value));
}

template <unsigned lanes>
inline aie::accum<accfloat, lanes> product(const Terms<lanes> &a, const Terms<lanes> &b) {
  aie::accum<accfloat, lanes> sum = aie::mul(a.middle, b.middle);
  sum = aie::mac(sum, a.high, b.low);
  sum = aie::mac(sum, a.low, b.high);
  sum = aie::mac(sum, a.high, b.middle);
  sum = aie::mac(sum, a.middle, b.high);
  return aie::mac(sum, a.high, b.high);
}

template <unsigned lanes>
inline aie::accum<accfloat, lanes> product(const Terms<lanes> &a, const aie::vector<bfloat16, lanes> &b) {
  return aie::mac(aie::mac(aie::mul(a.low, b), a.middle, b), a.high, b);
}
