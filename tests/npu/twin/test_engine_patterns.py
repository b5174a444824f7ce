# SPDX-License-Identifier: Apache-2.0
"""Access patterns and the segment lists made of them, against plain loops over the dimensions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu.program import BufferDescriptor, Dim
from npu.twin.pattern import pattern_of
from npu.twin.schedule import _segment_table

MEMORY = 8192


def stream_order(bd: BufferDescriptor) -> list[int]:
    """Byte offset in memory of each byte of one execution, -1 for padding."""
    dims = bd.dims or (Dim(bd.length, 1),)
    bands = bd.padding or ((0, 0),) * len(dims)
    order: list[int] = []
    for index in product(*(range(-low, dim.size + high) for dim, (low, high) in zip(dims, bands, strict=True))):
        inside = all(0 <= i < dim.size for i, dim in zip(index, dims, strict=True))
        element = sum(i * dim.stride for i, dim in zip(index, dims, strict=True)) * bd.element_bytes
        order += [element + byte if inside else -1 for byte in range(bd.element_bytes)]
    return order


@st.composite
def descriptors(draw, padded: bool = False, injective: bool = False) -> BufferDescriptor:
    """One to four dimensions of 2- or 4-byte elements; the innermost holds whole words."""
    element = draw(st.sampled_from([2, 4]))
    inner = draw(st.integers(1, 4)) * (4 // element)
    dims = [Dim(inner, 1)]
    reach = inner
    for _ in range(draw(st.integers(0, 3))):
        size = draw(st.integers(1, 4))
        step = draw(st.integers(reach if injective else 0, reach + 6)) * (4 // element)
        dims.insert(0, Dim(size, step))
        reach = max(reach, (size - 1) * step + reach)
    padding: tuple[tuple[int, int], ...] = ()
    if padded:
        words = 4 // element
        padding = tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in dims[:-1])
        padding += ((draw(st.integers(0, 2)) * words, draw(st.integers(0, 2)) * words),)
    length = int(np.prod([d.size + sum(p) for d, p in zip(dims, padding or ((0, 0),) * len(dims), strict=True)]))
    return BufferDescriptor(element, 0, length, buffer="b", dims=tuple(dims), padding=padding)


def memory(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 255, MEMORY).astype(np.uint8)


@settings(max_examples=200, deadline=None)
@given(descriptors(padded=True), st.integers(0, 5))
def test_gather_reads_in_the_order_of_the_dimensions(bd, words) -> None:
    data = memory()
    offset = 4 * words
    expected = [0 if at < 0 else data[offset + at] for at in stream_order(bd)]
    pattern = pattern_of(bd)
    assert pattern.nbytes == len(expected)
    assert pattern.gather(data, offset).tolist() == expected
    assert [pattern.address_of(i) for i in range(0, pattern.nbytes, 4)] == stream_order(bd)[::4]


@settings(max_examples=200, deadline=None)
@given(descriptors(injective=True), st.integers(0, 5), st.data())
def test_scatter_writes_the_same_bytes_whole_or_in_parts(bd, words, data) -> None:
    pattern = pattern_of(bd)
    stream = memory(1)[: pattern.nbytes]
    expected = memory()
    for at, byte in zip(stream_order(bd), stream, strict=True):
        expected[4 * words + at] = byte
    whole, parts = memory(), memory()
    pattern.scatter(whole, 4 * words, stream)
    cut = 4 * data.draw(st.integers(0, pattern.nbytes // 4))
    for start, end in ((0, cut), (cut, pattern.nbytes)):
        if end > start:
            pattern.scatter_part(parts, 4 * words, start, stream[start:end])
    assert whole.tolist() == expected.tolist()
    assert parts.tolist() == expected.tolist()


@settings(max_examples=300, deadline=None)
@given(descriptors(padded=True), descriptors(injective=True), st.data())
def test_segments_copy_what_gather_and_scatter_would(source, dest, data) -> None:
    a, b = pattern_of(source), pattern_of(dest)
    count = 4 * data.draw(st.integers(1, min(a.nbytes, b.nbytes) // 4))
    first = 4 * data.draw(st.integers(0, (a.nbytes - count) // 4))
    into = 4 * data.draw(st.integers(0, (b.nbytes - count) // 4))
    origin, expected, got = memory(), memory(1), memory(1)
    b.scatter_part(expected, 0, into, a.gather(origin, 0)[first : first + count])
    for src, dst, length in _segment_table(a, first, b, into, count):
        got[dst : dst + length] = 0 if src < 0 else origin[src : src + length]
    assert got.tolist() == expected.tolist()


def test_neighbouring_runs_are_one_segment() -> None:
    rows = BufferDescriptor(2, 0, 64 * 64, buffer="b", dims=(Dim(64, 576), Dim(64, 1)))
    line = BufferDescriptor(2, 0, 64 * 64, buffer="b")
    table = _segment_table(pattern_of(rows), 0, pattern_of(line), 0, 8192)
    assert table[:, 2].tolist() == [128] * 64
    assert len(_segment_table(pattern_of(line), 0, pattern_of(line), 0, 8192)) == 1


@pytest.mark.parametrize(("size", "stride"), [(8, 4), (4, 8)])
def test_dimensions_that_continue_each_other_are_merged(size, stride) -> None:
    bd = BufferDescriptor(4, 0, 32, buffer="b", dims=(Dim(size, stride), Dim(32 // size, 1)))
    assert pattern_of(bd).linear
