# SPDX-License-Identifier: Apache-2.0
"""scripts/simulate.py as a user meets it: what it prints, writes and exits with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.npu.others.bench import FOREIGN
from tests.npu.others.test_explicit_designs import ADD, X, design

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
CALL = """%n = arith.constant 16 : i32
func.call @add_one(%in, %out, %n) : (memref<16xi32>, memref<16xi32>, i32) -> ()"""
DECLARE = "func.func private @add_one(memref<16xi32>, memref<16xi32>, i32)\n"


@pytest.fixture
def simulate(tmp_path):
    """Run the script on a text; returns the finished process."""
    np.save(tmp_path / "a.npy", X)

    def call(text: str, *options: str) -> subprocess.CompletedProcess:
        (tmp_path / "design.mlir").write_text(text)
        environment = os.environ | {"LLM_TO_NPU_CACHE": str(tmp_path / "cache")}
        command = [sys.executable, str(ROOT / "scripts" / "simulate.py"), "design.mlir", *options]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return call


def test_values_resources_and_counts(simulate, tmp_path) -> None:
    # The function names no object file, as before 2026-03-13 the core did: the one source that exports it is taken.
    text = design(CALL, DECLARE).replace("aie.end\n}\naie.runtime", 'aie.end\n} {link_with = "k.o"}\naie.runtime')
    done = simulate(text, "--kernel", str(FOREIGN), "-D", "DIM_M=16", "--input", "a.npy", "--output", "b.npy")
    assert done.returncode == 0, done.stderr
    assert (np.load(tmp_path / "b.npy") == X + 1).all()
    assert "core(0,2): 1152 of 65536 bytes, 4 of 16 locks, 2 of 16 BDs" in done.stdout
    assert "DDR: 64 bytes read, 64 bytes written" in done.stdout
    assert "core(0,2): 1 kernel calls" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("next: ")


def test_a_deadlock_prints_the_wait_graph_and_exits_1(simulate) -> None:
    done = simulate(design(ADD).replace("aie.use_lock(%out_full, Release, 1)\naie.end", "aie.end"),
                    "--input", "a.npy", "--output", "b.npy")  # fmt: skip
    assert done.returncode == 1
    assert "waits for lock 'out_full'" in done.stderr
    assert "core(0,2) MM2S 0" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--output", "b.npy"), "no input for argument 0"),
        (("--input", "missing.npy", "--output", "b.npy"), "missing.npy"),
        (("--input", "a.npy", "--output", "b.npy", "--sequence", "other"), "no sequence @other"),
        (("--input", "a.npy", "--input", "a.npy"), "at most 1"),
        (("--object", "x.o"), "--object x.o"),
    ],
)
def test_bad_input_is_refused_and_exits_2(simulate, options: tuple[str, ...], message: str) -> None:
    done = simulate(design(ADD), *options)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_kernel_that_no_source_exports_is_named(simulate) -> None:
    text = design(CALL.replace("add_one", "add_two"), DECLARE.replace("add_one", "add_two"))
    done = simulate(text, "--kernel", str(FOREIGN), "--input", "a.npy", "--output", "b.npy")
    assert done.returncode == 2
    assert "@add_two is called and no given source exports it" in done.stderr


def test_what_the_array_would_not_take_exits_1_with_values(simulate, tmp_path) -> None:
    text = design(ADD).replace(
        "%in_free = aie.lock(%t, 0)", "%big = aie.buffer(%t) : memref<20000xi32>\n%in_free = aie.lock(%t, 0)"
    )
    done = simulate(text, "--input", "a.npy", "--output", "b.npy")
    assert done.returncode == 1
    assert "Not legal: data memory" in done.stdout
    assert (np.load(tmp_path / "b.npy") == X + 1).all()


def test_bf16_goes_in_and_out_as_float32() -> None:
    from npu.program import MemRef
    from pipeline.simulation import from_argument, to_argument

    declared = MemRef((2,), "bf16")
    raw, how = to_argument(np.array([1.0, 1.00390625], np.float32), declared, "test")  # the second is a tie: to even
    assert raw.tolist() == [0x3F80, 0x3F80]
    assert "rounded" in how
    assert from_argument(raw.view(np.uint8), declared, None, None).tolist() == [1.0, 1.0]


ONE_TILE = """
module {
  aie.device(npu2_1col) {
    %s = aie.tile(0, 0)
    %t = aie.tile(0, 2)
    aie.objectfifo @i(%s, {%t}, 2 : i32) : !aie.objectfifo<memref<4xi32>>
    aie.objectfifo @o(%t, {%s}, 2 : i32) : !aie.objectfifo<memref<4xi32>>
    aie.objectfifo.link [@i] -> [@o]([] [])
    aie.runtime_sequence(%arg0: memref<4xi32>, %arg1: memref<4xi32>) {
      aiex.npu.dma_memcpy_nd(%arg1[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1]) {id = 0 : i64, metadata = @o} : memref<4xi32>
      aiex.npu.dma_memcpy_nd(%arg0[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1]) {id = 1 : i64, metadata = @i} : memref<4xi32>
      aiex.npu.dma_wait {symbol = @o}
    }
  }
}
"""


def test_an_argument_that_is_declared_as_one_tile_is_taken_as_what_is_transferred(simulate, tmp_path) -> None:
    done = simulate(ONE_TILE, "--input", "a.npy", "--output", "b.npy")
    assert done.returncode == 0, done.stderr
    assert "argument 0: declared as memref<4xi32> of 16 bytes, and transfers reach 64" in done.stdout
    assert (np.load(tmp_path / "b.npy") == X).all()
    np.save(tmp_path / "short.npy", X[:4])
    done = simulate(ONE_TILE, "--input", "short.npy", "--output", "b.npy")
    assert done.returncode == 2
    assert "64 bytes" in done.stderr


def test_an_element_written_in_part_is_a_fault_unless_it_is_allowed(simulate, tmp_path) -> None:
    half = design(ADD).replace("%c16 step", "%c8 step")
    text = half.replace(
        "%c16 = arith.constant 16 : index", "%c16 = arith.constant 16 : index\n%c8 = arith.constant 8 : index"
    )
    arguments = ("--input", "a.npy", "--output", "b.npy")
    refused = simulate(text, *arguments)
    assert refused.returncode == 1
    assert "reads byte 32 of buffer 'out'" in refused.stderr and "--allow-unwritten" in refused.stderr
    assert not (tmp_path / "b.npy").exists()
    done = simulate(text, *arguments, "--allow-unwritten")
    assert done.returncode == 0, done.stderr
    assert "reads byte 32 of buffer 'out'" in done.stdout and "8 of its 16 words were never written" in done.stdout
    assert (np.load(tmp_path / "b.npy")[:8] == X[:8] + 1).all()
