# SPDX-License-Identifier: Apache-2.0
"""Access patterns of buffer descriptors: sizes, strides, iteration, granularity, padding, bounds.

Rules for all (register map; verifyStridesWraps, NpuWriteBdOp and DMABDOp verifiers; _XAieMl_DmaSetMultiDim):

- everything is a multiple of 4 bytes: offset, length, innermost size, strides of the outer dimensions;
- elements below 32 bits (and above) need stride 1 in the innermost dimension: a DMA cannot pick half words;
- at most 3 data dimensions, 4 in a memtile; sizes up to the wrap field (255 in a core, 1023 elsewhere; the
  innermost counted in words), strides up to the step field (2^13, 2^17, 2^20 words);
- no stride 0, except as a pure repeat in the iteration dimension of a shim or memtile task;
- the iteration has up to 64 steps with a stride. With stride 0 it lowers to the repeat count of the queue, and
  mlir-aie's check lets 65 pass; larger repeats are a repeat_count of the task;
- the transfer fits the length field and lies within its buffer; dims of a task multiply to its length.

Exempt: a linear task ([.., 1, 1, n] with strides [.., 0, 0, 1]) has no pattern, so n may exceed the wrap.
In the shim the size of the third dimension is implied by the length and not limited. In aie.mem and
aie.memtile_dma every size given is checked against the wrap, and mlir-aie refuses sizes above 512.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from npu.array import SOURCES, WORD_BYTES, Array, PatternLimits
from npu.legality.violation import Basis, Severity, Violation
from npu.program import BufferDescriptor, Channel, ConfigureTask, DeviceProgram, Dim, Direction, Program, TileKind

_REPEAT_PASS = 65  # verifyStridesWraps compares size - 1 with 64


@dataclass(frozen=True)
class _Site:
    """A descriptor in its place."""

    bd: BufferDescriptor
    channel: Channel
    task: bool  # configured by the instruction stream, not by aie.mem or aie.memtile_dma
    where: str
    limits: PatternLimits
    array: Array

    def violation(self, limit: str, asked: int | str, available: int | str, source: str, change: str, **more: object):
        return Violation(limit, asked, available, self.where, SOURCES.get(source, source), change, **more)  # type: ignore[arg-type]

    def words(self, elements: int) -> float:
        return elements * self.bd.element_bytes / WORD_BYTES

    @property
    def innermost_first(self) -> tuple[Dim, ...]:
        return tuple(reversed(self.bd.dims))


def check(program: Program, device: DeviceProgram, array: Array) -> Iterator[Violation]:
    """Every descriptor of the device, in-array and configured by sequences."""
    buffers = {b.name: b for b in device.buffers}
    for site in _sites(device, array):
        bd = site.bd
        yield from _granularity(site, buffers[bd.buffer].address or 0 if bd.buffer in buffers else 0)
        yield from _length(site)
        yield from _dims(site)
        yield from _iteration(site)
        yield from _padding(site)
        if bd.buffer in buffers:
            yield from _bounds(site, buffers[bd.buffer].type.elements)


def extent(bd: BufferDescriptor, executions: int = 1) -> int:
    """Elements from the descriptor's offset to one past the last that `executions` of it touch."""
    reach = sum((dim.size - 1) * dim.stride for dim in bd.dims) + 1 if bd.dims else bd.length
    steps = min(executions, bd.iteration.size) - 1
    return reach + max(0, steps) * bd.iteration.stride


def _is_contiguous(dims: tuple[Dim, ...]) -> bool:
    """Whether the pattern takes its elements in a row."""
    expected = 1
    for dim in reversed(dims):
        if dim.size > 1 and dim.stride != expected:
            return False
        expected *= dim.size
    return True


def is_linear(bd: BufferDescriptor) -> bool:
    """Whether the compiler lowers the descriptor without a pattern."""
    if not bd.dims:
        return True
    *outer, inner = bd.dims
    return inner.stride == 1 and all(dim.size == 1 and dim.stride == 0 for dim in outer)


def _sites(device: DeviceProgram, array: Array) -> Iterator[_Site]:
    for dma in device.dmas:
        limits = array.limits(dma.channel.tile).pattern
        for n, bd in enumerate(dma.bds):
            where = bd.where or f"@{device.name}, {dma.channel}, BD {n}"
            yield _Site(bd, dma.channel, False, where, limits, array)
    for sequence in device.sequences:
        for task in sequence.instructions:
            if isinstance(task, ConfigureTask):
                limits = array.limits(task.channel.tile).pattern
                for n, bd in enumerate(task.bds):
                    place = f"@{device.name}, @{sequence.name}, task {task.task} on {task.channel}, BD {n}"
                    yield _Site(bd, task.channel, True, bd.where or task.where or place, limits, array)


def _granularity(site: _Site, base: int) -> Iterator[Violation]:
    bd, size = site.bd, site.bd.element_bytes
    parts = [("offset", base + bd.offset * size), ("length", bd.length * size)]
    # In the array an innermost size below a word is written as 0, no wrap at all: elements in a row stay in a row.
    in_a_row = not site.task and bd.dims and bd.dims[-1].size * size < WORD_BYTES and _is_contiguous(bd.dims)
    if bd.dims and not in_a_row:
        parts.append(("innermost size", bd.dims[-1].size * size))
        # The compiler checks tasks in every dimension, and encodes in-array strides only where they are used.
        parts += [("stride", d.stride * size) for d in bd.dims[:-1] if site.task or d.size > 1]
    if bd.iteration.size > 1:
        parts.append(("iteration stride", bd.iteration.stride * size))
    for name, nbytes in parts:
        if nbytes % WORD_BYTES:
            yield site.violation(
                "4-byte granularity",
                f"{name} of {nbytes} bytes",
                "multiples of 4 bytes",
                "word",
                f"pad the data so that the {name} is a multiple of 4 bytes",
                detail=f"elements of {size} bytes",
            )
    if size != WORD_BYTES and bd.dims and bd.dims[-1].stride != 1 and bd.dims[-1].size > 1:
        yield site.violation(
            "innermost stride of elements that are not 32-bit",
            bd.dims[-1].stride,
            1,
            "word",
            "transpose in the kernel, or store the data in the order in which it is read",
            detail=f"elements of {size} bytes",
        )


def _length(site: _Site) -> Iterator[Violation]:
    bd = site.bd
    if bd.length < 1:
        yield site.violation("length", bd.length, "at least one word", "word", "leave out a transfer of nothing")
    elif site.words(bd.length) > site.limits.length_max_words:
        yield site.violation(
            "length of one transfer",
            int(site.words(bd.length)),
            site.limits.length_max_words,
            "length_max_words",
            "split it over a chain of BDs",
            unit="words",
        )
    if site.task and bd.dims and not bd.padding and prod(d.size for d in bd.dims) != bd.length:
        yield site.violation(
            "dims that multiply to the length",
            f"{' x '.join(str(d.size) for d in bd.dims)} = {prod(d.size for d in bd.dims)}",
            f"{bd.length} elements",
            "pass aie-dma-tasks-to-npu",
            "make length the product of the data dimensions, without the iteration",
        )


def _dims(site: _Site) -> Iterator[Violation]:
    dims, limits = site.innermost_first, site.limits
    # A task's fourth dimension is its iteration, on a memtile too: three carry data.
    allowed = min(limits.dims, 3) if site.task else limits.dims
    if len(dims) > allowed:
        yield site.violation(
            "dimensions", len(dims), allowed, "dims", "merge dimensions, or use the iteration or a chain of BDs"
        )
    for n, dim in enumerate(dims):
        if dim.size < 1:
            yield site.violation(f"size of dimension {n}", dim.size, "at least 1", "wrap_max", "remove the dimension")
            continue
        yield from _size(site, n, dim)
        yield from _stride(site, n, dim)


def _size(site: _Site, n: int, dim: Dim) -> Iterator[Violation]:
    limits = site.limits
    size = site.words(dim.size) if n == 0 else dim.size
    wrapped = n < limits.wrap_dims or not site.task
    if wrapped and size > limits.wrap_max and not (site.task and is_linear(site.bd)):
        yield site.violation(
            f"size of dimension {n}",
            int(size),
            limits.wrap_max,
            "wrap_max",
            "split the dimension in two, one inside the other",
            unit="words" if n == 0 else "steps",
            detail=f"{dim.size} elements of {site.bd.element_bytes} bytes" if n == 0 else "",
        )
    elif not site.task and dim.size > site.array.verifier_size_max:
        yield site.violation(
            f"size of dimension {n} in aie.mem or aie.memtile_dma",
            dim.size,
            site.array.verifier_size_max,
            "verifier_size_max",
            "split the dimension in two, one inside the other",
            unit="elements",
        )


def _stride(site: _Site, n: int, dim: Dim) -> Iterator[Violation]:
    if dim.size == 1 and site.task:
        return  # never applied, and not encoded
    if dim.stride < 1:
        yield site.violation(
            f"stride of dimension {n}",
            dim.stride,
            "at least 1",
            "step_max",
            "repeat through the iteration dimension (stride 0, repeat_count) of a task, or repeat_count of a FIFO",
            detail="a BD repeats only as a whole, in its outermost, the iteration dimension",
        )
    elif site.words(dim.stride) > site.limits.step_max:
        yield site.violation(
            f"stride of dimension {n}",
            int(site.words(dim.stride)),
            site.limits.step_max,
            "step_max",
            "split the matrix so that its rows are closer, or store it in tiles",
            unit="words",
        )


def _iteration(site: _Site) -> Iterator[Violation]:
    iteration, limits = site.bd.iteration, site.limits
    if iteration.size < 1 or iteration.stride < 0:
        yield site.violation(
            "iteration",
            f"size {iteration.size}, stride {iteration.stride}",
            "size at least 1, stride at least 0",
            "iteration_max",
            "run forwards from the lowest address",
        )
        return
    allowed = limits.iteration_max if iteration.stride else _REPEAT_PASS
    if iteration.size > allowed:
        yield site.violation(
            "size of the iteration dimension",
            iteration.size,
            allowed,
            "iteration_max",
            "split the task, or use a further data dimension"
            if iteration.stride
            else "drop the dimension and set repeat_count on the task (up to 255)",
            unit="steps",
        )
    if iteration.size > 1 and site.words(iteration.stride) > limits.step_max:
        yield site.violation(
            "stride of the iteration dimension",
            int(site.words(iteration.stride)),
            limits.step_max,
            "step_max",
            "split the task, each part with its own offset",
            unit="words",
        )


def _padding(site: _Site) -> Iterator[Violation]:
    bd = site.bd
    if not any(before or after for before, after in bd.padding):
        return
    if site.channel.tile.kind is not TileKind.MEMTILE or site.channel.direction is not Direction.MM2S:
        yield site.violation(
            "zero padding",
            f"padding on {site.channel}",
            "memtile MM2S only",
            "padding_max",
            "pad on the way out of a memtile",
        )
        return
    if len(bd.padding) > len(bd.dims):
        yield site.violation(
            "padded dimensions",
            len(bd.padding),
            len(bd.dims),
            "verifier: DMABDOp::verify",
            "give a size and a stride for each padded dimension",
        )
    for n, pads in enumerate(reversed(bd.padding)):
        allowed = site.limits.padding_max[n] if n < len(site.limits.padding_max) else 0
        for pad in pads:
            words = site.words(pad) if n == 0 else pad
            if words > allowed or words % 1:
                yield site.violation(
                    f"padding of dimension {n}",
                    f"{words:g}",
                    f"whole numbers up to {allowed}",
                    "padding_max",
                    "pad less per transfer, or keep the zeros in the buffer",
                    unit="words" if n == 0 else "steps",
                )


def _bounds(site: _Site, elements: int) -> Iterator[Violation]:
    executions = 1 << 30 if site.bd.iteration.size > 1 else 1
    end = site.bd.offset + extent(site.bd, executions)
    if site.bd.offset < 0 or end > elements:
        yield site.violation(
            "bounds of the buffer",
            f"elements {site.bd.offset}..{end - 1}",
            f"{elements} elements of {site.bd.buffer}",
            "verifier: DMABDOp::verify for patterns; a linear overrun writes the next buffer in silence",
            "shorten the transfer or enlarge the buffer",
            basis=Basis.STATED,
            severity=Severity.ERROR,
        )
