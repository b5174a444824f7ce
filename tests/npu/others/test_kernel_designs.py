# SPDX-License-Identifier: Apache-2.0
"""Designs of the structure that public examples emit, through the builder, with kernels written as public ones are.

Expected values are NumPy's in float32 on bf16 inputs. The error is sum|y - r| / sum|r|, and may be 2^-8 per bf16 rounding
that the kernel makes: floor rounding loses half a unit in the last place on average.
"""

from __future__ import annotations

import numpy as np
import pytest

from npu.mlir.build import ModuleBuilder
from npu.program import MemRef
from tests.npu.others.bench import BF16, bf16, run

SIZE, ROWS = 256, 4
ROUNDING = 2.0**-8


def rowwise(kernel: str, inputs: list[tuple[int, str]], output: tuple[int, str], *, scalar: int | None = SIZE) -> str:
    """One core: for each row, acquire every input's row and the output's, call, release."""
    m = ModuleBuilder()
    d = m.device("main")
    shim, core = d.tile(0, 0), d.tile(0, 2)
    tiles = [shim, d.tile(1, 0)]
    fifos = [
        d.fifo(f"in{i}", producer=tiles[i // 2], consumers=[core], depth=2, element=MemRef((n,), kind))
        for i, (n, kind) in enumerate(inputs)
    ]
    out = d.fifo("out", producer=core, consumers=[shim], depth=2, element=MemRef((output[0],), output[1]))
    types = [f.element for f in fifos] + [out.element] + (["i32"] if scalar is not None else [])
    function = d.kernel(kernel, types, "foreign.o")
    with d.core(core) as c, c.forever():
        held = [c.acquire(f, "Consume", 1)[0] for f in fifos]
        made = c.acquire(out, "Produce", 1)[0]
        c.call(function, *held, made, *([scalar] if scalar is not None else []))
        for f in fifos:
            c.release(f, "Consume", 1)
        c.release(out, "Produce", 1)
    arguments = [MemRef((ROWS * n,), kind) for n, kind in (*inputs, output)]
    with d.sequence("run", arguments) as s:
        tasks = [s.task(f, [s.bd(i, 0, length=arguments[i].elements)]) for i, f in enumerate(fifos)]
        last = s.task(out, [s.bd(len(inputs), 0, length=arguments[-1].elements)], token=True)
        for task in (*tasks, last):
            s.start(task)
        s.wait(last)
        for task in tasks:
            s.free(task)
    return m.text()


def rows(seed: int, scale: float = 2.0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((ROWS, SIZE)) * scale
    return bf16(values)


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).sum() / np.abs(wanted).sum())


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def layer_norm(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)


def rope(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    even, odd, cosine, sine = x[:, ::2], x[:, 1::2], table[:, ::2], table[:, 1::2]
    out = np.empty_like(x)
    out[:, ::2], out[:, 1::2] = even * cosine - odd * sine, even * sine + odd * cosine
    return out


ROWWISE = {
    "add_bf16": (2, lambda a, b: a + b, 1),
    "mul_bf16": (2, lambda a, b: a * b, 1),
    "relu_bf16": (1, lambda a: np.maximum(a, 0), 0),
    "silu_bf16": (1, lambda a: a * sigmoid(a), 3),
    "gelu_bf16": (1, gelu, 5),
    "softmax_bf16": (1, softmax, 4),
    "rms_norm_bf16": (1, lambda a: a / np.sqrt((a**2).mean(axis=1, keepdims=True) + 1e-5), 2),
    "layer_norm_bf16": (1, layer_norm, 3),
    "rope_bf16": (2, rope, 3),
}


@pytest.mark.parametrize("kernel", ROWWISE)
def test_a_row_by_row_design_computes_what_its_name_says(kernel: str, tmp_path) -> None:
    count, expected, roundings = ROWWISE[kernel]
    text = rowwise(kernel, [(SIZE, "bf16")] * count, (SIZE, "bf16"))
    inputs = [rows(seed, 1.0 if kernel == "rope_bf16" and seed else 2.0) for seed in range(count)]
    (found,), outcome = run(text, *inputs, cache_=tmp_path)
    wanted = expected(*inputs)
    assert error(found.reshape(ROWS, SIZE), wanted) <= roundings * ROUNDING
    assert outcome.cores[0].calls == ROWS
    assert outcome.ddr_read_bytes == count * ROWS * SIZE * 2


def test_swiglu_gates_one_half_by_the_other(tmp_path) -> None:
    x, gate, up = rows(0), rows(1, 1.0), rows(2, 1.0)
    text = rowwise("swiglu_bf16", [(SIZE, "bf16"), (2 * SIZE, "bf16")], (SIZE, "bf16"))
    (found,), _ = run(text, x, np.concatenate([gate, up], axis=1), cache_=tmp_path)
    wanted = (x * gate) * sigmoid(x * gate) * (x * up)
    assert error(found.reshape(ROWS, SIZE), wanted) <= 6 * ROUNDING


def test_a_wrong_kernel_is_seen_by_the_same_tolerance() -> None:
    x = rows(0)
    wanted = gelu(x)
    assert error(x * sigmoid(x), wanted) > 2 * 5 * ROUNDING


def test_passthrough_moves_bytes(tmp_path) -> None:
    values = np.random.default_rng(3).integers(0, 256, ROWS * SIZE).astype(np.uint8)
    (found,), _ = run(rowwise("pass_bytes", [(SIZE, "ui8")], (SIZE, "ui8")), values, cache_=tmp_path)
    assert (found == values).all()


def test_reductions(tmp_path) -> None:
    integers = np.random.default_rng(4).integers(-1000, 1000, (ROWS, SIZE)).astype(np.int32)
    (sums,), _ = run(rowwise("reduce_add_i32", [(SIZE, "i32")], (1, "i32")), integers, cache_=tmp_path)
    assert (sums == integers.sum(axis=1)).all()
    floats = rows(5)
    text = rowwise("reduce_max_bf16", [(SIZE, "bf16")], (2, "bf16"))
    (most,), _ = run(text, floats, cache_=tmp_path)
    assert (most[::2] == floats.max(axis=1)).all()


def matmul(kind: str, out: str, zero: str, kernel: str, m: int, k: int, n: int, tiles: tuple[int, int, int]) -> str:
    """Single core: A and B come through a memtile, which hands them on in 8x8 blocks; C goes back row by row."""
    tm, tk, tn = tiles
    b = ModuleBuilder()
    d = b.device("main")
    shim, mem, core = d.tile(0, 0), d.tile(0, 1), d.tile(0, 2)
    ta, tb, tc = MemRef((tm * tk,), kind), MemRef((tk * tn,), kind), MemRef((tm * tn,), out)
    a3 = d.fifo("a_l3", producer=shim, consumers=[mem], depth=2, element=ta)
    a1 = d.fifo("a_l1", producer=mem, consumers=[core], depth=2, element=ta,
                to_stream=[(tm // 8, 8 * tk), (tk // 8, 8), (8, tk), (8, 1)])  # fmt: skip
    b3 = d.fifo("b_l3", producer=shim, consumers=[mem], depth=2, element=tb)
    b1 = d.fifo("b_l1", producer=mem, consumers=[core], depth=2, element=tb,
                to_stream=[(tk // 8, 8 * tn), (tn // 8, 8), (8, tn), (8, 1)])  # fmt: skip
    c1 = d.fifo("c_l1", producer=core, consumers=[mem], depth=2, element=tc)
    c3 = d.fifo("c_l3", producer=mem, consumers=[shim], depth=2, element=tc,
                to_stream=[(tm // 8, 8 * tn), (8, 8), (tn // 8, 64), (8, 1)])  # fmt: skip
    d.link([a3], [a1])
    d.link([b3], [b1])
    d.link([c1], [c3])
    clear = d.kernel(zero, [tc], "foreign.o")
    multiply = d.kernel(kernel, [ta, tb, tc], "foreign.o")
    with d.core(core) as c, c.forever():
        made = c.acquire(c1, "Produce", 1)[0]
        c.call(clear, made)
        with c.loop(k // tk):
            c.call(multiply, c.acquire(a1, "Consume", 1)[0], c.acquire(b1, "Consume", 1)[0], made)
            c.release(a1, "Consume", 1)
            c.release(b1, "Consume", 1)
        c.release(c1, "Produce", 1)
    args = [MemRef((m * k,), kind), MemRef((k * n,), kind), MemRef((m * n,), out)]
    with d.sequence("run", args) as s:
        for row in range(m // tm):
            whole_a = s.bd(0, row * tm * k, (n // tn, k // tk, tm, tk), (0, tk, k, 1))
            whole_b = s.bd(1, 0, (n // tn, k // tk, tk, tn), (tn, tk * n, n, 1))
            whole_c = s.bd(2, row * tm * n, (n // tn, tm, tn), (tn, n, 1))
            tasks = [s.task(a3, [whole_a], repeat=n // tn - 1), s.task(b3, [whole_b], repeat=n // tn - 1)]
            last = s.task(c3, [whole_c], token=True)
            for task in (*tasks, last):
                s.start(task)
            s.wait(last)
            for task in tasks:
                s.free(task)
    return b.text()


TILES = (("DIM_M", "16"), ("DIM_K", "32"), ("DIM_N", "16"))
M, K, N = 32, 96, 48


@pytest.mark.parametrize("emulated", [False, True])
def test_matrix_multiply_in_bf16_and_through_bfp16(emulated: bool, tmp_path) -> None:
    rng = np.random.default_rng(6)
    a, b = bf16(rng.standard_normal((M, K))), bf16(rng.standard_normal((K, N)))
    mode = (("AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16", None),) if emulated else ()
    text = matmul("bf16", "f32", "zero_f32", "matmul_bf16", M, K, N, (16, 32, 16))
    (found,), outcome = run(text, a, b, cache_=tmp_path, defines=(*TILES, *mode))
    wanted = a.astype(np.float64) @ b
    worst = np.abs(found.reshape(M, N) - wanted).max() / np.abs(wanted).max()
    assert (1e-4 < worst < 3e-2) if emulated else worst < 1e-5  # 8-bit mantissas, cut; exact products in fp32
    assert outcome.cores[0].counters["matrix_macs"] == M * K * N


def test_matrix_multiply_in_int8_is_exact(tmp_path) -> None:
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((M, K), (K, N)))
    text = matmul("i8", "i32", "zero_i32", "matmul_i8", M, K, N, (16, 32, 16))
    (found,), _ = run(text, a, b, cache_=tmp_path, defines=TILES)
    assert (found.reshape(M, N) == a.astype(np.int64) @ b).all()


def test_matrix_times_vector(tmp_path) -> None:
    m, k = 16, 32
    text = rowwise("matvec_bf16", [(m * k, "bf16"), (k, "bf16")], (m, "f32"), scalar=None)
    rng = np.random.default_rng(8)
    a, b = bf16(rng.standard_normal((ROWS, m, k))), bf16(rng.standard_normal((ROWS, k)))
    # The core clears its sums before it adds.
    call = next(line for line in text.splitlines() if "func.call @matvec_bf16" in line)
    made = call.split("(")[1].split(")")[0].split(",")[2].strip()
    text = text.replace(call, f"func.call @zero_vector({made}) : (memref<16xf32>) -> ()\n{call}")
    declared = next(line for line in text.splitlines() if "func.func private @matvec_bf16" in line)
    text = text.replace(
        declared, f'{declared}\nfunc.func private @zero_vector(memref<16xf32>) attributes {{link_with = "foreign.o"}}'
    )
    (found,), _ = run(text, a, b, cache_=tmp_path, defines=TILES)
    assert np.allclose(found.reshape(ROWS, m), np.einsum("rmk,rk->rm", a, b), rtol=1e-5, atol=1e-5)


def test_transpose_by_dma_alone(tmp_path) -> None:
    b = ModuleBuilder()
    d = b.device("main")
    shim, mem = d.tile(0, 0), d.tile(0, 1)
    element = MemRef((32 * 16,), "i32")
    first = d.fifo("first", producer=shim, consumers=[mem], depth=2, element=element)
    second = d.fifo("second", producer=mem, consumers=[shim], depth=2, element=element, to_stream=[(16, 1), (32, 16)])
    d.link([first], [second])
    with d.sequence("run", [element, element]) as s:
        push, pull = s.task(first, [s.bd(0, 0, length=512)]), s.task(second, [s.bd(1, 0, length=512)], token=True)
        s.start(push)
        s.start(pull)
        s.wait(pull)
        s.free(push)
    values = np.arange(512, dtype=np.int32).reshape(32, 16)
    (found,), _ = run(b.text(), values, cache_=tmp_path)
    assert (found.reshape(16, 32) == values.T).all()


def test_bf16_is_the_ml_dtypes_one() -> None:
    assert bf16(np.float32(1.00390625)) == np.float32(1.00390625).astype(BF16)
