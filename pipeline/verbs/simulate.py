# SPDX-License-Identifier: Apache-2.0
"""simulate: a design that others wrote, with their kernels, on the digital twin."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from npu.legality import explain
from npu.legality.violation import Severity
from npu.mlir.load import load_program
from npu.program import MemRef
from npu.twin.hostcc import KernelLibrary, compile_kernel
from npu.twin.kernel_guard import CALL_SECONDS
from npu.twin.memory import POISON
from pipeline.context import cache_directory
from pipeline.files import require_file, require_place
from pipeline.simulation import choose, directions, findings, from_argument, resources, simulate, to_argument, widened
from pipeline.verbs.console import End, parser, positive
from refusal import Refusal

PRELUDE = ("aie_api/foreign.hpp",)


def _options() -> argparse.ArgumentParser:
    options = parser("simulate", "Run an MLIR-AIE design on the digital twin and print values, resources and counts.")
    options.add_argument("design", type=Path, help="MLIR text (aie, aiex; old and new spelling)")
    options.add_argument("--kernel", type=Path, action="append", default=[], metavar="FILE.cc", help="a kernel source")
    options.add_argument(
        "--object", action="append", default=[], metavar="x.o=FILE.cc[,NAME=VALUE]",
        help="the source of one object file that the design links, with defines of its own",
    )  # fmt: skip
    options.add_argument("-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]")
    options.add_argument("-I", dest="include", action="append", type=Path, default=[], metavar="DIR")
    options.add_argument(
        "--input", action="append", default=[], metavar="[ARG=]a.npy",
        help="an input, for the arguments that transfers read, in order, or for argument ARG",
    )  # fmt: skip
    options.add_argument(
        "--output", action="append", default=[], metavar="[ARG=]b.npy",
        help="where to write an output, of the arguments that transfers write, in order, or of argument ARG",
    )  # fmt: skip
    options.add_argument("--shape", action="append", default=[], metavar="64x64", help="an output's shape, in order")
    options.add_argument("--dtype", action="append", default=[], help="an output's type, in order: bf16, float32, int8")
    options.add_argument("--device", help="the device to run, where there are several")
    options.add_argument("--sequence", help="the runtime sequence to run, where there are several")
    options.add_argument(
        "--timeout", type=positive, default=CALL_SECONDS, metavar="SECONDS",
        help=f"how long one kernel call may last before it is ended as a fault (default {CALL_SECONDS:g})",
    )  # fmt: skip
    options.add_argument(
        "--allow-unwritten", action="store_true",
        help="a DMA may send words of a tile that nobody wrote: a note, not a fault; outputs say how many arrived",
    )  # fmt: skip
    return options


def run_simulate(arguments: list[str]) -> End:
    """The verb."""
    args = _options().parse_args(arguments)
    sources = _sources(args)
    _require_files(args, [path for _, path, _ in sources])
    text = _read(args.design)
    program = load_program(text, cache=cache_directory() / "programs")
    program, larger = widened(program)
    device, sequence = choose(program, args.device, args.sequence)
    flow = directions(program, sequence)
    inputs = _assign(args.input, [i for i, (read, _) in enumerate(flow) if read], "--input", len(flow))
    outputs = _assign(args.output, [i for i, (_, write) in enumerate(flow) if write], "--output", len(flow))
    arrays = {i: _load(path, sequence.arguments[i], i) for i, path in inputs.items()}
    missing = [i for i, (read, write) in enumerate(flow) if read and not write and i not in arrays]
    if missing:
        raise Refusal(
            f"no input for argument {missing[0]} ({sequence.arguments[missing[0]]})",
            expected="an array for each argument that transfers read",
            where=f"@{device.name}:{sequence.name}",
            next_step=f"add --input {missing[0]}=FILE.npy",
        )
    libraries = _libraries(args, sources)
    print(f"design {args.design.name}: device @{device.name} ({device.target}), sequence @{sequence.name}")
    for note in larger:
        print(f"  {note}")
    for each in program.devices:
        for use in resources(each):
            print(f"  {use}" if len(program.devices) == 1 else f"  @{each.name} {use}")
    problems = findings(program)
    for violation in problems:
        print(explain(violation))
    outcome = simulate(
        program,
        device,
        sequence,
        libraries,
        arrays,
        list(outputs),
        cache_directory(),
        args.timeout,
        args.allow_unwritten,
    )
    print(f"DDR: {outcome.ddr_read_bytes} bytes read, {outcome.ddr_write_bytes} bytes written")
    for core in outcome.cores:
        counted = ", ".join(f"{name} {count}" for name, count in core.counters.items() if count)
        print(f"  core({core.tile[0]},{core.tile[1]}): {core.calls} kernel calls{'; ' + counted if counted else ''}")
    for note in outcome.notes:
        print(f"  {note}")
    results = []  # none is written before all are known to be what was asked for
    for number, index in enumerate(outputs):
        dtype = args.dtype[number] if number < len(args.dtype) else None
        shape = _shape(args.shape[number]) if number < len(args.shape) else None
        results.append(from_argument(outcome.outputs[index], sequence.arguments[index], dtype, shape))
    for (index, path), values in zip(outputs.items(), results, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, values)
        print(f"argument {index}: {_describe(values)} -> {path}{_unwritten(outcome.outputs[index])}")
    if any(violation.severity is Severity.ERROR for violation in problems):
        return End(1, "the twin ran the design, but the array would not: mend what is not legal above")
    return End(0, "compare the outputs with what the design promises")


def _require_files(args: argparse.Namespace, sources: list[Path]) -> None:
    """Refuse what is missing, or in the way, before anything is compiled."""
    for path in sources:
        require_file(path, "a C++ source", "--kernel or --object")
    for item in args.input:
        require_file(_split(item)[1], "an array saved by numpy.save", "--input")
    for item in args.output:
        require_place(_split(item)[1], "--output")


def _split(item: str) -> tuple[int | None, Path]:
    """`ARG=FILE` or `FILE` as (argument or None, file); `~` is the home directory."""
    head, separator, tail = item.partition("=")
    if separator and head.isdecimal():
        return int(head), Path(tail).expanduser()
    return None, Path(item).expanduser()


def _read(path: Path) -> str:
    path = require_file(path, "a file with MLIR text", "DESIGN")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"{error}", expected="a file with MLIR text", where=str(path)) from error


def _assign(given: list[str], natural: list[int], option: str, count: int) -> dict[int, Path]:
    """Argument -> file: in order over `natural`, or where `ARG=` says so."""
    found: dict[int, Path] = {}
    free = list(natural)
    for item in given:
        index, path = _split(item)
        if index is None and free:
            index = free[0]
        elif index is None:
            raise Refusal(f"{option} {item}", expected=f"at most {len(natural)}: arguments {natural}", where=option)
        if not 0 <= index < count or index in found:
            raise Refusal(f"argument {index} of {option}", expected=f"one of 0..{count - 1}, once", where=option)
        free = [i for i in free if i != index]
        found[index] = path
    return found


def _load(path: Path, declared: MemRef, index: int) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise Refusal(f"{error}", expected="an array saved by numpy.save", where=str(path)) from error
    values, how = to_argument(array, declared, f"{path}, argument {index}")
    if how:
        print(f"argument {index}: {how}")
    return values


def _sources(args: argparse.Namespace) -> list[tuple[str, Path, dict[str, str | None]]]:
    """(object name, source, defines) of every kernel source."""
    common = _defines(args.defines)
    sources = [(path.with_suffix(".o").name, path.expanduser(), common) for path in args.kernel]
    for item in args.object:
        name, separator, rest = item.partition("=")
        if not separator:
            raise Refusal(f"--object {item}", expected="NAME.o=FILE.cc", where="--object")
        file, *own = rest.split(",")
        sources.append((name, Path(file).expanduser(), common | _defines(own)))
    names = [name for name, _, _ in sources]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise Refusal(f"{twice} twice", expected="one source for each object", where="--kernel and --object")
    return sources


def _libraries(
    args: argparse.Namespace, sources: list[tuple[str, Path, dict[str, str | None]]]
) -> dict[str, KernelLibrary]:
    cache = cache_directory() / "kernels"
    return {
        name: KernelLibrary(compile_kernel(path, defines, cache=cache, include=args.include, prelude=PRELUDE))
        for name, path, defines in sources
    }


def _defines(items: list[str]) -> dict[str, str | None]:
    parts = (item.partition("=") for item in items)
    return {name: value if separator else None for name, separator, value in parts}


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.replace(",", "x").split("x"))
    except ValueError as error:
        raise Refusal(f"--shape {text}", expected="sizes such as 64x64", where="--shape") from error


def _unwritten(raw: np.ndarray) -> str:
    """A remark on words of an output that still hold what every buffer begins with."""
    words = raw[: len(raw) // 4 * 4].view(np.uint32)
    count = int((words == POISON).sum())
    return f"; {count} of its {len(words)} words were never written, and hold {POISON:#x}" if count else ""


def _describe(values: np.ndarray) -> str:
    shown = ", ".join(str(value) for value in values.reshape(-1)[:6])
    return f"{values.dtype} {'x'.join(map(str, values.shape))} [{shown}{', ...' if values.size > 6 else ''}]"
