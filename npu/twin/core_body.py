# SPDX-License-Identifier: Apache-2.0
"""Core bodies as Python generators: the statement tree of a `Core` becomes source, compiled once per content.

A body yields where the core waits: lock and FIFO acquires. Everything else is plain Python on integers, and calls of
compiled kernels. `data_dependence` says whether the core's control flow can depend on data; such a design runs in the
event tier only, since a recorded schedule holds for one course of control flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from npu.device import DeviceFault
from npu.program import (
    Acquire,
    Assign,
    Blocks,
    Call,
    Core,
    DeviceProgram,
    For,
    If,
    Jump,
    Loop,
    Op,
    Release,
    Statement,
    UseLock,
    While,
)
from npu.twin.scalar_ops import MEMREF_OPS, expression

STORES = frozenset({"memref.store", "vector.store", "vector.transfer_write"})
LOADS = frozenset({"memref.load", "vector.load", "vector.transfer_read"})
SPIN_LIMIT = 1_000_000  # rounds of an endless loop without one wait


def walk(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Every statement of the tree, outer before inner."""
    for statement in statements:
        yield statement
        if isinstance(statement, For | While):
            yield from walk(statement.body)
        elif isinstance(statement, If):
            yield from walk(statement.then)
            yield from walk(statement.otherwise)
        elif isinstance(statement, Loop):
            yield from walk(statement.head)
            yield from walk(statement.body)
        elif isinstance(statement, Blocks):
            for block in statement.blocks:
                yield from walk(block)


# ---- data dependence ---------------------------------------------------------------------------


def parameter_buffers(device: DeviceProgram) -> frozenset[str]:
    """Buffers that only `rtp_write` (or their initial value) fills: no DMA writes there, no core stores, no kernel sees them."""
    touched: set[str] = set()
    for program in device.dmas:
        touched.update(bd.buffer for bd in program.bds if bd.buffer is not None)
    for sequence in device.sequences:
        for instruction in sequence.instructions:
            for bd in getattr(instruction, "bds", ()):
                if bd.buffer is not None:
                    touched.add(bd.buffer)
    for core in device.cores:
        for end in core.ends:
            touched.update(end.pool)
        for statement in walk(core.body):
            if isinstance(statement, Call):
                touched.update(statement.operands)
            elif isinstance(statement, Assign):
                touched.update(statement.values)
            elif isinstance(statement, Op) and statement.name in STORES:
                touched.add(statement.operands[1])
            elif isinstance(statement, Op) and (statement.name in MEMREF_OPS or statement.name == "memref.copy"):
                touched.update(statement.operands)
    return frozenset(buffer.name for buffer in device.buffers if buffer.name not in touched)


def data_dependence(core: Core, parameters: frozenset[str]) -> str | None:
    """Why a schedule of this core depends on data, or None."""
    tainted, loads = _tainted(core, parameters)
    for statement in walk(core.body):
        if isinstance(statement, Op):
            if statement.name in STORES and any(v in tainted for v in (statement.operands[0], *statement.operands[2:])):
                return f"{core.tile} stores a value computed from data ({statement.where or statement.name})"
            if statement.name == "memref.copy" or statement.name.endswith("_cascade"):
                return f"{core.tile} moves data itself ({statement.where or statement.name})"
        elif isinstance(statement, For):
            if any(v in tainted for v in (statement.lower, statement.upper, statement.step)):
                return f"a loop bound of {core.tile} depends on data ({_origin(statement, loads)})"
        elif isinstance(statement, If | Loop):
            if statement.condition in tainted:
                return f"a branch of {core.tile} depends on data (condition '{statement.condition}')"
        elif isinstance(statement, Call) and any(v in tainted for v in statement.operands):
            return f"{core.tile} passes a value computed from data to {statement.function}"
    return None


def _tainted(core: Core, parameters: frozenset[str]) -> tuple[set[str], dict[str, str]]:
    """Values computed from data, and where those come from that are loaded. Repeated until nothing is added: loops and
    blocks pass values back."""
    tainted: set[str] = set()
    loads: dict[str, str] = {}
    before = -1
    while len(tainted) != before:
        before = len(tainted)
        for statement in walk(core.body):
            if isinstance(statement, Assign):
                pairs = zip(statement.targets, statement.values, strict=True)
                tainted.update(target for target, value in pairs if value in tainted)
            elif isinstance(statement, Op) and statement.result is not None:
                loaded = statement.name in LOADS and statement.operands[0] not in parameters
                if loaded:
                    loads[statement.result] = f"loaded from '{statement.operands[0]}'"
                if loaded or statement.name == "aie.get_cascade" or any(v in tainted for v in statement.operands):
                    tainted.add(statement.result)
    return tainted, loads


def _origin(loop: For, loads: dict[str, str]) -> str:
    names = [v for v in (loop.lower, loop.upper, loop.step) if v in loads]
    return f"'{names[0]}' {loads[names[0]]}" if names else f"loop over '{loop.variable}'"


# ---- code generation ---------------------------------------------------------------------------


class _Writer:
    """Emits the generator's source. Names of the text become numbered locals; what is bound outside is in `globals`."""

    def __init__(self, core: Core, buffers: frozenset[str], waits: bool) -> None:
        self.core = core
        self.buffers = buffers
        self.waits = waits  # whether a kernel call may have to wait
        self.lines: list[str] = []
        self.names: dict[str, str] = {}
        self.depth = 1
        self.graphs: list[str] = []  # the block variables of the open `Blocks`
        self.graph_count = 0

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def define(self, name: str) -> str:
        return self.names.setdefault(name, f"v{len(self.names)}")

    def use(self, name: str) -> str:
        if name in self.names:
            return self.names[name]
        if name in self.buffers:
            return f"buffers[{name!r}]"
        raise DeviceFault(f"{self.core.tile} uses '{name}', which is neither a value defined before nor a buffer")

    def source(self) -> str:
        for index, end in enumerate(self.core.ends):
            self.emit(f"position{index} = held{index} = 0")
            self.emit(f"pool{index} = {tuple(end.pool)!r}")
            self.emit(f"pool{index} = [buffers[name] for name in pool{index}]")
            self.emit(f"take{index} = locks[{end.acquire_lock!r}]" if end.acquire_lock else f"take{index} = None")
            self.emit(f"give{index} = locks[{end.release_lock!r}]" if end.release_lock else f"give{index} = None")
        self.emit("spin = 0")
        self.block(self.core.body)
        self.emit("return")
        self.emit("yield")
        return (
            "def body(process, engine, buffers, locks, call, store, load, core=None):\n" + "\n".join(self.lines) + "\n"
        )

    def block(self, statements: Iterable[Statement]) -> None:
        empty = True
        for statement in statements:
            _EMIT[type(statement)](self, statement)
            empty = False
        if empty:
            self.emit("pass")

    def wait_for(self, lock: str, need: str, equal: bool = False) -> None:
        self.emit(f"while {lock}.value {'!=' if equal else '<'} {need}:")
        self.emit(f"    process.wait = ('lock', {lock}, {need})")
        self.emit(f"    {lock}.waiters.append(process)")
        self.emit("    spin = 0")
        self.emit("    yield")
        self.emit("process.wait = None")
        if not equal:  # an equal acquire waits for the value and leaves it (AMD, AIE-ML v2 intrinsics, locks)
            self.emit(f"{lock}.take({need})")

    def acquire(self, s: Acquire) -> None:
        e = s.end
        end = self.core.ends[e]
        if s.count > len(end.pool):
            raise DeviceFault(
                f"{self.core.tile} acquires {s.count} elements of '{end.fifo}' ({end.port}), whose pool has {len(end.pool)}"
            )
        self.emit(f"if held{e} < {s.count}:")
        self.depth += 1
        if end.acquire_lock:
            self.emit(f"need = {s.count} - held{e}")
            self.wait_for(f"take{e}", "need")
        self.emit(f"held{e} = {s.count}")
        self.depth -= 1
        for i, result in enumerate(s.results):
            self.emit(f"{self.define(result)} = pool{e}[(position{e} + {i}) % {len(end.pool)}]")

    def release(self, s: Release) -> None:
        e = s.end
        end = self.core.ends[e]
        self.emit(f"gone = {s.count}")
        self.emit(f"if held{e} < {s.count}:")
        self.emit(f"    engine.over_release(process, {end.fifo!r}, {s.count}, held{e})")
        # What goes on (a design of others) is the lock alone: the next acquire takes the element that is next.
        self.emit(f"    gone = held{e}")
        self.emit(f"held{e} -= gone")
        self.emit(f"position{e} = (position{e} + gone) % {len(end.pool)}")
        if end.release_lock:
            self.emit(f"give{e}.release({s.count}, process.name)")

    def use_lock(self, s: UseLock) -> None:
        self.emit(f"lock = locks[{s.use.lock!r}]")
        if s.acquire:
            self.wait_for("lock", str(s.use.value), s.use.equal)
        else:
            self.emit(f"lock.release({s.use.value}, process.name)")

    def op(self, s: Op) -> None:
        operands = [self.use(v) for v in s.operands]
        where = s.where or s.name
        if s.name == "memref.store":
            self.emit(f"store({operands[1]}, ({''.join(o + ', ' for o in operands[2:])}), {operands[0]}, {where!r})")
            return
        if s.name in ("vector.store", "vector.transfer_write"):
            places = "".join(o + ", " for o in operands[2:])
            self.emit(f"core.store_vector({operands[1]}, ({places}), {operands[0]}, {where!r})")
            return
        if s.name == "memref.copy":
            self.emit(f"core.copy({operands[0]}, {operands[1]}, {where!r})")
            return
        if s.name.endswith("_cascade"):
            self.cascade(s, operands)
            return
        if s.name in ("vector.load", "vector.transfer_read"):
            count = len(operands) - (s.name == "vector.transfer_read")  # the padding value comes last
            places = "".join(o + ", " for o in operands[1:count])
            shape = dict(s.attributes)["shape"]
            text = f"core.load_vector({operands[0]}, ({places}), {shape!r}, {where!r})"
        elif s.name == "memref.load":
            text = f"load({operands[0]}, ({''.join(o + ', ' for o in operands[1:])}), {where!r})"
        else:
            text = expression(s, operands)
        if s.result is not None:
            self.emit(f"{self.define(s.result)} = {text}")

    def cascade(self, s: Op, operands: list[str]) -> None:
        """Put waits for room, get for a value."""
        put = s.name == "aie.put_cascade"
        self.emit(f"link = core.cascade({put}, {s.where!r})")
        self.emit(f"while {'link.full' if put else 'not link.values'}:")
        self.emit(f"    process.wait = ('cascade', link, {put})")
        self.emit("    link.waiters.append(process)")
        self.emit("    spin = 0")
        self.emit("    yield")
        self.emit("process.wait = None")
        if put:
            self.emit(f"link.put({operands[0]})")
        else:
            self.emit(f"{self.define(s.result or '')} = link.get()")

    def assign(self, s: Assign) -> None:
        values = [self.use(v) for v in s.values]
        if s.targets:
            self.emit(f"{', '.join(self.define(t) for t in s.targets)} = {', '.join(values)}")

    def call(self, s: Call) -> None:
        operands = "".join(self.use(v) + ", " for v in s.operands)
        if self.waits:
            self.emit(f"yield from core.waiting_call(process, {s.function!r}, ({operands}))")
            self.emit("spin = 0")
        else:
            self.emit(f"call({s.function!r}, ({operands}))")

    def loop(self, s: For) -> None:
        if not s.body:  # it changes nothing; one without end is a While
            return
        bounds = ", ".join(self.use(v) for v in (s.lower, s.upper, s.step))
        self.emit(f"for {self.define(s.variable)} in steps({bounds}):")
        self.depth += 1
        self.spin()
        self.block(s.body)
        self.depth -= 1

    def forever(self, s: While) -> None:
        if not s.body:  # the core rests here for good
            self.emit("return")
            return
        self.emit("while True:")
        self.depth += 1
        self.spin()
        self.block(s.body)
        self.depth -= 1

    def while_loop(self, s: Loop) -> None:
        self.emit("while True:")
        self.depth += 1
        self.spin()
        self.block(s.head)
        self.emit(f"if not {self.use(s.condition)}: break")
        self.block(s.body)
        self.depth -= 1

    def blocks(self, s: Blocks) -> None:
        """Block dispatch: a variable names the block to run next."""
        variable = f"block{self.graph_count}"
        self.graph_count += 1
        self.graphs.append(variable)
        self.emit(f"{variable} = 0")
        self.emit("while True:")
        self.depth += 1
        self.spin()
        for block in s.blocks:  # a block may use values of one that stands behind it in the text
            for inner in walk(block):
                self.define_results(inner)
        for number, block in enumerate(s.blocks):
            self.emit(f"{'el' if number else ''}if {variable} == {number}:")
            self.depth += 1
            self.block(block)
            self.emit("break")
            self.depth -= 1
        self.depth -= 1
        self.graphs.pop()

    def define_results(self, s: Statement) -> None:
        if isinstance(s, Op) and s.result is not None:
            self.define(s.result)
        elif isinstance(s, Assign):
            for target in s.targets:
                self.define(target)

    def jump(self, s: Jump) -> None:
        self.emit(f"{self.graphs[-1]} = {s.block}")
        self.emit("continue")

    def spin(self) -> None:
        self.emit("spin += 1")
        self.emit(f"if spin > {SPIN_LIMIT}:")
        self.emit("    engine.spinning(process)")

    def branch(self, s: If) -> None:
        self.emit(f"if {self.use(s.condition)}:")
        self.depth += 1
        self.block(s.then)
        self.depth -= 1
        if s.otherwise:
            self.emit("else:")
            self.depth += 1
            self.block(s.otherwise)
            self.depth -= 1


_EMIT: dict[type, Callable[[_Writer, Statement], None]] = {
    Acquire: _Writer.acquire,
    Release: _Writer.release,
    UseLock: _Writer.use_lock,
    Op: _Writer.op,
    Call: _Writer.call,
    For: _Writer.loop,
    While: _Writer.forever,
    If: _Writer.branch,
    Assign: _Writer.assign,
    Loop: _Writer.while_loop,
    Blocks: _Writer.blocks,
    Jump: _Writer.jump,
}


def body_source(core: Core, buffers: frozenset[str], waits: bool = False) -> str:
    """Python source of the core's generator function `body`."""
    return _Writer(core, buffers, waits).source()


@lru_cache(maxsize=1024)
def compile_body(core: Core, buffers: frozenset[str], waits: bool = False) -> Callable[..., Iterator[None]]:
    """The generator function of a core; equal cores are compiled once. waits: a cascade meets it, so that calls may wait."""
    from npu.twin.scalar_ops import NAMESPACE

    scope = dict(NAMESPACE)
    exec(compile(body_source(core, buffers, waits), f"<core {core.tile}>", "exec"), scope)
    return scope["body"]
