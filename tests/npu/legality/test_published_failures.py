# SPDX-License-Identifier: Apache-2.0
"""`failing_configurations` of the published npu2 timings, built in our vocabulary.

The records give a kernel, a size, a tile and a herd, and no reason. An elementwise design in that style
has, on each core, one shim channel per operand and one transfer per tile of data, as a repeat. So the limits
that refuse them here are inferred: shim channels (3 operands on more than 8 cores: 16 inputs are
all there are), and repeats of a transfer above 256. The two GEMM records (K 720 and 960, wrong results
without a message) come from mlir-air's splitting of loops and have no counterpart in our vocabulary; toolchain.py
says so.
"""

import pytest

from npu.legality import Severity
from npu.program import MemRef, Route, TileId
from tests.npu.legality.programs import design, feed, into, limits, out_of, sequence, transfer

TILE = 1024  # elements, the default of the published elementwise kernels


def elementwise(elements: int, columns: int, rows: int, inputs: int, tile: int = TILE):
    """Every core has its own shim channels: `inputs` in and one out, dealt out over the eight shims."""
    cores = [TileId(col, 2 + row) for col in range(columns) for row in range(rows)]
    sources = [out_of(TileId(n % 8, 0), n // 8) for n in range(len(cores) * inputs)]
    sinks = [into(TileId(n % 8, 0), n // 8) for n in range(len(cores))]
    routes, steps = [], []
    repeats = elements // len(cores) // tile
    for c, core in enumerate(cores):
        for i in range(inputs):
            source = sources[c * inputs + i]
            routes.append(Route(source, (into(core, i),)))
            steps += feed(len(steps), source, transfer(tile // 2, argument=i), repeat_count=repeats - 1)
        routes.append(Route(out_of(core, 0), (sinks[c],)))
        steps += feed(len(steps), sinks[c], transfer(tile // 2, argument=inputs), repeat_count=repeats - 1)
    arguments = tuple(MemRef((elements // 2,), "i32") for _ in range(inputs + 1))
    return design(
        routes=tuple(routes),
        dmas=(),
        buffers=(),
        locks=(),
        cores=(),
        sequences=(sequence(*steps, arguments=arguments),),
    )


def refused_for(device) -> set[str]:
    return set(limits(device, Severity.ERROR))


@pytest.mark.parametrize(("columns", "rows"), [(8, 4), (8, 2), (4, 4)])
def test_adds_on_more_than_eight_cores_have_no_shim_channels(columns, rows):
    assert "DMA channels" in refused_for(elementwise(4194304, columns, rows, inputs=2, tile=16384))


@pytest.mark.parametrize(("columns", "rows", "tile"), [(8, 4, 8192), (4, 4, 8192), (8, 2, 8192)])
def test_silu_mul_on_more_than_eight_cores_has_no_shim_channels(columns, rows, tile):
    assert "DMA channels" in refused_for(elementwise(16777216, columns, rows, inputs=2, tile=tile))


@pytest.mark.parametrize(("columns", "tile"), [(4, 1024), (8, 1024), (8, 2048)])
def test_silu_mul_of_sixteen_million_elements_repeats_too_often(columns, tile):
    assert refused_for(elementwise(16777216, columns, 1, inputs=2, tile=tile)) == {"repeat count"}


def test_what_just_fits_is_legal():
    # Eight cores, 256 executions of 2048 elements.
    assert refused_for(elementwise(8 * 256 * 2048, 8, 1, inputs=2, tile=2048)) == set()
    assert refused_for(elementwise(8 * 257 * 2048, 8, 1, inputs=2, tile=2048)) == {"repeat count"}
