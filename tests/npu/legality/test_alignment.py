# SPDX-License-Identifier: Apache-2.0
"""Vector alignment of what kernels get: a warning, since the text does not say what a kernel loads."""

from npu.legality import Severity
from npu.program import Buffer, Call, Core, MemRef
from tests.npu.legality.programs import CORE, design, findings, limits


def passed(address, nbytes=256, target="npu2"):
    buffer = Buffer("x", CORE, MemRef((nbytes,), "i8"), address=address)
    cores = (Core(CORE, (Call("k", ("x",)),)),)
    return design(target=target, buffers=(buffer,), cores=cores, dmas=(), routes=(), locks=(), sequences=())


def test_a_kernel_gets_vectors_at_multiples_of_64():
    assert limits(passed(1024)) == []
    assert limits(passed(1024 + 32)) == ["vector alignment"]
    assert [v.severity for v in findings(passed(1024 + 32))] == [Severity.WARNING]


def test_npu1_loads_256_bits():
    assert limits(passed(1024 + 32, target="npu1")) == []
    assert limits(passed(1024 + 16, target="npu1")) == ["vector alignment"]


def test_a_buffer_smaller_than_a_vector_is_not_judged():
    assert limits(passed(1024 + 32, nbytes=32)) == []
