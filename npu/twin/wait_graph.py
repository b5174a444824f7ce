# SPDX-License-Identifier: Apache-2.0
"""Words for an array at rest: who waits for what and who could give it, or what a finished dispatch left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu.twin.packets import PacketSink
from npu.twin.stream import Process

if TYPE_CHECKING:
    from npu.twin.dma import Task
    from npu.twin.engine import Engine
    from npu.twin.sequence import SequenceRun


def _waits_for(engine: Engine, process: Process) -> tuple[str, tuple[str, ...]]:
    """(what the process waits for, names of the processes that could give it)."""
    wait = process.wait
    if wait is None:
        return "can go on", ()
    kind = wait[0]
    if kind == "lock":
        lock, need = wait[1], wait[2]
        givers = tuple(dict.fromkeys(lock.releasers))
        by = ", ".join(givers) or "nobody in this device"
        return f"waits for lock '{lock.name}' of {lock.tile} >= {need}, it is {lock.value}; given by {by}", givers
    if kind == "send":
        stream = wait[1]
        slow = stream.slow()
        rest = ", ".join(str(s.channel) for s in slow)
        text = f"waits to send {stream.pushed - stream.flow} bytes into '{stream.name}'; not taken by {rest}"
        return text, tuple(str(s.channel) for s in slow)
    if kind == "cascade":
        link, put = wait[1], wait[2]
        other = str(link.dest if put else link.source)
        return f"waits {'for room in' if put else 'for a value of'} the cascade {link.source} -> {link.dest}", (other,)
    if kind == "receive" and isinstance(wait[1], PacketSink):
        sink = wait[1]
        names = tuple(str(stream.source) for stream in sink.sources)
        have = sink.cursor - sink.start
        text = f"waits for {sink.end - sink.cursor} more bytes of packets (has {have}) from {', '.join(names)}"
        return text, names
    if kind == "receive":
        sink = wait[1]
        stream = sink.stream
        others = [s for s in stream.sinks if s is not sink and s.end < sink.end and s.end < stream.pushed]
        have = sink.cursor - sink.start
        text = f"waits for {sink.end - sink.cursor} more bytes of '{stream.name}' (has {have}) from {stream.source}"
        if others:
            names = tuple(str(s.channel) for s in others)
            return f"{text}, held back by {', '.join(names)}", names
        return text, (str(stream.source),)
    if kind == "task":
        return "has no task in its queue", (engine.sequence_run.process.name,) if engine.sequence_run else ()
    if kind == "token":
        return f"waits for the token of {wait[2]}", (str(wait[1].channel),)
    return "has ended", ()


def _cycle(edges: dict[str, tuple[str, ...]], start: str) -> list[str]:
    """A cycle of the wait graph that can be reached from `start`; empty if there is none."""
    path: list[str] = []
    done: set[str] = set()

    def visit(name: str) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done or name not in edges:
            return []
        path.append(name)
        for following in edges[name]:
            found = visit(following)
            if found:
                return found
        path.pop()
        done.add(name)
        return []

    return visit(start)


def explain_deadlock(engine: Engine, run: SequenceRun) -> str:
    """The wait graph of everything the sequence waits for, directly or not, then what else waits."""
    processes = {p.name: p for p in [run.process, *engine.processes]}
    texts: dict[str, str] = {}
    edges: dict[str, tuple[str, ...]] = {}
    for name, process in processes.items():
        texts[name], edges[name] = _waits_for(engine, process)
    order: list[str] = []
    frontier = [run.process.name]
    while frontier:
        name = frontier.pop(0)
        if name in order or name not in texts:
            continue
        order.append(name)
        frontier.extend(edges[name])
    cycle = _cycle(edges, run.process.name)
    lines = [
        f"deadlock in @{engine.device.name}:{run.sequence.name} after {engine.transfers} transfers and "
        f"{sum(engine.calls.values())} kernel calls; the sequence waits and nothing can go on:"
    ]
    lines += [f"  {name} {texts[name]}" for name in order]
    others = [
        n for n in processes if n not in order and processes[n].wait is not None and processes[n].wait[0] != "ended"
    ]
    lines += [f"  also: {name} {texts[name]}" for name in others[:24]]
    if len(others) > 24:
        lines.append(f"  also: {len(others) - 24} more")
    if cycle:
        lines.append(f"  cycle: {' -> '.join(cycle)}")
    else:
        stuck = [name for name in order if not edges[name]]
        lines.append(f"  no cycle: it ends at {', '.join(stuck) or 'nothing'}")
    return "\n".join(lines)


def unfinished_business(engine: Engine, run: SequenceRun) -> str | None:
    """What a finished sequence left behind, in words; None if nothing. A design of others (`engine.foreign`) may leave
    tokens, bytes in streams and elements in FIFOs behind: they go to `engine.notes`, and only host memory that is
    still to be written is a fault."""
    problems: list[str] = []
    untidy: list[str] = []
    for channel in engine.task_channels.values():
        for task in dict.fromkeys(channel.order):
            if task.in_flight:
                text, _ = _waits_for(engine, channel.process)
                writes_host = channel.channel.direction == "S2MM" and channel.channel.tile.row == 0
                kind = problems if writes_host else untidy
                kind.append(f"{task} has not ended: its channel {text}")
        for task in channel.tokens:
            left = f"the token of {task} was never awaited"
            (problems if engine.foreign and _nothing_after(engine, task) else untidy).append(left + _host_output(task))
        problems += _never_awaited(engine, channel.order)
    for stream in engine.streams.values():
        left = stream.leftover()
        if left:
            untidy.append(f"{left} bytes are left in stream '{stream.name}' from {stream.source}")
    for sink in engine.sinks.values():
        if sink.armed and sink.start < sink.cursor < sink.end:
            untidy.append(
                f"{sink.channel} has {sink.cursor - sink.start} of the {sink.end - sink.start} bytes of its BD from "
                f"'{sink.stream.name}'"
            )
    for lock in engine.locks.values():
        if lock.value > lock.init and lock.acquirers:
            takers = ", ".join(dict.fromkeys(lock.acquirers))
            untidy.append(
                f"lock '{lock.name}' of {lock.tile} is {lock.value}, it began at {lock.init}: data that {takers} never took"
            )
    if engine.foreign:
        engine.notes += [f"@{engine.device.name}:{run.sequence.name}: {text}" for text in untidy]
    else:
        problems += untidy
    if not problems:
        return None
    head = f"@{engine.device.name}:{run.sequence.name} ended and left behind:"
    return "\n  ".join([head, *problems])


def _nothing_after(engine: Engine, task: Task) -> bool:
    """Whether the task writes host memory and no wait at all came after its start: the host then reads what it likes."""
    run = engine.sequence_run
    channel = task.spec.channel
    return channel.direction == "S2MM" and channel.tile.row == 0 and run is not None and not run.waited_since(task)


def _host_output(task: Task) -> str:
    arguments = sorted({bd.argument for bd in task.spec.bds if bd.argument is not None})
    named = ", ".join(map(str, arguments))
    return (
        f": the host may read argument {named} before it is written"
        if arguments and task.spec.channel.tile.row == 0
        else ""
    )


def _never_awaited(engine: Engine, order: list[Task]) -> list[str]:
    """S2MM tasks that neither they themselves, nor a later task of the channel, nor a task that took a lock which they
    released was awaited for."""
    last = max((i for i, task in enumerate(order) if task.awaited), default=-1)
    return [
        f"{task} writes memory and was never awaited, nor any later task of its channel"
        for task in dict.fromkeys(order[last + 1 :])
        if task.spec.channel.direction == "S2MM"
        and task.spec.channel.tile.row == 0
        and not task.spec.issue_token
        and not _awaited_by_lock(engine, task)
    ]


def _awaited_by_lock(engine: Engine, task: Task) -> bool:
    """Whether every start of the task was awaited by way of a shim lock that begins at 0: the task's last BD releases it
    (after its bytes are written), and tasks that begin by acquiring it were awaited as often as it was given."""
    release = task.spec.bds[-1].release
    if release is None or engine.locks[release.lock].init != 0:
        return False
    tasks = {other for channel in engine.task_channels.values() for other in channel.order}
    given = sum(t.started for t in tasks if (r := t.spec.bds[-1].release) is not None and r.lock == release.lock)
    waited = sum(t.awaited for t in tasks if (a := t.spec.bds[0].acquire) is not None and a.lock == release.lock)
    return waited >= given
