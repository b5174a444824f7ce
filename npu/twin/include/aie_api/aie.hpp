// SPDX-License-Identifier: Apache-2.0
//
// The AIE API of AMD's AIE2P cores, emulated on the host: the header that kernels include.
// ../README.md lists what is supported and how each number is rounded.

#pragma once

#ifndef __AIE_ARCH__
#define __AIE_ARCH__ 21
#endif

#include <cassert>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "accum.hpp"
#include "arithmetic.hpp"
#include "bfloat16.hpp"
#include "bfp16.hpp"
#include "blocks.hpp"
#include "compare.hpp"
#include "convert.hpp"
#include "core_state.hpp"
#include "elementary.hpp"
#include "intrinsics.hpp"
#include "mask.hpp"
#include "memory.hpp"
#include "mmul.hpp"
#include "multiply.hpp"
#include "rounding.hpp"
#include "shuffle.hpp"
#include "types.hpp"
#include "vector.hpp"

// Trace marks of a kernel's begin and end.
TWIN_INLINE void event0() {}
TWIN_INLINE void event1() {}

// Hints of the Chess compiler, which Peano's own headers define as nothing too.
#define chess_prepare_for_pipelining
#define chess_loop_range(...)
#define chess_flatten_loop
#define chess_unroll_loop(...)
#define chess_loop_count(...)
#define chess_storage(...)
#define chess_protect_access

#ifndef restrict
#define restrict __restrict
#endif
