# SPDX-License-Identifier: Apache-2.0
"""Sequences of register writes, run on the twin: values worked by hand, and what must be refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npu.device import DeviceFault
from npu.mlir.load import load_program
from npu.twin.device import TwinDevice, TwinSession
from refusal import Refusal


def run(text: str, cache: Path, inputs: dict[int, list[int]], output: int) -> tuple[list[int], TwinSession]:
    """Argument `output` (i32) after the only sequence of the only device."""
    program = load_program(text)
    device = program.devices[0]
    sequence = device.sequences[0]
    session = TwinDevice(cache, tier="event", foreign=True).open_program(program, device.name, {})
    session.bind(sequence.name, {i: f"a{i}" for i in range(len(sequence.arguments))})
    for i, argument in enumerate(sequence.arguments):
        session.allocate(f"a{i}", argument.nbytes)
        if i in inputs:
            session.write(f"a{i}", 0, np.array(inputs[i], np.int32))
    session.run(sequence.name)
    return session.read(f"a{output}", 0, sequence.arguments[output].shape, "int32").tolist(), session


def through(tile: str, writes: str, declared: str = "", target: str = "npu2") -> str:
    """Shim -> the tile -> shim on channels 0, with `writes` as the sequence; arguments are 64 words each."""
    return f"""
module {{
  aie.device({target}) {{
    %shim = aie.tile(0, 0)
    %tile = aie.tile{tile}
    {declared}
    aie.flow(%shim, DMA : 0, %tile, DMA : 0)
    aie.flow(%tile, DMA : 0, %shim, DMA : 0)
    aie.shim_dma_allocation @in(%shim, MM2S, 0)
    aie.shim_dma_allocation @out(%shim, S2MM, 0)
    aie.runtime_sequence(%a: memref<64xi32>, %b: memref<64xi32>) {{
{writes}
    }}
  }}
}}
"""


def write32(address: int, value: int, column: int = 0, row: int = 0) -> str:
    return (
        f"aiex.npu.write32 {{address = {address} : ui32, column = {column} : i32, row = {row} : i32, "
        f"value = {value & 0xFFFFFFFF} : ui32}}"
    )


def words(base: int, values: list[int], row: int) -> str:
    return "\n".join(write32(base + 4 * i, value, row=row) for i, value in enumerate(values))


def shim_bd(
    number: int, length: int, argument: int, plus: int = 0, size0: int = 0, step0: int = 1, step1: int = 1
) -> str:
    """A shim BD by its registers: word 0 length; word 3 size0 and step0 - 1; word 4 step1 - 1; word 7 valid."""
    values = [length, 0, 0, size0 << 20 | (step0 - 1), step1 - 1, 0, 0, 1 << 25]
    base = 0x1D000 + 0x20 * number
    patch = f"aiex.npu.address_patch {{addr = {base + 4} : ui32, arg_idx = {argument} : i32, arg_plus = {plus} : i32}}"
    return words(base, values, 0) + "\n" + patch


TOKEN = 1 << 31
SYNC = """aiex.npu.sync {{channel = 0 : i32, column = 0 : i32, column_num = 1 : i32, direction = {direction} : i32,
row = {row} : i32, row_num = 1 : i32}}"""
OUT_SYNC = SYNC.format(direction=0, row=0)
# Core BDs: word 0 is address << 14 | length, word 5 has valid (25), release (value 18, id 13), acquire (12, value 5, id 0).
CORE_VALID = 1 << 25
COUNT = list(range(1, 65))


def core_bds(in_locks: int = 0, out_locks: int = 0, address: int = 0) -> str:
    """BD 0 takes 16 words to word `address`, BD 1 sends them; the queues are started by 0x1DE04 and 0x1DE14."""
    first = words(0x1D000, [address << 14 | 16, 0, 0, 0, 0, CORE_VALID | in_locks], 2)
    second = words(0x1D020, [address << 14 | 16, 0, 0, 0, 0, CORE_VALID | out_locks], 2)
    return f"{first}\n{write32(0x1DE04, 0, row=2)}\n{second}\n{write32(0x1DE14, 1, row=2)}"


def handshake() -> tuple[int, int]:
    """BD 0 acquires lock 0 (at least 1: -1 in 7 bits) and releases lock 1; BD 1 the other way."""
    acquire = 1 << 12 | 0x7F << 5
    return acquire | 0 | 1 << 18 | 1 << 13, acquire | 1 | 1 << 18 | 0 << 13


LOCKS = """%l0 = aie.lock(%tile, 0) {init = 1 : i32, sym_name = "free"}
%l1 = aie.lock(%tile, 1) {init = 0 : i32, sym_name = "full"}"""


def test_a_lowered_sequence_moves_what_its_registers_say(tmp_path: Path) -> None:
    """Rows of 4 words, 8 apart, of the first argument: words 0..3, 8..11, 16..19, 24..27 come out in a row."""
    writes = "\n".join(
        [
            shim_bd(0, 16, 1), write32(0x1D204, TOKEN), core_bds(*handshake()),
            shim_bd(1, 16, 0, size0=4, step0=1, step1=8), write32(0x1D214, 1), OUT_SYNC,
        ]
    )  # fmt: skip
    result, _ = run(through("(0, 2)", writes, LOCKS), tmp_path, {0: COUNT}, 1)
    assert result[:16] == [1, 2, 3, 4, 9, 10, 11, 12, 17, 18, 19, 20, 25, 26, 27, 28]


def test_locks_that_nobody_declared_start_at_zero(tmp_path: Path) -> None:
    """Lock 0 is set by its register: without that the first BD waits for ever."""
    setting = write32(0x1F000, 1, row=2)
    rest = [core_bds(*handshake()), shim_bd(1, 16, 0), write32(0x1D214, 1), OUT_SYNC]
    start = [shim_bd(0, 16, 1), write32(0x1D204, TOKEN)]
    result, _ = run(through("(0, 2)", "\n".join([*start, setting, *rest])), tmp_path, {0: COUNT}, 1)
    assert result[:16] == COUNT[:16]
    with pytest.raises(DeviceFault, match=r"lock 'lock 0 of core\(0,2\)'.*>= 1, it is 0"):
        run(through("(0, 2)", "\n".join([*start, *rest])), tmp_path, {0: COUNT}, 1)


def test_the_argument_offset_is_the_patch(tmp_path: Path) -> None:
    writes = [shim_bd(0, 16, 1), write32(0x1D204, TOKEN), core_bds(*handshake()), shim_bd(1, 16, 0, plus=80)]
    result, _ = run(
        through("(0, 2)", "\n".join([*writes, write32(0x1D214, 1), OUT_SYNC]), LOCKS), tmp_path, {0: COUNT}, 1
    )
    assert result[:16] == list(range(21, 37))  # 80 bytes are 20 words


def memtile_bds(base: int, lock_base: int) -> str:
    """BD 0 in, BD 1 out, 16 words at word `base` of the DMA's window, locks counted from `lock_base`."""
    valid, acquire = 1 << 31, 1 << 15 | 0x7F << 8
    first = [16, base, 0, 0, 0, 0, 0, valid | 1 << 24 | (lock_base + 1) << 16 | acquire | lock_base]
    second = [16, base, 0, 0, 0, 0, 0, valid | 1 << 24 | lock_base << 16 | acquire | (lock_base + 1)]
    return "\n".join(
        [words(0xA0000, first, 1), write32(0xA0604, 0, row=1), words(0xA0020, second, 1), write32(0xA0634, 1, row=1)]
    )


@pytest.mark.parametrize(("target", "base"), [("npu2", 0x80000 // 4), ("npu1", 0)])
def test_a_memtile_sees_its_own_memory_in_a_window(tmp_path: Path, target: str, base: int) -> None:
    buffer = '%m = aie.buffer(%tile) {address = 0 : i32, mem_bank = 0 : i32, sym_name = "m"} : memref<16xi32>'
    writes = [shim_bd(0, 16, 1), write32(0x1D204, TOKEN), memtile_bds(base, 64), shim_bd(1, 16, 0), write32(0x1D214, 1)]
    text = through("(0, 1)", "\n".join([*writes, OUT_SYNC]), buffer + "\n" + LOCKS, target)
    result, _ = run(text, tmp_path, {0: COUNT}, 1)
    assert result[:16] == COUNT[:16]
    assert {bd.buffer for task in load_program(text).devices[0].sequences[0].instructions for bd in getattr(task, "bds", ())} == {
        None, "m"
    }  # fmt: skip


def test_the_west_of_column_zero_is_refused(tmp_path: Path) -> None:
    writes = [shim_bd(0, 16, 1), write32(0x1D204, TOKEN), memtile_bds(0, 64)]
    with pytest.raises(Refusal, match=r"memtile\(-1,1\), outside the array"):
        load_program(through("(0, 1)", "\n".join(writes), LOCKS))


def test_a_bd_rewritten_in_flight_is_a_fault(tmp_path: Path) -> None:
    """The output BD is written again before its token was awaited; after the wait it may be."""
    start = [shim_bd(0, 16, 1), write32(0x1D204, TOKEN), core_bds(*handshake()), shim_bd(1, 16, 0)]
    again = [shim_bd(0, 16, 1, plus=64), write32(0x1D204, TOKEN)]
    feed, more = write32(0x1D214, 1), write32(0x1DE04, 0, row=2) + "\n" + write32(0x1DE14, 1, row=2)
    good = [*start, feed, OUT_SYNC, *again, more, feed, OUT_SYNC]
    result, _ = run(through("(0, 2)", "\n".join(good), LOCKS), tmp_path, {0: COUNT}, 1)
    assert result[:32] == COUNT[:16] * 2
    bad = [*start, *again, feed, OUT_SYNC, more, feed, OUT_SYNC]
    with pytest.raises(DeviceFault, match=r"BD 0 of shim\(0,0\) is reused in flight"):
        run(through("(0, 2)", "\n".join(bad), LOCKS), tmp_path, {0: COUNT}, 1)


def test_a_bd_rewritten_in_flight_and_pushed_later_is_a_fault_too(tmp_path: Path) -> None:
    """What counts is when its registers are written: here before the wait, the push comes after it."""
    start = [shim_bd(0, 16, 1), write32(0x1D204, TOKEN), core_bds(*handshake()), shim_bd(1, 16, 0)]
    feed, more = write32(0x1D214, 1), write32(0x1DE04, 0, row=2) + "\n" + write32(0x1DE14, 1, row=2)
    early = [*start, shim_bd(0, 16, 1, plus=64), feed, OUT_SYNC, write32(0x1D204, TOKEN), more, feed, OUT_SYNC]
    with pytest.raises(DeviceFault, match=r"BD 0 of shim\(0,0\) is reused in flight"):
        run(through("(0, 2)", "\n".join(early), LOCKS), tmp_path, {0: COUNT}, 1)


def test_a_bd_that_is_not_written_whole_is_refused() -> None:
    text = through("(0, 2)", write32(0x1D000, 16) + "\n" + write32(0x1D214, 0))
    with pytest.raises(Refusal, match=r"BD 0 of shim\(0,0\), of which the sequence has not written all words"):
        load_program(text)


def test_an_unpatched_shim_bd_is_refused() -> None:
    bd = shim_bd(0, 16, 0).rsplit("\n", 1)[0]
    with pytest.raises(Refusal, match="without an argument's address"):
        load_program(through("(0, 2)", bd + "\n" + write32(0x1D214, 0)))


@pytest.mark.parametrize(
    ("address", "row", "words"),
    [
        (0x32038, 2, "offset 0x32038 of core"), (0x20000, 2, "offset 0x20000 of core"), (0x3F004, 0, "of shim"),
        (0x32000, 2, "control register"), (0x1DE00, 2, "controller id alone"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_refused_by_address(address: int, row: int, words: str) -> None:
    """Processor bus, program memory, stream switch; a core that is reset; a channel that is reset."""
    with pytest.raises(Refusal, match=words) as refused:
        load_program(through("(0, 2)", write32(address, 2, row=row)))
    assert "module:12" in str(refused.value)


def test_trace_and_event_registers_are_taken_and_told(tmp_path: Path) -> None:
    watch = [
        write32(0x340D0, 0x797A0000, row=2),
        write32(0x340E0, 1, row=2),
        write32(0x34008, 127),
        write32(0x34000, 1),
    ]
    writes = [
        shim_bd(0, 16, 1),
        write32(0x1D204, TOKEN),
        core_bds(*handshake()),
        shim_bd(1, 16, 0),
        write32(0x1D214, 1),
    ]
    result, session = run(through("(0, 2)", "\n".join([*watch, *writes, OUT_SYNC]), LOCKS), tmp_path, {0: COUNT}, 1)
    assert result[:16] == COUNT[:16]
    notes = "\n".join(session.notes())
    assert "2 writes to trace registers" in notes
    assert "1 writes to timer registers" in notes


CORE = """
    %in = aie.buffer(%tile) {address = 1024 : i32, sym_name = "given"} : memref<8xi32>
    %out = aie.buffer(%tile) {sym_name = "taken"} : memref<8xi32>
    %go = aie.lock(%tile, 0) {init = 0 : i32, sym_name = "go"}
    %done = aie.lock(%tile, 1) {init = 0 : i32, sym_name = "done"}
    %core = aie.core(%tile) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c8 = arith.constant 8 : index
      %fill = arith.constant 926365495 : i32
      scf.for %i = %c0 to %c8 step %c1 {
        memref.store %fill, %in[%i] : memref<8xi32>
      }
      aie.use_lock(%go, AcquireGreaterEqual, 1)
      scf.for %i = %c0 to %c8 step %c1 {
        %x = memref.load %in[%i] : memref<8xi32>
        memref.store %x, %out[%i] : memref<8xi32>
      }
      aie.use_lock(%done, Release, 1)
      aie.end
    }
    %mem = aie.mem(%tile) {
      %0 = aie.dma_start(MM2S, 0, ^bd, ^end)
    ^bd:
      aie.use_lock(%done, AcquireGreaterEqual, 1)
      aie.dma_bd(%out : memref<8xi32>) { len = 8 : i32 }
      aie.next_bd ^bd
    ^end:
      aie.end
    }
"""
RECEIVE = (
    "aiex.npu.dma_memcpy_nd(%b[0, 0, 0, 0][1, 1, 1, 8][0, 0, 0, 1]) {id = 0 : i64, metadata = @out} : memref<64xi32>"
)
WAIT = "aiex.npu.dma_wait {symbol = @out}"


def test_data_memory_is_written_whole_in_blocks_and_by_mask(tmp_path: Path) -> None:
    """The buffer lies at byte 1024; 926365495 is 0x37373737. A mask keeps the bits that it does not have."""
    writes = [
        "aiex.npu.maskwrite32 {row = 2 : i32, column = 0 : i32, address = 1024 : ui32, value = 0x12345678 : ui32,"
        " mask = 0xF0F0F0F0 : ui32}",
        'aiex.npu.maskwrite32 {buffer = @given, address = 1 : ui32, value = 0x9ABCDEF0 : ui32, mask = 0x0F0F0F0F : ui32}',
        "%d = memref.get_global @block : memref<2xi32>",
        "aiex.npu.blockwrite(%d) {buffer = @given, address = 2 : ui32} : memref<2xi32>",
        "aiex.npu.blockwrite(%d) {address = 2098196 : ui32} : memref<2xi32>",  # 2 << 20 | 1024 + 20: words 5 and 6
        RECEIVE, write32(0x1F000, 1, row=2), WAIT,
    ]  # fmt: skip
    block = '    memref.global "private" constant @block : memref<2xi32> = dense<[70, -80]>\n'
    text = through("(0, 2)", "\n".join(writes), CORE + block)
    result, session = run(text, tmp_path, {}, 1)
    fill = 0x37373737
    masked = [(fill & ~0xF0F0F0F0) | (0x12345678 & 0xF0F0F0F0), (fill & ~0x0F0F0F0F) | (0x9ABCDEF0 & 0x0F0F0F0F)]
    assert result[:8] == [*masked, 70, -80, fill, 70, -80, fill]
    assert "keeps the rest" in next(iter(session.log())).note


def test_a_masked_write_needs_the_event_tier(tmp_path: Path) -> None:
    mask = "aiex.npu.maskwrite32 {buffer = @given, address = 1 : ui32, value = 1 : ui32, mask = 1 : ui32}"
    text = through("(0, 2)", "\n".join([mask, RECEIVE, write32(0x1F000, 1, row=2), WAIT]), CORE)
    session = TwinDevice(tmp_path, tier="replay").open_program(load_program(text), "main", {})
    session.bind("sequence", {0: "a", 1: "b"})
    for name in "ab":
        session.allocate(name, 256)
    with pytest.raises(DeviceFault, match=r"replay.*some bits of word 1 of 'given'"):
        session.run("sequence")


CHAIN = """
    aie.bd_chain @gather(%first: memref<64xi32>, %second: memref<64xi32>) {
      aie.dma_bd(%first : memref<64xi32>, 8, 4)
      aie.next_bd ^more
    ^more:
      aie.dma_bd(%second : memref<64xi32>, 0, 12)
      aie.end
    }
"""


@pytest.mark.parametrize("target", ["on (%shim, MM2S, 0)", "for @in"])
def test_a_bd_chain_is_a_task_on_its_arguments(tmp_path: Path, target: str) -> None:
    """4 words of one argument from word 8, then 12 of the other: the second use swaps them. 10, 20, ... is argument 1."""
    both = "(memref<64xi32>, memref<64xi32>)"
    writes = f"""
      %t = aiex.dma_configure_task_for @out {{
        aie.dma_bd(%c : memref<64xi32>, 0, 32)
        aie.end
      }} {{issue_token = true}}
      aiex.dma_start_task(%t)
      %x = aiex.dma_start_bd_chain @gather(%a, %b) : {both} {target} {{issue_token = true}}
      aiex.dma_await_task(%x)
      %y = aiex.dma_start_bd_chain @gather(%b, %a) : {both} {target}
      aiex.dma_await_task(%t)
    """.replace("dma_start_bd_chain", "dma_start_bd_chain" + ("_for" if target.startswith("for") else ""))
    core = core_bds_static()
    signature = "%b: memref<64xi32>) {"
    text = through("(0, 2)", writes, CHAIN + core).replace(signature, signature.replace(")", ", %c: memref<64xi32>)"))
    tens = [10 * i for i in COUNT]
    result, _ = run(text, tmp_path, {0: COUNT, 1: tens}, 2)
    assert result[:32] == COUNT[8:12] + tens[:12] + tens[8:12] + COUNT[:12]


def core_bds_static() -> str:
    """A core tile that hands 16 words on, by locks."""
    return (
        LOCKS
        + """
    %buffer = aie.buffer(%tile) {sym_name = "buffer"} : memref<16xi32>
    %mem = aie.mem(%tile) {
      %0 = aie.dma_start(S2MM, 0, ^in, ^next)
    ^in:
      aie.use_lock(%l0, AcquireGreaterEqual, 1)
      aie.dma_bd(%buffer : memref<16xi32>, 0, 16)
      aie.use_lock(%l1, Release, 1)
      aie.next_bd ^in
    ^next:
      %1 = aie.dma_start(MM2S, 0, ^out, ^end)
    ^out:
      aie.use_lock(%l1, AcquireGreaterEqual, 1)
      aie.dma_bd(%buffer : memref<16xi32>, 0, 16)
      aie.use_lock(%l0, Release, 1)
      aie.next_bd ^out
    ^end:
      aie.end
    }
    """
    )


def test_a_bd_of_the_arrays_own_program_is_not_written() -> None:
    with pytest.raises(Refusal, match=r"BD 0 of core\(0,2\), which a program of the array uses"):
        load_program(through("(0, 2)", write32(0x1D000, 16, row=2), core_bds_static()))


TRACE = """
    aie.packet_flow(1) {
      aie.packet_source<%tile, Trace : 0>
      aie.packet_dest<%shim, DMA : 1>
    } {keep_pkt_header = true}
"""


def test_trace_packets_go_nowhere(tmp_path: Path) -> None:
    """The trace BD (15, on S2MM 1, an argument beyond those of the sequence) is started and never awaited."""
    trace = [
        words(0x1D1E0, [8192, 0, 0, 0, 0, 0, 0, 1 << 25], 0),
        "aiex.npu.address_patch {addr = 119268 : ui32, arg_idx = 4 : i32, arg_plus = 0 : i32}",
        write32(0x1D20C, TOKEN | 15),
    ]
    data = """
      aiex.npu.dma_memcpy_nd(%b[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1]) {id = 0 : i64, metadata = @out} : memref<64xi32>
      aiex.npu.dma_memcpy_nd(%a[0, 0, 0, 0][1, 1, 1, 16][0, 0, 0, 1]) {id = 1 : i64, metadata = @in} : memref<64xi32>
      aiex.npu.dma_wait {symbol = @out}
    """
    result, session = run(
        through("(0, 2)", "\n".join([*trace, data]), TRACE + core_bds_static()), tmp_path, {0: COUNT}, 1
    )
    assert result[:16] == COUNT[:16]
    notes = "\n".join(session.notes())
    assert "trace of core(0,2) to shim(0,0) S2MM 1: no trace is written" in notes
    assert "task starts of shim(0,0) S2MM 1" in notes
