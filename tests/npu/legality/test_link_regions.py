# SPDX-License-Identifier: Apache-2.0
"""Joins and distributes: parts of one memtile element neither overlap nor leave gaps."""

from npu.legality import Severity
from npu.program import Buffer, BufferDescriptor, Dim, DmaProgram, MemRef
from tests.npu.legality.programs import MEMTILE, design, findings, into, limits, out_of

ELEMENT = Buffer("c_buff_0", MEMTILE, MemRef((64, 16), "i32"), fifo="c")


def joined(*parts, fifo="c", **read):
    """One channel in per (offset, length) or descriptor fields, one channel out."""
    buffer = Buffer(ELEMENT.name, ELEMENT.tile, ELEMENT.type, fifo=fifo)
    given = [p if isinstance(p, dict) else {"offset": p[0], "length": p[1]} for p in parts]
    writers = [DmaProgram(into(MEMTILE, n), (bd(**fields),)) for n, fields in enumerate(given)]
    reader = DmaProgram(out_of(MEMTILE, 0), (bd(**{"offset": 0, "length": 1024, **read}),))
    return design(buffers=(buffer,), dmas=(*writers, reader), routes=(), locks=(), sequences=(), cores=())


def bd(**fields):
    return BufferDescriptor(element_bytes=4, buffer=ELEMENT.name, next=0, **fields)


def test_four_quarters_make_an_element():
    assert limits(joined((0, 256), (256, 256), (512, 256), (768, 256))) == []


def test_parts_do_not_overlap():
    over = joined((0, 256), (256, 256), (508, 256), (768, 256))
    assert limits(over, Severity.ERROR) == ["parts of a join", "parts of a link"]
    assert findings(over)[0].asked == "4 elements written by memtile(0,1) S2MM 2 and another channel"


def test_what_is_read_was_written():
    short = joined((0, 256), (256, 256))
    assert limits(short, Severity.ERROR) == ["parts of a link"]
    assert findings(short)[0].asked == "512 elements read, never written, from 512 on"


def test_what_is_written_and_never_read_is_a_warning():
    assert limits(joined((0, 1024), length=512), Severity.ERROR) == []
    assert limits(joined((0, 1024), length=512), Severity.WARNING) == ["parts of a link"]


def test_interleaved_columns_do_not_overlap():
    def columns(first):
        return {"offset": first, "length": 512, "dims": (Dim(64, 16), Dim(8, 1))}

    assert limits(joined(columns(0), columns(8))) == []
    assert "parts of a join" in limits(joined(columns(0), columns(7)))


def test_buffers_outside_of_fifos_are_not_judged():
    assert limits(joined((0, 600), (500, 524), fifo=None)) == []
