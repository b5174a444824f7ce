// SPDX-License-Identifier: Apache-2.0
//
// Streams of block vectors in memory, and the matrix instruction on two of them.
//
// A block vector of 64 values takes 72 bytes in memory, at any address.

#pragma once

#include "mmul.hpp"

namespace aie {

/// Reads block vectors one after the other.
template <typename T, unsigned Elems>
class block_vector_input_buffer_stream {
 public:
  explicit block_vector_input_buffer_stream(const T *at) : at_(at) {}

  block_vector<T, Elems> pop() {
    block_vector<T, Elems> out;
    __builtin_memcpy(detail::raw(out), at_, sizeof out);
    at_ += Elems / twin::block;
    twin::core().loads += twin::units(sizeof out, 64);
    return out;
  }
  /// Reads one, then skips `vectors`.
  block_vector<T, Elems> pop_seek(int vectors) {
    const auto out = pop();
    seek(vectors);
    return out;
  }
  block_vector_input_buffer_stream &operator>>(block_vector<T, Elems> &out) {
    out = pop();
    return *this;
  }
  void seek(int vectors) { at_ += vectors * static_cast<int>(Elems / twin::block); }

 private:
  const T *at_;
};

/// Writes block vectors one after the other.
template <typename T, unsigned Elems>
class block_vector_output_buffer_stream {
 public:
  explicit block_vector_output_buffer_stream(T *at) : at_(at) {}

  void push(const block_vector<T, Elems> &v) {
    __builtin_memcpy(at_, detail::raw(v), sizeof v);
    at_ += Elems / twin::block;
    twin::core().stores += twin::units(sizeof v, 64);
  }
  block_vector_output_buffer_stream &operator<<(const block_vector<T, Elems> &v) {
    push(v);
    return *this;
  }
  void seek(int vectors) { at_ += vectors * static_cast<int>(Elems / twin::block); }

 private:
  T *at_;
};

}  // namespace aie

/// acc + a * transpose(b): eight rows of a and eight rows of b, each row one block.
inline aie::accum<accfloat, 64> mac_8x8_8x8T(const aie::block_vector<bfp16ebs8, 64> &a,
                                             const aie::block_vector<bfp16ebs8, 64> &b,
                                             const aie::accum<accfloat, 64> &acc) {
  aie::mmul<8, 8, 8, bfp16ebs8> c(acc);
  c.mac(a, b);
  return c;
}

inline aie::accum<accfloat, 64> mul_8x8_8x8T(const aie::block_vector<bfp16ebs8, 64> &a,
                                             const aie::block_vector<bfp16ebs8, 64> &b) {
  aie::mmul<8, 8, 8, bfp16ebs8> c;
  c.mac(a, b);
  return c;
}
