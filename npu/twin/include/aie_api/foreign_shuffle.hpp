// SPDX-License-Identifier: Apache-2.0
//
// shuffle(a, b, mode): the vector shuffles by which public kernels transpose, for kernels that others wrote.
//
// A mode T<bits>_<rows>x<columns> takes a register of 512 bits as a matrix of that many rows and columns of elements,
// and gives its transpose. With _lo and _hi the matrix has 1024 bits, a before b, and the lower or upper half of the
// transpose is the result. (Meaning as mlir-aie's aievec.shuffle describes it.) Modes on parts of a register are left out.

#pragma once

#include "vector.hpp"

namespace twin {

struct ShuffleMode {
  unsigned bits, rows, columns;
  int half;  // -1: the mode takes one register
};

}  // namespace twin

#define TWIN_SHUFFLE(bits, rows, columns) \
  inline constexpr twin::ShuffleMode T##bits##_##rows##x##columns{bits, rows, columns, -1};
#define TWIN_SHUFFLE_HALVES(bits, rows, columns)                                              \
  inline constexpr twin::ShuffleMode T##bits##_##rows##x##columns##_lo{bits, rows, columns, 0}; \
  inline constexpr twin::ShuffleMode T##bits##_##rows##x##columns##_hi{bits, rows, columns, 1};

TWIN_SHUFFLE(8, 8, 8)
TWIN_SHUFFLE(8, 16, 4)
TWIN_SHUFFLE(8, 4, 16)
TWIN_SHUFFLE(16, 8, 4)
TWIN_SHUFFLE(16, 4, 8)
TWIN_SHUFFLE(16, 16, 2)
TWIN_SHUFFLE(16, 2, 16)
TWIN_SHUFFLE(32, 4, 4)
TWIN_SHUFFLE_HALVES(8, 64, 2)
TWIN_SHUFFLE_HALVES(8, 2, 64)
TWIN_SHUFFLE_HALVES(16, 32, 2)
TWIN_SHUFFLE_HALVES(16, 2, 32)
TWIN_SHUFFLE_HALVES(16, 16, 4)
TWIN_SHUFFLE_HALVES(16, 4, 16)
TWIN_SHUFFLE_HALVES(32, 16, 2)
TWIN_SHUFFLE_HALVES(32, 2, 16)
TWIN_SHUFFLE_HALVES(32, 8, 4)
TWIN_SHUFFLE_HALVES(32, 4, 8)
TWIN_SHUFFLE_HALVES(64, 8, 2)
TWIN_SHUFFLE_HALVES(64, 2, 8)
TWIN_SHUFFLE_HALVES(128, 4, 2)
TWIN_SHUFFLE_HALVES(128, 2, 4)
TWIN_SHUFFLE_HALVES(256, 2, 2)
TWIN_SHUFFLE_HALVES(512, 1, 2)

#undef TWIN_SHUFFLE
#undef TWIN_SHUFFLE_HALVES

template <typename T, unsigned Elems>
inline aie::vector<T, Elems> shuffle(const aie::vector<T, Elems> &a, const aie::vector<T, Elems> &b,
                                     twin::ShuffleMode mode) {
  static_assert(sizeof(T) * Elems == 64, "shuffle: the vectors must have 512 bits");
  constexpr unsigned whole = 64;
  uint8_t in[2 * whole], out[2 * whole];
  __builtin_memcpy(in, &a, whole);
  __builtin_memcpy(in + whole, &b, whole);
  const unsigned bytes = mode.bits / 8;
  for (unsigned r = 0; r < mode.rows; ++r)
    for (unsigned c = 0; c < mode.columns; ++c)
      __builtin_memcpy(out + (c * mode.rows + r) * bytes, in + (r * mode.columns + c) * bytes, bytes);
  aie::vector<T, Elems> result;
  __builtin_memcpy(&result, out + (mode.half == 1 ? whole : 0), whole);
  twin::count_vector(1);
  return result;
}

template <typename T, unsigned Elems>
inline aie::vector<T, Elems> shuffle(const aie::vector<T, Elems> &a, twin::ShuffleMode mode) {
  if (mode.half >= 0) twin::trap("shuffle: one register for a mode that takes two");
  return shuffle(a, a, mode);
}
