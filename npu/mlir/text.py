# SPDX-License-Identifier: Apache-2.0
"""Text to modules and back: parsing with locations, the schema check, printing.

A parsed module remembers the line of each operation, so that every refusal can name one.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import affine, arith, builtin, cf, func, math, scf, vector
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Dialect, Operation, TypeAttribute
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException

from npu.mlir import aie, aie_fifo, aie_streams, aie_switch, aie_trace, aiex, aiex_registers
from npu.mlir.attributes import (
    BlockFloatType,
    DimsAttr,
    ObjectFifoSubviewType,
    ObjectFifoType,
    PacketInfoAttr,
    PadsAttr,
)
from npu.mlir.memref_data import MEMREF
from refusal import Refusal

AIE = Dialect(
    "aie",
    [*aie.OPERATIONS, *aie_fifo.OPERATIONS, *aie_streams.OPERATIONS, *aie_switch.OPERATIONS, *aie_trace.OPERATIONS],
    [ObjectFifoType, ObjectFifoSubviewType, DimsAttr, PadsAttr, PacketInfoAttr],
)
AIEX = Dialect("aiex", [*aiex.OPERATIONS, *aiex_registers.OPERATIONS], [BlockFloatType])

# Discardable attributes that mean something to mlir-aie; all others are refused.
ALLOWED_ATTRIBUTES = {
    "func.func": {"link_with"},
    "aie.tile": {"controller_id"},
    "memref.load": {"nontemporal"},
    "memref.store": {"nontemporal"},
}


@dataclass
class ParsedModule:
    """A module and the line on which each operation begins."""

    module: ModuleOp
    lines: dict[Operation, int] = field(default_factory=dict)
    file: str = "module"

    def where(self, op: Operation) -> str:
        """`module:12: aie.buffer @acc`."""
        name = op.properties.get("sym_name") if op.properties else None
        symbol = f" @{name.data}" if name is not None else ""
        return f"{self.file}:{self.lines.get(op, 0)}: {op.name}{symbol}"


# A type whose text has one level of brackets inside its own: memref<4xi32, strided<[1], offset: 8>>.
_TYPE_TEXT = re.compile(r"(?:memref|!aie\.\w+)<[^<>]*(?:<[^<>]*(?:<[^<>]*>[^<>]*)*>[^<>]*)*>")


# A predicate in quotes, as MLIR reads it too; blanks keep the places of what follows.
_QUOTED_PREDICATE = re.compile(r'(\barith\.cmp[if]) "(\w+)"')


# A number within dense<...>.
_LITERAL = re.compile(r"-?0[xX][0-9a-fA-F]+|-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")


def _bits(word: str, element: builtin.AnyFloat) -> float:
    """The float with these bits."""
    width, bits = element.bitwidth, int(word, 16)
    if not 0 <= bits < 1 << width:
        raise VerifyException(f"{word} has more than the {width} bits of {element}")
    if isinstance(element, builtin.BFloat16Type):
        return struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0]
    form = {16: "<e", 32: "<f", 64: "<d"}.get(width)
    if form is None:
        raise VerifyException(f"{word} as {element}: bits are read of bf16, f16, f32 and f64")
    return struct.unpack(form, bits.to_bytes(width // 8, "little"))[0]


class _LocatedParser(Parser):
    """A parser that notes where each operation begins, and parses equal type texts once: half of the time went there."""

    def __init__(self, context: Context, text: str, name: str) -> None:
        super().__init__(context, text, name)
        self.starts: dict[Operation, int] = {}
        self.begun = 0
        self.types: dict[str, TypeAttribute] = {}

    def parse_optional_type(self) -> TypeAttribute | None:
        match = _TYPE_TEXT.match(self.lexer.input.content, self.pos)
        if match is None:
            return super().parse_optional_type()
        written = match.group()
        known = self.types.get(written)
        if known is not None:
            self._resume_from(match.end())
            return known
        parsed = super().parse_optional_type()
        # Only what the parser took entirely is what the text stands for.
        if parsed is not None and self.lexer.input.content[match.end() : self.pos].strip() == "":
            self.types[written] = parsed
        return parsed

    def parse_dense_int_or_fp_elements_attr(
        self, type: builtin.RankedStructure | None
    ) -> builtin.DenseIntOrFPElementsAttr:
        """A hexadecimal literal of a float type gives its bits, as MLIR reads it (xdsl takes it for a number)."""
        start = self.pos
        parsed = super().parse_dense_int_or_fp_elements_attr(type)
        written = self.lexer.input.content[start : self.pos]
        element = parsed.type.get_element_type()
        literals = _LITERAL.findall(written[: written.find(">")])
        if (
            '"' in written
            or not isinstance(element, builtin.AnyFloat)
            or not any("0x" in word.lower() for word in literals)
        ):
            return parsed
        numbers = [_bits(word, element) if "0x" in word.lower() else float(word) for word in literals]
        whole = numbers * (len(parsed) if len(numbers) == 1 else 1)
        return builtin.DenseIntOrFPElementsAttr.from_list(parsed.type, whole)

    def parse_operation(self) -> Operation:
        self.begun = start = self.pos
        op = super().parse_operation()
        self.starts[op] = start
        return op


def context() -> Context:
    """An xdsl context with the dialects that we read: builtin, func, memref, arith, math, vector, scf, cf, affine, aie, aiex."""
    ctx = Context()
    known = (
        builtin.Builtin,
        func.Func,
        MEMREF,
        arith.Arith,
        math.Math,
        vector.Vector,
        scf.Scf,
        cf.Cf,
        AIE,
        AIEX,
        affine.Affine,
    )
    for dialect in known:
        ctx.load_dialect(dialect)
    return ctx


def parse_module(text: str, *, file: str = "module") -> ParsedModule:
    """Parse and check `text`.

    Raises:
        Refusal: a syntax error, an unknown operation, or an attribute outside an operation's schema.
    """
    parser = None
    try:
        parser = _LocatedParser(context(), _QUOTED_PREDICATE.sub(r"\1  \2 ", text), file)
        module = parser.parse_module()
    except ParseError as error:
        line = text.count("\n", 0, error.span.start) + 1
        raise Refusal(
            error.msg.strip(),
            expected="text in the assembly format of mlir-aie 2026-03",
            where=f"{file}:{line}",
            next_step="correct the text at that line",
        ) from error
    except VerifyException as error:
        line = text.count("\n", 0, parser.begun if parser else 0) + 1
        raise Refusal(str(error), where=f"{file}:{line}", next_step="correct the text at that line") from error
    breaks = [match.start() for match in re.finditer("\n", text)]
    lines = {op: bisect_right(breaks, start) + 1 for op, start in parser.starts.items()}
    parsed = ParsedModule(module, lines, file)
    check_schema(parsed)
    return parsed


def check_schema(parsed: ParsedModule) -> None:
    """Refuse attributes that no schema knows (aie-opt would drop or keep them without a word), and wrong operands."""
    for op in parsed.module.walk():
        unknown = op.attributes.keys() - ALLOWED_ATTRIBUTES.get(op.name, set())
        if unknown and op.name != "builtin.module":
            known = sorted(op.get_irdl_definition().properties)
            raise Refusal(
                f"unknown attribute {', '.join(sorted(unknown))}",
                expected=f"attributes among {', '.join(known) or 'none'}",
                where=parsed.where(op),
                next_step="correct the attribute's name",
            )
        try:
            op.verify(verify_nested_ops=False)
        except VerifyException as error:
            raise Refusal(
                str(error).splitlines()[-1].strip(), where=parsed.where(op), next_step="correct the operation"
            ) from error


_SUFFIX = re.compile(r"(_\d+)+$")


def print_module(module: ModuleOp) -> str:
    """The module's text; value names never end in `_<digits>` except where the printer numbers equal names."""
    for op in module.walk():
        for result in op.results:
            _clean_hint(result)
        for region in op.regions:
            for block in region.blocks:
                for argument in block.args:
                    _clean_hint(argument)
    from io import StringIO

    stream = StringIO()
    Printer(stream).print_op(module)
    return stream.getvalue() + "\n"


def _clean_hint(value) -> None:
    # xdsl strips one suffix only, and then numbers into names that exist.
    hint = value.name_hint
    if hint is not None and _SUFFIX.search(hint):
        value.name_hint = _SUFFIX.sub("", hint) or None
