# SPDX-License-Identifier: Apache-2.0
"""Loops around FIFO operations under static lowering, and program memory."""

from npu.legality import Severity
from npu.legality.program_memory import LEAST, estimate
from npu.program import Acquire, Call, Core, FifoEnd, For, Op, Release, While
from tests.npu.legality.programs import CORE, design, findings, limits

END = FifoEnd("f", "Consume", ("a_core_buff_0", "a_core_buff_1"), None, None)


def number(name, value):
    return Op("arith.constant", name, (), (("value", value),))


def loop(body, upper="n"):
    return For("i", "zero", upper, "one", tuple(body))


FIFO_STEP = (Acquire(0, 1, ("x",)), Call("k", ("x",)), Release(0, 1))
BOUNDS = (number("zero", 0), number("one", 1))


def core(*body, dynamic=False):
    return design(cores=(Core(CORE, (*BOUNDS, *body), ends=(END,), dynamic_fifo_lowering=dynamic),))


def test_constant_bounds_are_legal():
    assert limits(core(number("n", 16), loop(FIFO_STEP))) == []


def test_a_bound_that_is_loaded_needs_dynamic_lowering():
    loaded = Op("memref.load", "n", ("params",))
    assert limits(core(loaded, loop(FIFO_STEP))) == ["constant bounds of a FIFO loop"]
    assert limits(core(loaded, loop(FIFO_STEP), dynamic=True)) == []
    (finding,) = findings(core(loaded, loop(FIFO_STEP)))
    assert "dynamic_objfifo_lowering" in finding.change


def test_a_loop_that_never_runs_cannot_be_unrolled():
    assert limits(core(number("n", 0), loop(FIFO_STEP))) == ["constant bounds of a FIFO loop"]


def test_a_loop_without_fifo_operations_may_have_any_bound():
    assert limits(core(Op("memref.load", "n", ("params",)), loop([Call("k", ())]))) == []


def test_the_endless_loop_and_nested_loops_are_searched():
    loaded = Op("memref.load", "n", ("params",))
    assert limits(core(loaded, While((loop(FIFO_STEP),)))) == ["constant bounds of a FIFO loop"]


# ---- program memory ---------------------------------------------------------------------------


def calls(count, kernels=1):
    return [Call(f"k{n % kernels}", ("x",)) for n in range(count)]


def test_code_that_is_over_even_at_the_least_is_refused():
    # 128 of start-up, 16 a kernel, 12 a call: 1353 calls fit into 16384 bytes, 1354 do not.
    bare = Core(CORE, tuple(calls(1353)))
    assert estimate(bare, LEAST) == 16380
    assert limits(design(cores=(bare,)), Severity.ERROR) == []
    over = design(cores=(Core(CORE, tuple(calls(1354))),))
    assert limits(over, Severity.ERROR) == ["program memory"]
    (finding,) = findings(over)
    assert (finding.asked, finding.available, finding.basis) == (16392, 16384, "estimated")


def test_code_that_is_usually_over_is_a_warning_only():
    doubtful = design(cores=(Core(CORE, tuple(calls(16, kernels=8))),))
    assert limits(doubtful, Severity.ERROR) == []
    assert limits(doubtful, Severity.WARNING) == ["program memory"]


def test_eight_calls_of_three_kernels_are_no_finding():
    assert limits(design(cores=(Core(CORE, tuple(calls(8, kernels=3))),))) == []


def test_static_lowering_unrolls_by_the_common_multiple_of_depths_and_dynamic_does_not():
    ends = (END, FifoEnd("g", "Consume", ("p", "q", "r"), None, None))
    body = (*BOUNDS, number("n", 60), loop([Acquire(0, 1, ("x",)), Acquire(1, 1, ("y",)), *calls(100)]))
    static = Core(CORE, body, ends=ends)
    dynamic = Core(CORE, body, ends=ends, dynamic_fifo_lowering=True)
    inside = 100 * 12 + 2 * 4
    assert estimate(static, LEAST) - estimate(dynamic, LEAST) == 5 * inside  # 6 copies instead of 1


def test_a_remainder_is_unrolled_beside_the_loop():
    body = (*BOUNDS, number("n", 7), loop(FIFO_STEP))  # by 2, and one left over
    static = Core(CORE, body, ends=(END,))
    dynamic = Core(CORE, body, ends=(END,), dynamic_fifo_lowering=True)
    assert estimate(static, LEAST) - estimate(dynamic, LEAST) == 2 * (12 + 4 + 4)
