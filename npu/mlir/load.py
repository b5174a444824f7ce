# SPDX-License-Identifier: Apache-2.0
"""`load_program`: text to Program, parsed once per content.

With `cache` the lowered Program is kept beside other artifacts under the text's sha256 and `reader_version()`; a file
there is complete or not there at all.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path

from xdsl.dialects.func import FuncOp

from npu.mlir.aie import DeviceOp
from npu.mlir.memref_data import GlobalOp
from npu.mlir.read_configure import find_inlined
from npu.mlir.read_device import DeviceReader
from npu.mlir.text import parse_module
from npu.program import DeviceProgram, Program, Run
from refusal import Refusal


@lru_cache(maxsize=1)
def reader_version() -> str:
    """Part of every cache key: the content of everything that decides which Program a text gives."""
    room = Path(__file__).parent
    digest = sha256(metadata.version("xdsl").encode())
    for path in sorted((*room.glob("*.py"), room.parent / "program.py", room.parent / "array.py")):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def load_program(text: str, *, cache: Path | None = None) -> Program:
    """Parse, check and lower a module.

    Args:
        text: MLIR in mlir-aie's assembly format of 2026-03.
        cache: a directory for lowered programs; it is made when missing.

    Raises:
        Refusal: what we do not understand, with operation and line; nothing is skipped.
    """
    digest = sha256(text.encode()).hexdigest()
    kept = cache / f"{digest}.{reader_version()}.program" if cache is not None else None
    if kept is not None:
        program = _read(kept, digest)
        if program is not None:
            return program
    pieces = split_devices(text)
    if len(pieces) > 1:
        # A deployment's module repeats the designs of others: each device is parsed once, by its own text.
        try:
            program = Program(tuple(_device(piece, cache) for piece in pieces), digest)
            _check_names(program)
        except _WholeModule:
            program = _lower(text, digest)
    else:
        program = _lower(text, digest)
    _check_runs(program)
    if kept is not None:
        _write(kept, program)
    return program


def split_devices(text: str) -> list[str]:
    """The devices of a module printed by `print_module`, each as its lines; [] for text of any other shape."""
    lines = text.rstrip("\n").split("\n")
    if lines[0] != "builtin.module {" or lines[-1] != "}":
        return []
    pieces: list[str] = []
    first = 1
    for number, line in enumerate(lines[1:-1], start=1):
        if number == first and not line.startswith("  aie.device("):
            return []
        if line == "  }":
            pieces.append("\n".join(lines[first : number + 1]))
            first = number + 1
    return pieces if first == len(lines) - 1 else []


def _device(piece: str, cache: Path | None) -> DeviceProgram:
    """One device of a module; lines in its messages count from the device's own first line."""
    text = f"builtin.module {{\n{piece}\n}}\n"
    digest = sha256(text.encode()).hexdigest()
    kept = cache / f"{digest}.{reader_version()}.device" if cache is not None else None
    program = _read(kept, digest) if kept is not None else None
    if program is None:
        name = piece.split("@", 1)[1].split(" ", 1)[0] if "@" in piece.split("\n", 1)[0] else "device"
        program = _lower(text, digest, file=f"@{name}", alone=True)
        if kept is not None:
            _write(kept, program)
    return program.devices[0]


def _check_names(program: Program) -> None:
    names = [device.name for device in program.devices]
    for name in names:
        if names.count(name) > 1:
            raise Refusal(f"device @{name} twice", expected="one per symbol", where="module")


class _WholeModule(Exception):
    """A device has instructions for another one: it cannot be read by itself."""


def _lower(text: str, digest: str, file: str = "module", alone: bool = False) -> Program:
    parsed = parse_module(text, file=file)
    devices, outer = [], []
    for op in parsed.module.body.block.ops:
        if isinstance(op, DeviceOp):
            devices.append(op)
        elif isinstance(op, FuncOp | GlobalOp):
            outer.append(op)
        else:
            raise Refusal(f"{op.name} in a module", expected="aie.device", where=parsed.where(op))
    if not devices:
        raise Refusal("a module without aie.device", expected="at least one design", where=parsed.file)
    names = [op.sym_name.data for op in devices]
    for op in devices:
        if names.count(op.sym_name.data) > 1:
            raise Refusal(f"device @{op.sym_name.data} twice", expected="one per symbol", where=parsed.where(op))
    inlined = find_inlined(parsed, devices)
    if alone and inlined:
        raise _WholeModule
    return Program(tuple(DeviceReader(parsed, op, outer, inlined).read() for op in devices), digest)


def _check_runs(program: Program) -> None:
    """Every run names a sequence of this module and passes what it takes."""
    for device in program.devices:
        for sequence in device.sequences:
            for run in sequence.instructions:
                if isinstance(run, Run):
                    _check_run(program, run, f"device @{device.name}, sequence @{sequence.name}")


def _check_run(program: Program, run: Run, where: str) -> None:
    try:
        target = program.device(run.device).sequence(run.sequence)
    except KeyError as error:
        raise Refusal(
            str(error.args[0]), where=where, next_step="correct the name in aiex.configure or aiex.run"
        ) from error
    given = tuple(argument.type for argument in run.arguments)
    if given != target.arguments:
        raise Refusal(
            f"@{run.sequence} of @{run.device} run with ({', '.join(map(str, given))})",
            expected=f"({', '.join(map(str, target.arguments))})",
            where=where,
            next_step="pass slices of those types",
        )


def _read(path: Path, digest: str) -> Program | None:
    try:
        with path.open("rb") as file:
            program = pickle.load(file)
    except (OSError, pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError):
        return None
    return program if isinstance(program, Program) and program.text_sha256 == digest else None


def _write(path: Path, program: Program) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".program-")
    try:
        with os.fdopen(handle, "wb") as file:
            pickle.dump(program, file, protocol=pickle.HIGHEST_PROTOCOL)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
