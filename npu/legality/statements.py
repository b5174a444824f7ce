# SPDX-License-Identifier: Apache-2.0
"""Walks over core bodies, which are trees of statements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from npu.program import Acquire, Blocks, Core, For, If, Loop, Op, Statement, While


def walk(body: Iterable[Statement]) -> Iterator[Statement]:
    """Every statement, each before the ones inside it."""
    for statement in body:
        yield statement
        yield from walk(children(statement))


def children(statement: Statement) -> tuple[Statement, ...]:
    """The statements directly inside a loop or branch; none for the rest."""
    if isinstance(statement, For | While):
        return statement.body
    if isinstance(statement, If):
        return statement.then + statement.otherwise
    if isinstance(statement, Loop):
        return statement.head + statement.body
    if isinstance(statement, Blocks):
        return tuple(inner for block in statement.blocks for inner in block)
    return ()


def constants(core: Core) -> dict[str, int]:
    """Value names that arith.constant defines, with their integer values."""
    found = {}
    for statement in walk(core.body):
        if isinstance(statement, Op) and statement.name == "arith.constant" and statement.result:
            value = dict(statement.attributes).get("value")
            if isinstance(value, int):
                found[statement.result] = int(value)
    return found


def trip_count(loop: For, known: dict[str, int]) -> int | None:
    """Iterations of `loop`, None if a bound is not a constant."""
    bounds = [known.get(name) for name in (loop.lower, loop.upper, loop.step)]
    if any(b is None for b in bounds) or not bounds[2]:
        return None
    lower, upper, step = bounds
    return max(0, -(-(upper - lower) // step))


def acquired_depths(loop: For, core: Core) -> tuple[int, ...]:
    """Pool sizes of the FIFO ends that `loop` acquires directly in its body."""
    return tuple(len(core.ends[s.end].pool) for s in loop.body if isinstance(s, Acquire))
