# SPDX-License-Identifier: Apache-2.0
"""Compiles a kernel's C++ source for the host, against the strict emulation of the AIE API.

A compiled kernel is a shared library under a content address: the source, every project header that it can include,
the defines, the compiler's version and the flags. `KernelLibrary` opens it; `CoreState` is the state of the one core
that runs it (control registers and counters), laid out as in include/aie_api/core_state.hpp.

The flags keep results bit-identical on every machine: no contraction into fused multiply-adds and no fast-math.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from filelock import FileLock

from npu.twin.elf_symbols import exported_functions
from npu.twin.kernel_lint import lint_kernel_source
from refusal import Refusal

__all__ = [
    "Compiler",
    "CoreState",
    "KernelLibrary",
    "compile_kernel",
    "compiler_of",
    "find_compiler",
    "lint_kernel_source",
    "target_flags",
]

INCLUDE_ROOT = Path(__file__).parent / "include"
FLAGS = (
    "-O3",
    "-std=c++20",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-fno-semantic-interposition",
    "-fno-strict-aliasing",
    "-w",
)
X86_64_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
ERROR_LINES = 600
TRAP_MESSAGE_BYTES = 240
MAX_ARGUMENTS = 16


@dataclass(frozen=True)
class Compiler:
    """A C++20 compiler: its command and the first line of its version."""

    command: tuple[str, ...]
    version: str


def compiler_of(command: tuple[str, ...]) -> Compiler | None:
    """The compiler behind a command, or None where the command does not run."""
    answer = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    if answer.returncode != 0 or not answer.stdout:
        return None
    return Compiler(command, answer.stdout.splitlines()[0])


@lru_cache(maxsize=1)
def find_compiler() -> Compiler:
    """g++, else clang++, else the ziglang package where it is installed.

    Raises:
        Refusal: none of them is there.
    """
    candidates = [(path,) for name in ("g++", "clang++") if (path := shutil.which(name))]
    if importlib.util.find_spec("ziglang") is not None:
        candidates.append((sys.executable, "-m", "ziglang", "c++"))
    for command in candidates:
        compiler = compiler_of(command)
        if compiler is not None:
            return compiler
    raise Refusal(
        "no C++ compiler was found",
        expected="g++ 12 or later, clang++ 16 or later, or the Python package ziglang",
        where="the digital twin compiles kernels for this host",
        next_step="install g++ (apt install g++), or pip install ziglang (about 100 MB to fetch, 410 MB on disk)",
    )


@lru_cache(maxsize=1)
def has_x86_64_v3() -> bool:
    """Whether this CPU has all of x86-64-v3 (AVX2 and its companions)."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        return False
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return found is not None and set(found.group(1).split()) >= X86_64_V3


def target_flags(compiler: Compiler) -> tuple[str, ...]:
    """The instruction set to compile for; results do not depend on it, only speed does."""
    zig = "ziglang" in compiler.command
    # zig turns undefined-behaviour traps on, and spells the architecture its own way.
    own = ("-fno-sanitize=undefined",) if zig else ()
    if not has_x86_64_v3():
        return own
    return (*own, "-march=x86_64_v3" if zig else "-march=x86-64-v3")


def compile_kernel(
    source: Path,
    defines: Mapping[str, str | None],
    *,
    cache: Path,
    include: Sequence[Path] = (),
    flags: Sequence[str] = (),
    prelude: Sequence[str] = (),
) -> Path:
    """Compiles one kernel source to a shared library in `cache`, or finds it there.

    Args:
        source: a C++ file whose kernels are extern "C" functions of pointers and 32-bit integers.
        defines: preprocessor names; None defines a name without a value.
        cache: directory of compiled kernels, made if missing.
        include: further directories of headers.
        flags: further compiler flags, after the standard ones (tests use -O1).
        prelude: headers under the include roots that are read before the source, for kernels that include none.

    Raises:
        Refusal: the source is missing, a define has no legal name, or the compiler refuses (its output is the reason).
    """
    if not source.is_file():
        raise Refusal(f"kernel source {source} is not a file", expected="a C++ source file", where="compile_kernel")
    compiler = find_compiler()
    options = [*FLAGS, *target_flags(compiler), *flags, *_define_options(defines)]
    options += [part for header in prelude for part in ("-include", header)]
    roots = (INCLUDE_ROOT, *include)
    library = cache / f"{source.stem}-{_address(source, roots, options, compiler, prelude)}.so"
    if library.is_file():
        return library
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(library.with_suffix(".lock")):
        if not library.is_file():
            _run_compiler(compiler, source, [*options, *(f"-I{root}" for root in roots)], library)
    return library


def _define_options(defines: Mapping[str, str | None]) -> list[str]:
    for name in defines:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise Refusal(f"define {name!r}", expected="a C identifier", where="compile_kernel")
    return [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in sorted(defines.items())]


def _run_compiler(compiler: Compiler, source: Path, options: Sequence[str], library: Path) -> None:
    handle, name = tempfile.mkstemp(prefix=library.stem, suffix=".tmp", dir=library.parent)
    os.close(handle)
    partial = Path(name)
    try:
        command = [*compiler.command, *options, str(source), "-o", str(partial)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise _compile_refusal(source, compiler, answer.stderr or answer.stdout)
        partial.replace(library)
    finally:
        partial.unlink(missing_ok=True)


def _compile_refusal(source: Path, compiler: Compiler, output: str) -> Refusal:
    lines = output.splitlines()
    errors = [line for line in lines if " error: " in line or " fatal error: " in line]
    shown = lines if len(lines) <= ERROR_LINES else [*lines[:ERROR_LINES], f"... {len(lines) - ERROR_LINES} more lines"]
    first = errors[0] if errors else "the compiler failed without an error line"
    return Refusal(
        f"{first}\n" + "\n".join(shown),
        expected="a kernel that the AIE2P subset of the AIE API accepts (npu/twin/include/README.md)",
        where=f"{source} compiled for the twin by {compiler.version}",
        next_step="correct the call that the error names",
    )


_INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>|(\S+))', re.MULTILINE)


def _address(
    source: Path, roots: Sequence[Path], options: Sequence[str], compiler: Compiler, prelude: Sequence[str] = ()
) -> str:
    """The content address: everything that decides the library's bytes, and no path of this machine."""
    digest = hashlib.sha256()
    for text in (compiler.version, *options):
        digest.update(text.encode() + b"\0")
    for name, content in _included(source, roots, prelude):
        digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    return digest.hexdigest()[:32]


def _included(source: Path, roots: Sequence[Path], prelude: Sequence[str] = ()) -> list[tuple[str, bytes]]:
    """The source and, transitively, each file that it includes and that lies beside it or under a root."""
    seen: dict[Path, tuple[str, bytes]] = {}
    waiting = [(source.name, source)]
    waiting += [(header, root / header) for header in prelude for root in roots if (root / header).is_file()]
    while waiting:
        name, path = waiting.pop()
        real = path.resolve()
        if real in seen:
            continue
        content = path.read_bytes()
        seen[real] = (name, content)
        for quoted, angled, other in _INCLUDE.findall(content.decode(errors="replace")):
            if other:
                raise Refusal(
                    f"#include {other}", expected='#include "file" or #include <file>', where=f"{path}, to be hashed"
                )
            wanted = quoted or angled
            places = [path.parent, *roots] if quoted else list(roots)
            found = next((place / wanted for place in places if (place / wanted).is_file()), None)
            if found is not None:
                waiting.append((wanted, found))
            elif quoted:
                raise Refusal(
                    f'#include "{quoted}" was not found',
                    expected=f"the file beside {path.name} or under an include directory",
                    where=str(path),
                    next_step="pass its directory as include",
                )
    return sorted(seen.values())


class CoreState(ctypes.Structure):
    """One core's control registers and counters; see include/aie_api/core_state.hpp for each field's meaning."""

    _fields_ = (
        ("rounding", ctypes.c_uint32),
        ("saturation", ctypes.c_uint32),
        ("mul_adds_vector", ctypes.c_uint64),
        ("matrix_macs", ctypes.c_uint64),
        ("mul_adds_scalar", ctypes.c_uint64),
        ("vector_ops", ctypes.c_uint64),
        ("mac_ops", ctypes.c_uint64),
        ("elementary_ops", ctypes.c_uint64),
        ("loads", ctypes.c_uint64),
        ("stores", ctypes.c_uint64),
        ("trap_jump", ctypes.c_void_p),
        ("watch", ctypes.c_void_p),
        ("cascade", ctypes.c_void_p),
        ("fault_address", ctypes.c_void_p),
        ("fault_signal", ctypes.c_uint32),
        ("fault_write", ctypes.c_uint32),
        ("trap_message", ctypes.c_char * TRAP_MESSAGE_BYTES),
    )

    def counters(self) -> dict[str, int]:
        """The counters by name."""
        return {name: getattr(self, name) for name, kind in self._fields_ if kind is ctypes.c_uint64}


class KernelLibrary:
    """A compiled kernel library, opened in this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path.resolve()))
        except OSError as error:
            raise Refusal(f"{error}", expected="a library made by compile_kernel", where=str(path)) from error
        self._exported = frozenset(exported_functions(path))
        size = self._library.twin_core_size() if "twin_core_size" in self._exported else None
        if size != ctypes.sizeof(CoreState):
            raise Refusal(
                f"core state of {size} bytes",
                expected=f"{ctypes.sizeof(CoreState)}: a kernel that includes aie_api/aie.hpp of this version",
                where=str(path),
                next_step="include <aie_api/aie.hpp> in the kernel, or compile it again",
            )
        self._call = self._library.twin_call
        self._call.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
        self._call.restype = ctypes.c_int

    @property
    def uses_cascade(self) -> bool:
        """Whether any of its kernels moves values through the core's cascade."""
        return "twin_cascade" in self._exported

    def address(self, symbol: str) -> int:
        """The address of an exported function.

        Raises:
            Refusal: the library exports no such function.
        """
        # dlsym alone would also find functions of the C library.
        if symbol not in self._exported:
            names = ", ".join(self.kernels()) or "none"
            raise Refusal(
                f"no function {symbol!r}",
                expected=f"one of the exported kernels: {names}",
                where=str(self.path),
                next_step='export it with extern "C", or correct the name in the design',
            )
        function = self._library[symbol]
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def kernels(self) -> list[str]:
        """The names of the exported kernel functions (C names only)."""
        return [n for n in sorted(self._exported) if not n.startswith(("_", "twin_"))]

    @property
    def set_core_address(self) -> int:
        """Address of `void twin_set_core(CoreState *)`: sets the core of the calling thread for this library."""
        return self.address("twin_set_core")

    @property
    def call_address(self) -> int:
        """Address of `int twin_call(CoreState *, void *function, const uint64_t *arguments, uint32_t count)`.

        It returns 0, or 1 after a trap, whose reason is then in the core state's trap_message.
        """
        return self.address("twin_call")

    def call(self, symbol: str, core: CoreState, *arguments: int) -> None:
        """Runs one kernel on a core; each argument is an address or an integer.

        Raises:
            Refusal: the kernel trapped; the refusal holds the reason.
        """
        if len(arguments) > MAX_ARGUMENTS:
            raise Refusal(f"{len(arguments)} arguments", expected=f"at most {MAX_ARGUMENTS}", where=f"kernel {symbol}")
        words = (ctypes.c_uint64 * MAX_ARGUMENTS)(*(value & 0xFFFFFFFFFFFFFFFF for value in arguments))
        if self._call(ctypes.addressof(core), self.address(symbol), ctypes.addressof(words), len(arguments)) != 0:
            raise Refusal(
                core.trap_message.decode(errors="replace"),
                where=f"kernel {symbol} of {self.path.name}",
                next_step="correct the kernel: the device would go on with wrong data",
            )
