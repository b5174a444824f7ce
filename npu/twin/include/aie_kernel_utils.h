// SPDX-License-Identifier: Apache-2.0
//
// Loop hints of AIE kernels. Peano (__AIECC__) gets the pragmas that it knows, every other compiler gets nothing.
// Self-contained: a kernel may carry this file with it to a machine with the AIE tools.

#ifndef AIE_KERNEL_UTILS_H
#define AIE_KERNEL_UTILS_H

#ifdef __AIECC__
#define AIE_PRAGMA_TEXT(text) _Pragma(#text)
#define AIE_PRAGMA(text) AIE_PRAGMA_TEXT(text)
#else
#define AIE_PRAGMA(text)
#endif

#define AIE_LOOP_UNROLL(count) AIE_PRAGMA(clang loop unroll_count(count))
#define AIE_LOOP_UNROLL_FULL AIE_PRAGMA(clang loop unroll(full))
#define AIE_LOOP_NO_UNROLL AIE_PRAGMA(clang loop unroll(disable))
#define AIE_LOOP_MIN_ITERATION_COUNT(count) AIE_PRAGMA(clang loop min_iteration_count(count))
#define AIE_LOOP_MAX_ITERATION_COUNT(count) AIE_PRAGMA(clang loop max_iteration_count(count))
#define AIE_LOOP_RANGE(least, ...) AIE_LOOP_MIN_ITERATION_COUNT(least) __VA_OPT__(AIE_LOOP_MAX_ITERATION_COUNT(__VA_ARGS__))
#define AIE_TRY_INITIATION_INTERVAL(cycles) AIE_PRAGMA(clang loop pipeline_initiation_interval(cycles))
#define AIE_PREPARE_FOR_POSTPIPELINING AIE_PRAGMA(clang loop pipeline(disable))

// Only Chess has these.
#define AIE_PREPARE_FOR_PIPELINING
#define AIE_NO_PREPARE_FOR_PIPELINING
#define AIE_MODULO_SCHEDULING_BUDGET_RATIO(ratio)
#define AIE_KEEP_SW_LOOP
#define AIE_PEEL_PIPELINED_LOOP(count)
#define AIE_KEEP_FREE_FOR_PIPELINING(what)
#define AIE_ALLOCATE(what)
#define AIE_NO_HW_LOOP
#define AIE_LOOP_FLATTEN

#endif
