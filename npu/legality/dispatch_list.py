# SPDX-License-Identifier: Apache-2.0
"""An entry sequence with its runs unfolded: what the instruction processor sees, in order.

mlir-aie inlines every aiex.run into its caller and never resets BD ids or queues in between, so live
BDs, queues and argument offsets must be counted over this list and not per sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from npu.program import ConfigureTask, DeviceProgram, Instruction, Program, Run, Sequence


def from_memcpy(task: ConfigureTask) -> bool:
    """Whether the loader made `task` from a dma_memcpy_nd, whose BD ids and repeats follow rules of their own."""
    return "dma_memcpy_nd" in task.where


@dataclass(frozen=True)
class Argument:
    """Where an argument of a run lies: index of the entry's argument, and the slice's start and end in bytes."""

    index: int
    start: int
    end: int


@dataclass(frozen=True)
class Step:
    """One instruction. `run` numbers the runs of the entry from 1; 0 is the entry's own text."""

    run: int
    device: DeviceProgram
    sequence: Sequence
    arguments: tuple[Argument | None, ...]
    instruction: Instruction

    @property
    def where(self) -> str:
        """Place of the instruction, for messages."""
        return f"@{self.device.name} @{self.sequence.name}" + (f", run {self.run}" if self.run else "")


@dataclass(frozen=True)
class RunBegin:
    """A run starts; `reconfigure` tells whether the array is configured, which resets its DMAs."""

    run: int
    device: DeviceProgram
    sequence: Sequence
    arguments: tuple[Argument | None, ...]
    reconfigure: bool

    @property
    def where(self) -> str:
        return f"run {self.run} of @{self.device.name} @{self.sequence.name}"


@dataclass(frozen=True)
class RunEnd:
    """The instructions of a run are over."""

    run: int


def unfold(
    program: Program,
    device: DeviceProgram,
    sequence: Sequence,
    *,
    enter: Callable[[RunBegin], bool] = lambda begin: True,
) -> Iterator[Step | RunBegin | RunEnd]:
    """Instructions of `sequence` of `device`, with those of its runs in place.

    Runs of what does not exist, or of a sequence that is running, are left out: `tasks` reports them.

    Args:
        enter: whether a run's instructions are wanted. A dispatch list has hundreds of runs of a few sequences, most of
            which leave everything as they found it; a rule that knows that skips them.
    """
    own = tuple(Argument(n, 0, ref.nbytes) for n, ref in enumerate(sequence.arguments))
    counter = iter(range(1, 1 << 62))
    yield from _unfold(program, device, sequence, own, 0, counter, (), enter)
    yield RunEnd(0)


def runs(program: Program, device: DeviceProgram, sequence: Sequence) -> Iterator[RunBegin]:
    """The runs of `sequence`, those inside of runs included."""
    for step in unfold(program, device, sequence, enter=lambda begin: not is_leaf(begin.sequence)):
        if isinstance(step, RunBegin):
            yield step


def is_leaf(sequence: Sequence) -> bool:
    """Whether `sequence` runs nothing itself."""
    return not any(isinstance(instruction, Run) for instruction in sequence.instructions)


def callee(program: Program, run: Run) -> tuple[DeviceProgram, Sequence] | None:
    """Device and sequence that `run` names, None if there are none such."""
    try:
        device = program.device(run.device)
        return device, device.sequence(run.sequence)
    except KeyError:
        return None


def _unfold(
    program: Program,
    device: DeviceProgram,
    sequence: Sequence,
    arguments: tuple[Argument | None, ...],
    run: int,
    counter: Iterator[int],
    running: tuple[tuple[str, str], ...],
    enter: Callable[[RunBegin], bool],
) -> Iterator[Step | RunBegin | RunEnd]:
    for instruction in sequence.instructions:
        if not isinstance(instruction, Run):
            yield Step(run, device, sequence, arguments, instruction)
            continue
        called = callee(program, instruction)
        name = (instruction.device, instruction.sequence)
        if called is None or name in running:
            continue
        slices = tuple(_slice(arguments, s.argument, s.offset_bytes, s.type.nbytes) for s in instruction.arguments)
        number = next(counter)
        begin = RunBegin(number, *called, slices, instruction.reconfigure)
        yield begin
        if enter(begin):
            yield from _unfold(program, *called, slices, number, counter, (*running, name), enter)
        yield RunEnd(number)


def _slice(arguments: tuple[Argument | None, ...], index: int, offset: int, nbytes: int) -> Argument | None:
    outer = arguments[index] if index < len(arguments) else None
    return outer and Argument(outer.index, outer.start + offset, outer.start + offset + nbytes)
