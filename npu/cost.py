# SPDX-License-Identifier: Apache-2.0
"""First cost estimate: the time of a dispatch and of an entry, from a Program and what the twin counted, and from nothing else.

    dispatch = launch + instruction stream + fill + max(compute, channel, column, DDR)
    entry    = launch + sum over its runs of (switch + instruction stream + fill + max(...))

compute   the busiest core: vector operations, loads, stores over their issue rates, whichever is most, and a cost a call
channel   the busiest DMA channel's bytes over one channel's rate; column: a shim's bytes in one direction over its rate
DDR       all bytes that cross the shims
fill      the first element's way in and the last one's way out, when nothing overlaps
switch    a floor and the design's configuration bytes over a rate, where the design differs from the one before
Every term carries a Rate, and a Rate its source; a term without one cannot be made. A Prediction is never a measurement: its
provenance is "model". How far it is from published timings is computed by `npu.cost_error`, and stated with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from npu import cost_rates as rates
from npu.cost_rates import Rate
from npu.program import (
    AwaitTask,
    BufferDescriptor,
    ConfigureTask,
    DeviceProgram,
    Direction,
    DmaProgram,
    FreeTask,
    Instruction,
    Program,
    Route,
    Run,
    Sequence,
    StartTask,
    TileKind,
)
from npu.twin.log import DesignTotals
from refusal import Refusal

PROVENANCE = "model"
OVERLAPPED = ("compute", "channel", "column", "DDR", "controller")
BD_WORDS = 8  # registers of a shim buffer descriptor
CONFIGURATION_WORDS_A_BD = 8
CONFIGURATION_WORDS_A_ROUTE = 6  # stream switch ports on a way of a few hops
CONFIGURATION_WORDS_A_LOCK = 1


@dataclass(frozen=True)
class Term:
    """Seconds of one cost: `amount` (in `unit`) at `rate`."""

    name: str
    seconds: float
    amount: float
    unit: str
    rate: Rate

    def __post_init__(self) -> None:
        if not isinstance(self.rate, Rate):
            raise Refusal(f"term {self.name!r} without a rate", expected="a rate with a source", where="cost model",
                          next_step="add the rate to npu/cost_rates.py")  # fmt: skip

    def line(self) -> str:
        """The term for people, with its source."""
        return f"{self.name:<20}{1e6 * self.seconds:>10.2f} us  {self.amount:,.0f} {self.unit} at {self.rate}"


@dataclass(frozen=True)
class CoreWork:
    """What one core did in one dispatch, as the emulation headers count it."""

    core: tuple[int, int]
    calls: float
    vector_ops: float
    loads: float
    stores: float

    @property
    def cycles(self) -> float:
        """Issue-limited cycles; the slots of a bundle run side by side."""
        issue = max(
            self.vector_ops / rates.VECTOR_ISSUE.value,
            self.loads / rates.LOAD_ISSUE.value,
            self.stores / rates.STORE_ISSUE.value,
        )
        return issue + self.calls * rates.CALL_CYCLES.value


@dataclass(frozen=True)
class Work:
    """What one dispatch of a design does, reduced to what can bind.

    channel, column: (name, bytes) of the busiest. ddr_bytes: read and written together.
    """

    core: CoreWork
    channel: tuple[str, float]
    column: tuple[str, float]
    ddr_bytes: float

    @staticmethod
    def of(totals: DesignTotals) -> Work:
        """The mean dispatch of a design's totals.

        Raises:
            Refusal: no dispatch was counted.
        """
        runs = totals.dispatches
        if not runs or not totals.channel_bytes:
            raise Refusal(f"{runs} dispatches of @{totals.design}", expected="at least one on the twin", where="cost model",
                          next_step="run the design on the twin first (scripts/run.py)")  # fmt: skip
        counts = {name: totals.counter(name) for name in ("vector_ops", "loads", "stores")}
        cores = [
            CoreWork(place, calls / runs, *(counts[name].get(place, 0) / runs for name in counts))
            for place, calls in totals.kernel_calls.items()
        ]
        busiest = max(cores, key=lambda core: core.cycles, default=CoreWork((0, 0), 0, 0, 0, 0))
        channel = max(totals.channel_bytes.items(), key=lambda item: item[1])
        ddr = (totals.ddr_read_bytes + totals.ddr_write_bytes) / runs
        return Work(busiest, (channel[0], channel[1] / runs), _busiest_column(totals, runs), ddr)


def _busiest_column(totals: DesignTotals, runs: int) -> tuple[str, float]:
    """The shim and direction that moves most: both channels of a direction share the column's way to memory."""
    sums: dict[str, float] = {}
    for channel, moved in totals.channel_bytes.items():
        name = channel.rsplit(" ", 1)[0]
        if name.startswith("shim"):
            sums[name] = sums.get(name, 0.0) + moved / runs
    return max(sums.items(), key=lambda item: item[1], default=("shim", 0.0))


@dataclass(frozen=True)
class Prediction:
    """Predicted time of one dispatch of a design. `serial` terms add up; of the `overlapped` ones the largest counts."""

    design: str
    serial: tuple[Term, ...]
    overlapped: tuple[Term, ...]
    provenance: str = PROVENANCE

    def __post_init__(self) -> None:
        if self.provenance != PROVENANCE:
            raise Refusal(f"provenance {self.provenance!r}", expected=f"{PROVENANCE!r}", where="a prediction")
        if not self.overlapped:
            raise Refusal("no overlapped term", expected=", ".join(OVERLAPPED), where=f"prediction of @{self.design}")

    @property
    def bound(self) -> Term:
        """The term that binds while data flows."""
        return max(self.overlapped, key=lambda term: term.seconds)

    @property
    def binds(self) -> str:
        """What costs most: a resource, or a serial term such as the switch."""
        return max((*self.serial, self.bound), key=lambda term: term.seconds).name

    @property
    def seconds(self) -> float:
        return sum(term.seconds for term in self.serial) + self.bound.seconds

    def lines(self) -> list[str]:
        """Every term with amount, rate and source; the binding one is marked."""
        head = f"@{self.design}: {1e6 * self.seconds:.1f} us predicted ({self.provenance}), {self.binds} binds"
        rows = [f"    {term.line()}" for term in self.serial]
        rows += [f"  {'>' if term is self.bound else '|'} {term.line()}" for term in self.overlapped]
        return [head, *rows]


@dataclass(frozen=True)
class EntryPrediction:
    """Predicted time of an entry sequence: one launch, then its runs. parts: design -> (runs, switches, prediction)."""

    entry: str
    launch: Term
    parts: Mapping[str, tuple[int, int, Prediction]]
    switch: Mapping[str, Term]

    @property
    def seconds(self) -> float:
        runs = sum(count * part.seconds for count, _, part in self.parts.values())
        return self.launch.seconds + runs + self.switch_seconds

    @property
    def switch_seconds(self) -> float:
        return sum(times * self.switch[name].seconds for name, (_, times, _) in self.parts.items())

    @property
    def provenance(self) -> str:
        return PROVENANCE

    @property
    def binds(self) -> str:
        """The resource that costs most over the whole entry."""
        sums = self.by_term()
        return max(sums, key=lambda name: sums[name])

    def by_term(self) -> dict[str, float]:
        """Seconds of the entry by term: the launch, switches, serial terms, and the resource that bound each run."""
        sums = {"launch": self.launch.seconds, "design switch": self.switch_seconds}
        for count, _, part in self.parts.values():
            for term in (*part.serial, part.bound):
                sums[term.name] = sums.get(term.name, 0.0) + count * term.seconds
        return sums

    def lines(self) -> list[str]:
        """The entry for people: by design, dearest first, then by term."""
        text = [f"{self.entry}: {1e3 * self.seconds:.3f} ms predicted ({PROVENANCE}), {self.binds} binds"]
        rows = []
        for name, (count, times, part) in self.parts.items():
            total = count * part.seconds + times * self.switch[name].seconds
            rows.append((total, f"  {1e3 * total:>9.3f} ms  {count:>4} x @{name} ({part.binds} binds)"))
        text += [row for _, row in sorted(rows, reverse=True)]
        shares = sorted(self.by_term().items(), key=lambda item: -item[1])
        return [*text, "  " + ", ".join(f"{name} {1e3 * seconds:.3f} ms" for name, seconds in shares)]


@dataclass(frozen=True)
class Flow:
    """Everything that the prediction of one dispatch starts from.

    instructions: cycles of the instruction stream before its first wait, and after. fill_bytes: one element on every hop.
    """

    work: Work
    instructions: tuple[float, float]
    fill_bytes: float


def flow_of(device: DeviceProgram, sequence: Sequence, work: Work | DesignTotals) -> Flow:
    """What a design's Program and the twin's count say of one dispatch."""
    counted = Work.of(work) if isinstance(work, DesignTotals) else work
    return Flow(counted, instruction_cycles(sequence), fill_bytes(device))


def predict_dispatch(
    device: DeviceProgram, sequence: Sequence, work: Work | DesignTotals, *, launch: Rate | None = None
) -> Prediction:
    """Predicted time of one run of `sequence` on a design that is loaded.

    Args:
        device: the design. work: what the twin counted for it. launch: the cost of the host's launch, where it is its own.
    """
    return predict_flow(device.name, flow_of(device, sequence, work), launch=launch)


def predict_flow(design: str, flow: Flow, *, launch: Rate | None = None) -> Prediction:
    """Predicted time of one dispatch from its Flow."""
    work, hz = flow.work, rates.CLOCK.value
    before, after = flow.instructions
    serial = [] if launch is None else [Term("launch", launch.value, 1, "launch", launch)]
    serial += [Term("instruction stream", before / hz, before, "cycles", rates.WRITE_CYCLES), _fill(flow)]
    overlapped = (
        Term("compute", work.core.cycles / hz, work.core.cycles, "cycles of the busiest core", rates.VECTOR_ISSUE),
        Term(
            "channel", work.channel[1] / rates.CHANNEL.value, work.channel[1], f"B on {work.channel[0]}", rates.CHANNEL
        ),
        Term("column", work.column[1] / rates.COLUMN.value, work.column[1], f"B on {work.column[0]}", rates.COLUMN),
        Term("DDR", work.ddr_bytes / rates.DDR.value, work.ddr_bytes, "B", rates.DDR),
        Term("controller", after / hz, after, "cycles of later instructions", rates.WRITE_CYCLES),
    )
    return Prediction(design, tuple(serial), overlapped)


def predict_entry(
    program: Program,
    entry_device: str,
    entry: str,
    work: Mapping[str, Work | DesignTotals],
    *,
    launch: Rate = rates.DEPLOYED_DISPATCH,
) -> EntryPrediction:
    """Predicted time of an entry sequence that configures and runs designs.

    Args:
        work: design name -> what the twin counted (mean or one dispatch).

    Raises:
        Refusal: a design of the entry was never run on the twin, so nothing is known of it.
    """
    runs = list(_runs(program.device(entry_device).sequence(entry)))
    devices = {run.device: program.device(run.device) for run in runs}
    flows = {
        run.device: flow_of(devices[run.device], devices[run.device].sequence(run.sequence), work[run.device])
        for run in runs
        if run.device in work
    }
    return predict_runs(entry, [(run.device, run.reconfigure) for run in runs], devices, flows, launch=launch)


def predict_runs(
    entry: str,
    runs: Iterable[tuple[str, bool]],
    devices: Mapping[str, DeviceProgram],
    flows: Mapping[str, Flow],
    *,
    launch: Rate = rates.DEPLOYED_DISPATCH,
) -> EntryPrediction:
    """Predicted time of runs in order: (design, whether it is configured anew). A design that comes first is always loaded."""
    parts: dict[str, tuple[int, int, Prediction]] = {}
    before = ""
    for design, configured in runs:
        if design not in flows:
            raise Refusal(f"no counts of @{design}", expected="one dispatch on the twin", where="cost model",
                          next_step="run the design on the twin first (scripts/run.py)")  # fmt: skip
        count, switches, part = parts.get(design) or (0, 0, predict_flow(design, flows[design]))
        parts[design] = (count + 1, switches + (configured or design != before), part)
        before = design
    switch = {name: switch_term(devices[name]) for name in parts}
    return EntryPrediction(entry, Term("launch", launch.value, 1, "launch", launch), parts, switch)


def _runs(sequence: Sequence) -> Iterator[Run]:
    for instruction in sequence.instructions:
        if isinstance(instruction, Run):
            yield instruction


def switch_term(device: DeviceProgram) -> Term:
    """What it costs to load a design inside a running context."""
    amount = configuration_bytes(device)
    return Term(
        "design switch", rates.SWITCH_FLOOR.value + amount / rates.CONFIGURATION.value, amount,
        f"B of configuration, and a floor of {rates.SWITCH_FLOOR}", rates.CONFIGURATION,
    )  # fmt: skip


def configuration_bytes(device: DeviceProgram) -> int:
    """Bytes that a design's configuration writes: core programs at their published mean size, initial data, BDs, routes, locks."""
    words = sum(CONFIGURATION_WORDS_A_BD * len(dma.bds) for dma in device.dmas)
    words += sum(CONFIGURATION_WORDS_A_ROUTE * (1 + len(route.dests)) for route in device.routes)
    words += CONFIGURATION_WORDS_A_LOCK * len(device.locks)
    data = sum(len(buffer.initial) for buffer in device.buffers if buffer.initial)
    return int(len(device.cores) * rates.CORE_CODE_BYTES.value) + 4 * words + data


def instruction_cycles(sequence: Sequence) -> tuple[float, float]:
    """Cycles of the instruction stream (until the first wait, after it). Waiting itself is not counted."""
    sums, waited = [0.0, 0.0], 0
    for instruction in sequence.instructions:
        waited = waited or isinstance(instruction, AwaitTask)
        sums[bool(waited)] += _cycles(instruction)
    return sums[0], sums[1]


def _cycles(instruction: Instruction) -> float:
    write, word = rates.WRITE_CYCLES.value, rates.WORD_CYCLES.value
    if isinstance(instruction, ConfigureTask):
        # One block write and one address patch a BD.
        return len(instruction.bds) * (2 * write + BD_WORDS * word)
    if isinstance(instruction, StartTask | AwaitTask):
        return write
    return 0.0 if isinstance(instruction, FreeTask | Run) else write


def _fill(flow: Flow) -> Term:
    """Until the first core computes, and from the last call until its result is in memory."""
    core = flow.work.core
    call = core.cycles / core.calls if core.calls else 0.0
    seconds = flow.fill_bytes / rates.CHANNEL.value + (rates.COLD_CYCLES.value + call) / rates.CLOCK.value
    return Term(
        "fill", seconds, flow.fill_bytes, f"B, one call of {call:,.0f} cycles, {rates.COLD_CYCLES}", rates.CHANNEL
    )


def fill_bytes(device: DeviceProgram) -> int:
    """Bytes of one element on every hop: shim -> (memtile) -> core, and core -> (memtile) -> shim."""
    chains = {dma.channel: dma for dma in device.dmas}
    hops: dict[tuple[TileKind, Direction], int] = {}
    for route in device.routes:
        for kind, direction, size in _ends(route, chains):
            hops[kind, direction] = max(hops.get((kind, direction), 0), size)
    return sum(hops.values())


def _ends(route: Route, chains: Mapping[object, DmaProgram]) -> Iterator[tuple[TileKind, Direction, int]]:
    """For each hop of a route, where it starts, whether it leads in or out, and the bytes of one element."""
    source = route.source.tile.kind
    for dest in route.dests:
        first = chains.get(dest) or chains.get(route.source)
        if first is not None and first.bds:
            inward = Direction.S2MM if dest.tile.kind is TileKind.CORE or source is TileKind.SHIM else Direction.MM2S
            yield source, inward, _bytes(first.bds[0])


def _bytes(bd: BufferDescriptor) -> int:
    return bd.length * bd.element_bytes
