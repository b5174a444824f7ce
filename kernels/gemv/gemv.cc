// SPDX-License-Identifier: Apache-2.0
// GEMV rows: dot products of ROWS weight rows with one activation vector, and what decode does with them.
//
//   w       [ROWS][DIM_K] bf16, row-major; for SwiGLU ROWS gate rows, then ROWS up rows
//   header  [DIM_K] x, then gamma [DIM_K] (gemv_normalise) or the residual (gemv_add_rows); bf16
//   y       [OUT_ROWS], the whole output element of the core
//   acc     [OUT_ROWS] fp32, the sums so far, where a row is longer than a weight element (-DPARTS): DIM_K is then the part
//           of a row that one element holds, and the header holds that part of x, later the residual
//
// A call computes rows first .. first + ROWS - 1 of y or of acc. Products are exact, sums are fp32, y is rounded once.
// No call writes outside its own rows, so y needs no padding: rows are stored as aligned vectors of 8 where ROWS is a
// multiple of 8, as 32-bit words of two rows otherwise. ROWS is even.
#include "../include/fp32_terms.hpp"
#include "../include/normalised_row.hpp"
#include <stdint.h>

#if !defined(DIM_K) || !defined(ROWS) || !defined(OUT_ROWS)
#error "gemv.cc needs -DDIM_K, -DROWS and -DOUT_ROWS"
#endif
#ifndef OUT_F32
#define OUT_F32 0
#endif

static_assert(DIM_K % 32 == 0, "whole vectors of 32 bf16 elements");
static_assert(ROWS > 0 && ROWS % 2 == 0, "rows are stored as whole 32-bit words");
static_assert(OUT_ROWS % ROWS == 0, "calls fill the output element exactly");

namespace {

#if OUT_F32
using Out = float;
#else
using Out = bfloat16;
#endif

constexpr unsigned lanes = DIM_K % 64 == 0 ? 64 : 32;
constexpr unsigned batch = 16; // rows that are finished together, one a lane

using Activation = aie::vector<bfloat16, lanes>;
using Sum = aie::accum<accfloat, lanes>;
using Rows = aie::vector<float, batch>;
using RowSum = aie::accum<accfloat, batch>;
using RowTerm = aie::vector<bfloat16, batch>;
using RowTerms = Terms<batch>;

inline Rows fold(const Sum &sum) {
  if constexpr (lanes == 64) {
    const aie::accum<accfloat, 32> half = aie::add(sum.template extract<32>(0), sum.template extract<32>(1));
    return aie::add(half.template extract<16>(0), half.template extract<16>(1)).template to_vector<float>();
  } else {
    return aie::add(sum.template extract<16>(0), sum.template extract<16>(1)).template to_vector<float>();
  }
}

// Lane i of the result is the sum of a's lanes of chunk i, then of b's, in turn: half of the lanes, twice as many rows.
inline Rows merge(const Rows &a, const Rows &b, unsigned chunk) {
  const auto [low, high] = aie::interleave_zip(a, b, chunk);
  return aie::add(low, high);
}

// The last step of a row sum: lanes beyond the first `rows` are folded onto them.
inline aie::vector<float, 4> fold_rows(const Rows &partial) {
  const aie::vector<float, 8> half = aie::add(partial.template extract<8>(0), partial.template extract<8>(1));
  return aie::add(half.template extract<4>(0), half.template extract<4>(1));
}

inline aie::vector<float, 4> dot_4(const bfloat16 *__restrict w, const bfloat16 *__restrict x) {
  Sum sum0 = aie::zeros<accfloat, lanes>(), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  for (unsigned k = 0; k < DIM_K; k += lanes) {
    const Activation activation = aie::load_v<lanes>(x + k);
    sum0 = aie::mac(sum0, aie::load_v<lanes>(w + k), activation);
    sum1 = aie::mac(sum1, aie::load_v<lanes>(w + DIM_K + k), activation);
    sum2 = aie::mac(sum2, aie::load_v<lanes>(w + 2 * DIM_K + k), activation);
    sum3 = aie::mac(sum3, aie::load_v<lanes>(w + 3 * DIM_K + k), activation);
  }
  return fold_rows(merge(merge(fold(sum0), fold(sum1), 1), merge(fold(sum2), fold(sum3), 1), 2));
}

inline aie::vector<float, 4> dot_2(const bfloat16 *__restrict w, const bfloat16 *__restrict x) {
  Sum sum0 = aie::zeros<accfloat, lanes>(), sum1 = sum0;
  for (unsigned k = 0; k < DIM_K; k += lanes) {
    const Activation activation = aie::load_v<lanes>(x + k);
    sum0 = aie::mac(sum0, aie::load_v<lanes>(w + k), activation);
    sum1 = aie::mac(sum1, aie::load_v<lanes>(w + DIM_K + k), activation);
  }
  const Rows pair = merge(fold(sum0), fold(sum1), 1);
  return fold_rows(merge(pair, pair, 2));
}

// `count` dot products in the first lanes; the other lanes are zero. Four rows share the loads of x, each with an
// accumulator register of its own.
template <unsigned count>
inline Rows dot(const bfloat16 *w, const bfloat16 *x) {
  Rows rows = aie::zeros<float, batch>();
  for (unsigned i = 0; i < count / 4; ++i)
    rows.insert(i, dot_4(w + i * 4 * DIM_K, x));
  if constexpr (count % 4 == 2) {
    const aie::vector<float, 4> pair = dot_2(w + (count - 2) * DIM_K, x);
    rows.set(pair.get(0), count - 2);
    rows.set(pair.get(1), count - 1);
  }
  return rows;
}

// Word i of the rows' bits: two bf16 rows or one fp32 row.
template <unsigned i, typename T>
inline void store_word(T *y, const aie::vector<int32, sizeof(T) * batch / 4> &words) {
  const int32_t word = words.get(i);
  __builtin_memcpy(static_cast<void *>(y + i * 4 / sizeof(T)), &word, sizeof word);
}

// Words i .. end - 1, as straight-line code.
template <unsigned i, unsigned end, typename T>
inline void store_words(T *y, const aie::vector<int32, sizeof(T) * batch / 4> &words) {
  if constexpr (i < end) {
    store_word<i>(y, words);
    store_words<i + 1, end>(y, words);
  }
}

// The first `count` of `total` rows go to y.
template <unsigned total, unsigned count, typename T>
inline void store(T *y, const RowSum &rows) {
  const auto values = rows.template to_vector<T>();
  if constexpr (total % 8 == 0) {
    aie::store_v(y, values.template extract<8>(0));
    if constexpr (count == 16)
      aie::store_v(y + 8, values.template extract<8>(1));
  } else {
    store_words<0, count * sizeof(T) / 4>(y, values.template cast_to<int32>());
  }
}

// ---- SwiGLU of fp32 rows ------------------------------------------------------------------------------------------

// silu(g) * u with silu(g) = g / (1 + 2^(-g log2 e)). exp2 is the hardware's, with a bf16 result; the bf16 reciprocal
// r of the denominator gets one Newton step, g r (2 - d r), with d r summed exactly in fp32.
inline RowSum swiglu(const Rows &gate, const Rows &up) {
  const RowTerm one = aie::broadcast<bfloat16, 16>(bfloat16(1.0f));
  // silu(-64) = -1e-26 stands for every smaller gate, and 2^92 for every larger denominator: nothing overflows.
  const RowTerms g(sum_of(aie::max(gate, aie::broadcast<float, batch>(-64.0f))));
  const RowSum exponent = product(g, RowTerms(constant<batch>(-1.44269504088896f)));
  const RowTerm e = aie::exp2<bfloat16>(exponent.template to_vector<float>());
  const RowTerm r = aie::inv(aie::add(constant<batch>(1.0f), e).template to_vector<bfloat16>());
  RowSum error = aie::msc(constant<batch>(1.0f), r, one);
  error = aie::msc(error, r, e);
  RowSum silu = product(g, r);
  silu = aie::mac(silu, silu.template to_vector<bfloat16>(), error.template to_vector<bfloat16>());
  return product(RowTerms(silu), RowTerms(sum_of(up)));
}

// Runs `finish.template rows<count>(row)`, which gives rows row .. row + count - 1, and stores them, batch by batch.
template <unsigned total, unsigned row, typename T, typename Finish>
inline void each_batch(T *y, const Finish &finish) {
  if constexpr (row < total) {
    constexpr unsigned count = total - row < batch ? total - row : batch;
    store<total, count>(y + row, finish.template rows<count>(row));
    each_batch<total, row + batch>(y, finish);
  }
}

template <unsigned total, typename T, typename Finish>
inline void all_rows(T *y, const Finish &finish) {
  if constexpr (total % 8 == 0 && total > batch) {
    for (unsigned row = 0; row + batch <= total; row += batch)
      store<total, batch>(y + row, finish.template rows<batch>(row));
    each_batch<total, total / batch * batch>(y, finish);
  } else {
    each_batch<total, 0>(y, finish);
  }
}

// `count` values from `from` on, in the first lanes; the other lanes are zero.
template <unsigned count, typename T>
inline aie::vector<T, batch> load_rows(const T *from) {
  aie::vector<T, batch> rows = aie::zeros<T, batch>();
  for (unsigned i = 0; i < count; ++i)
    rows.set(from[i], i);
  return rows;
}

struct Plain {
  const bfloat16 *w, *x;

  template <unsigned count>
  RowSum rows(unsigned row) const {
    return sum_of(dot<count>(w + row * DIM_K, x));
  }
};

struct WithResidual {
  const bfloat16 *w, *x, *residual;

  template <unsigned count>
  RowSum rows(unsigned row) const {
    return aie::add(sum_of(dot<count>(w + row * DIM_K, x)), load_rows<count>(residual + row));
  }
};

struct GateUp {
  const bfloat16 *w, *x;

  template <unsigned count>
  RowSum rows(unsigned row) const {
    return swiglu(dot<count>(w + row * DIM_K, x), dot<count>(w + (ROWS + row) * DIM_K, x));
  }
};

#ifdef PARTS
struct Part {
  const bfloat16 *w, *x;
  const float *acc;
  bool continues;

  template <unsigned count>
  RowSum rows(unsigned row) const {
    const Rows before = continues ? load_rows<count>(acc + row) : aie::zeros<float, batch>();
    return sum_of(aie::add(dot<count>(w + row * DIM_K, x), before));
  }
};

struct Whole {
  const float *acc;

  template <unsigned count>
  RowSum rows(unsigned row) const {
    return sum_of(load_rows<count>(acc + row));
  }
};

struct WholeWithResidual {
  const float *acc;
  const bfloat16 *residual;

  template <unsigned count>
  RowSum rows(unsigned row) const {
    return aie::add(sum_of(load_rows<count>(acc + row)), load_rows<count>(residual + row));
  }
};
#endif // PARTS

} // namespace

extern "C" {

#ifdef PARTS

// acc[first + r] = w[r] . x, plus what acc holds from the parts before unless `part` is 0
void gemv_part(const bfloat16 *w, const bfloat16 *x, float *acc, int32_t first, int32_t part) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  all_rows<ROWS>(acc + first, Part{w, x, acc + first, part != 0});
}

// y = acc
void gemv_whole(const float *acc, Out *y) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  all_rows<OUT_ROWS>(y, Whole{acc});
}

// y[r] = acc[r] + header[core_first + r]: the residual's rows of this core
void gemv_whole_add(const float *acc, const bfloat16 *header, Out *y, int32_t core_first) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  all_rows<OUT_ROWS>(y, WholeWithResidual{acc, header + core_first});
}

#endif // PARTS

// y[first + r] = w[r] . x
void gemv_rows(const bfloat16 *w, const bfloat16 *x, Out *y, int32_t first) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  all_rows<ROWS>(y + first, Plain{w, x});
}

// y[first + r] = w[r] . x + header[core_first + first + r]: core_first is where the core's rows of the residual begin in
// the header, DIM_K elements of x included.
void gemv_add_rows(const bfloat16 *w, const bfloat16 *header, Out *y, int32_t first, int32_t core_first) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  all_rows<ROWS>(y + first, WithResidual{w, header, header + core_first + first});
}

// y[first + r] = silu(w[r] . x) * (w[ROWS + r] . x)
void gemv_swiglu_rows(const bfloat16 *w, const bfloat16 *x, Out *y, int32_t first) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  all_rows<ROWS>(y + first, GateUp{w, x});
}

} // extern "C"

// ---- RMSNorm of the activation ------------------------------------------------------------------------------------

#ifdef EPSILON
#ifndef DIM_VALID
#define DIM_VALID DIM_K
#endif

extern "C" {

// xn = RMSNorm(x) * gamma over the first DIM_VALID elements of x and gamma, which follow one another in the header. The
// padding of xn is zero, whatever the header holds there.
void gemv_normalise(const bfloat16 *header, bfloat16 *xn) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  NormalisedRow<DIM_K, DIM_VALID>::store(header, header + DIM_K, xn, float(EPSILON));
}

} // extern "C"
#endif // EPSILON
