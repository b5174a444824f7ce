# SPDX-License-Identifier: Apache-2.0
"""The toolchain of the real NPU: which tools are here, which commands make an artifact, and what is built already.

Commands are data: words with the placeholders {clang}, {include}, {aiecc}, {peano} and {aiebu_asm}. What `emit` writes
for another machine and what `build` runs here are the same commands. Two flows (mlir-aie of 2026-03):

    elf      the entry sequences configure other devices: one full ELF (`--generate-full-elf`), PDIs inside
    xclbin   one device whose sequence has tasks of its own: xclbin and instructions. A full ELF would not configure the
             array for it: its sequence loads no PDI. Only single-device modules; at most five buffers

`--generate-full-elf` declares three arguments a kernel, whatever its sequences take; where they take more, the ELF is
assembled once more from aiecc's own description with the true number (step `signature`). No run on hardware has
confirmed that step.

Imports the standard library, `refusal` and `npu.artifact` alone: `emit` ships this file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from npu.artifact import Artifact
from npu.kernel_source import source_with_headers
from refusal import Refusal

Flow = Literal["elf", "xclbin"]
FULL_ELF_ARGUMENTS = 3  # aiecc's fixed signature of a kernel in a full ELF
XCLBIN_BUFFERS = 5  # bo0..bo4 of aiecc's xclbin kernel
KERNEL_FLAGS = (
    "-Wno-parentheses",
    "-Wno-attributes",
    "-Wno-macro-redefined",
    "-Wno-empty-body",
    "-Wno-missing-template-arg-list-after-template-kw",
)
ELEMENT_BYTES = {"i8": 1, "i16": 2, "bf16": 2, "f16": 2, "i32": 4, "f32": 4, "i64": 8}
TEXT, ELF, XCLBIN, PROJECT = "design.mlir", "design.elf", "design.xclbin", "design.prj"


@dataclass(frozen=True)
class Signature:
    """One runtime sequence: bytes of each argument, and how many runs of other devices it holds (0: its own tasks)."""

    device: str
    name: str
    arguments: tuple[int, ...]
    runs: int


@dataclass(frozen=True)
class Step:
    """One command: `argv` with placeholders, run in the build folder; or `signature`: device -> number of arguments."""

    makes: str
    argv: tuple[str, ...] = ()
    signature: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Tool:
    """One program: where it is, what it says of its version, and the SHA-256 of its file."""

    name: str
    path: str
    version: str
    sha256: str

    @property
    def major(self) -> int | None:
        """The LLVM major version that it names."""
        found = re.search(r"version (\d+)", self.version)
        return int(found[1]) if found else None


@dataclass(frozen=True)
class Toolchain:
    """Everything that compiles for the NPU. xclbinutil, aiebu_asm, llvm_link, aie_opt may be absent."""

    tools: Mapping[str, Tool]
    peano: str
    include: str

    def places(self) -> dict[str, str]:
        """What the placeholders of a command stand for here."""
        paths = {name: tool.path for name, tool in self.tools.items()}
        return {"include": self.include, "peano": self.peano, "clang": paths["clang"], "aiecc": paths["aiecc"],
                "aiebu_asm": paths.get("aiebu_asm", "aiebu-asm")}  # fmt: skip

    def versions(self) -> dict[str, str]:
        """Tool -> version, for a person."""
        return {name: tool.version for name, tool in sorted(self.tools.items())}

    def identity(self) -> list[str]:
        """Name, version and hash of every tool: part of each content address. No path."""
        return [f"{name}\0{tool.version}\0{tool.sha256}" for name, tool in sorted(self.tools.items())]


@dataclass(frozen=True)
class Built:
    """A finished build. `products`: role -> file; instructions are under "insts:<sequence>"."""

    folder: Path
    key: str
    flow: Flow
    products: dict[str, Path] = field(default_factory=dict)


# ---- what a module asks for ------------------------------------------------------------------------

_DEVICE = re.compile(r"\baie\.device\((\w+)\)(?:\s*@(\w+))?\s*\{")
_SEQUENCE = re.compile(r"\b(?:aie|aiex)\.runtime_sequence\s+@(\w+)\((.*)\)\s*\{")
_ARGUMENT = re.compile(r":\s*memref<((?:\d+x)+)(\w+)>")


def signatures(text: str) -> dict[str, dict[str, Signature]]:
    """Device -> sequence -> signature, read from the text of our own printer, line by line."""
    found: dict[str, dict[str, Signature]] = {}
    device, sequence = "", ""
    for line in text.splitlines():
        if match := _DEVICE.search(line):
            device, sequence = match[2] or "main", ""
            found[device] = {}
        elif match := _SEQUENCE.search(line):
            sequence = match[1]
            sizes = tuple(_nbytes(dims, dtype) for dims, dtype in _ARGUMENT.findall(match[2]))
            found[device][sequence] = Signature(device, sequence, sizes, 0)
        elif sequence and re.search(r"\baiex\.run\s+@", line):
            now = found[device][sequence]
            found[device][sequence] = Signature(device, sequence, now.arguments, now.runs + 1)
    return found


def _nbytes(dims: str, dtype: str) -> int:
    elements = 1
    for size in dims.rstrip("x").split("x"):
        elements *= int(size)
    return elements * ELEMENT_BYTES[dtype]


def flow_of(artifact: Artifact) -> Flow:
    """How the artifact gets onto the NPU.

    Raises:
        Refusal: a module of several devices whose entry sequences configure none of them, or more than five buffers.
    """
    devices = signatures(artifact.text)
    entries = devices.get(artifact.entry_device, {})
    if not entries:
        raise Refusal(f"device @{artifact.entry_device} with no sequence", expected="one at least", where="artifact")
    if any(entry.runs for entry in entries.values()):
        return "elf"
    if len(devices) > 1:
        raise Refusal(
            f"{len(devices)} devices, and @{artifact.entry_device} configures none of them",
            expected="aiex.configure in the entry (full ELF), or one device (xclbin and instructions)", where="artifact",
            next_step="write the design into a module of its own",
        )  # fmt: skip
    widest = max(len(entry.arguments) for entry in entries.values())
    if widest > XCLBIN_BUFFERS:
        raise Refusal(f"{widest} buffers", expected=f"at most {XCLBIN_BUFFERS} in the xclbin flow", where="artifact")
    return "xclbin"


# ---- commands --------------------------------------------------------------------------------------


def core_target(target: str) -> str:
    """Peano's target triple of a device."""
    return f"{'aie2p' if target.startswith('npu2') else 'aie2'}-none-unknown-elf"


def source_files(artifact: Artifact) -> dict[str, Path]:
    """Place in the build folder -> file, for each kernel source and each header of ours that it includes."""
    files: dict[str, Path] = {}
    for obj in artifact.objects:
        for path in source_with_headers(obj.source):
            place = source_place(path)
            known = files.setdefault(place, path)
            if known.read_bytes() != path.read_bytes():
                raise Refusal(f"{path} and {known}", expected="one file a place", where=f"build folder, {place}")
    return dict(sorted(files.items()))


def source_place(source: Path) -> str:
    """Where a kernel source, or a header of ours, stands in a build folder."""
    return f"kernels/{source.resolve().parent.name}/{source.name}"


def steps(artifact: Artifact) -> tuple[Step, ...]:
    """The commands that make the artifact, in order, in a folder with `design.mlir` and the kernel sources."""
    flow = flow_of(artifact)
    return (*_kernel_steps(artifact), *(_elf_steps(artifact) if flow == "elf" else _xclbin_steps(artifact)))


def _kernel_steps(artifact: Artifact) -> Iterator[Step]:
    for obj in sorted(artifact.objects, key=lambda o: o.name):
        defines = [f"-D{name}={value}" if value else f"-D{name}" for name, value in obj.defines]
        yield Step(
            obj.name,
            ("{clang}", "-O2", "-std=c++20", f"--target={core_target(artifact.target)}", "-I{include}", "-DNDEBUG",
             *KERNEL_FLAGS, *defines, "-c", source_place(obj.source), "-o", obj.name),
        )  # fmt: skip


_AIECC = ("{aiecc}", "--no-compile-host", "--no-xchesscc", "--no-xbridge", "--peano={peano}", f"--tmpdir={PROJECT}")


def _elf_steps(artifact: Artifact) -> Iterator[Step]:
    yield Step(ELF, (*_AIECC, "--generate-full-elf", f"--full-elf-name={ELF}", TEXT))
    widest = {
        device: max(len(entry.arguments) for entry in entries.values())
        for device, entries in signatures(artifact.text).items()
        if entries
    }
    if max(widest.values()) > FULL_ELF_ARGUMENTS:
        config = f"{PROJECT}/full_elf_config.json"
        yield Step(config, signature=tuple(sorted(widest.items())))
        yield Step(ELF, ("{aiebu_asm}", "-t", "aie2_config", "-j", config, "-o", ELF))


def _xclbin_steps(artifact: Artifact) -> Iterator[Step]:
    device = artifact.entry_device
    for number, sequence in enumerate(signatures(artifact.text)[device]):
        package = ("--aie-generate-xclbin", f"--xclbin-name={XCLBIN}") if number == 0 else ()
        insts = ("--aie-generate-npu-insts", f"--npu-insts-name={sequence}.bin")
        chosen = (f"--device-name={device}", f"--sequence-name={sequence}")
        yield Step(f"{sequence}.bin", (*_AIECC, *chosen, *package, *insts, TEXT))


def widen_signature(config: Path, arguments: Mapping[str, int]) -> None:
    """Give each kernel of aiecc's full-ELF description as many 8-byte arguments as its sequences take."""
    described = json.loads(config.read_text())
    for kernel in described["xrt-kernels"]:
        count = max(arguments.get(kernel["name"], 0), len(kernel["arguments"]))
        kernel["arguments"] = [
            {"name": f"arg_{i}", "type": "char *", "offset": hex(8 * i)} for i in range(count)
        ]  # fmt: skip
    config.write_text(json.dumps(described, indent=2))


# ---- what is here ----------------------------------------------------------------------------------


def find_toolchain(environment: Mapping[str, str] | None = None) -> Toolchain:
    """The tools of this machine, preflight included.

    Raises:
        Refusal: something is missing (all of it is named), or an llvm-link of another major would be picked up.
    """
    environment = os.environ if environment is None else environment
    missing, paths = missing_tools(environment)
    if missing:
        raise Refusal(
            f"missing: {', '.join(missing)}", expected="mlir-aie (aiecc) and Peano (llvm-aie)", where="toolchain of the NPU",
            next_step="see docs/on-hardware.md, or use --device twin",
        )  # fmt: skip
    tools = {name: describe(name, path) for name, path in paths.items() if name not in ("peano", "include")}
    toolchain = Toolchain(tools, paths["peano"], paths["include"])
    _preflight(toolchain)
    return toolchain


def missing_tools(environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """What is not here, each with how it was looked for; and what is: name -> path."""
    search = environment.get("PATH", "")
    found: dict[str, str] = {}
    missing: list[str] = []
    aiecc = shutil.which("aiecc", path=search)
    peano = _peano(environment, aiecc)
    if aiecc:
        found["aiecc"] = aiecc
    else:
        missing.append("aiecc on the PATH")
    if peano:
        found |= {"peano": str(peano), "clang": str(peano / "bin" / "clang++")}
        search = f"{peano / 'bin'}{os.pathsep}{search}"
    else:
        missing.append("Peano (PEANO_INSTALL_DIR, or the package llvm-aie) with bin/clang++")
    include = _include(environment, aiecc)
    if include:
        found["include"] = str(include)
    else:
        missing.append("aie_api/aie.hpp in the include directory of mlir-aie (MLIR_AIE_INSTALL_DIR)")
    optional = {"xclbinutil": "xclbinutil", "aiebu_asm": "aiebu-asm", "llvm_link": "llvm-link", "aie_opt": "aie-opt"}
    found |= {name: path for name, program in optional.items() if (path := shutil.which(program, path=search))}
    return missing, found


def _peano(environment: Mapping[str, str], aiecc: str | None) -> Path | None:
    places = [Path(environment["PEANO_INSTALL_DIR"])] if environment.get("PEANO_INSTALL_DIR") else []
    places += [Path(entry) / "llvm-aie" for entry in sys.path if entry.endswith("-packages")]
    places += [Path(aiecc).resolve().parent.parent / "peano"] if aiecc else []
    return next((place for place in places if os.access(place / "bin" / "clang++", os.X_OK)), None)


def _include(environment: Mapping[str, str], aiecc: str | None) -> Path | None:
    places = [Path(environment["MLIR_AIE_INSTALL_DIR"])] if environment.get("MLIR_AIE_INSTALL_DIR") else []
    places += [Path(aiecc).resolve().parent.parent] if aiecc else []
    places += [Path(entry) / "mlir_aie" for entry in sys.path if entry.endswith("-packages")]
    return next((p / "include" for p in places if (p / "include" / "aie_api" / "aie.hpp").is_file()), None)


def describe(name: str, path: str) -> Tool:
    """A tool with its version line and the hash of its file."""
    status = Path(path).stat()
    return _describe(name, path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _describe(name: str, path: str, changed: int, size: int) -> Tool:
    with Path(path).open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=60)
        lines = [line.strip() for line in (answer.stdout or answer.stderr).splitlines()]
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refusal(f"{path} --version: {error}", expected="a program that runs", where="toolchain") from error
    said = [line for line in lines if "version" in line.lower()] or [line for line in lines if line][:1]
    return Tool(name, path, "; ".join(said[:2]), digest)


def _preflight(toolchain: Toolchain) -> None:
    """An llvm-link of another LLVM major writes bitcode that Peano reads wrongly, without a word."""
    linker, clang = toolchain.tools.get("llvm_link"), toolchain.tools["clang"]
    if linker is not None and linker.major != clang.major:
        raise Refusal(
            f"llvm-link of LLVM {linker.major} ({linker.path})", expected=f"LLVM {clang.major}, as Peano's clang",
            where="PATH", next_step="take it off the PATH, or put Peano's own before it",
        )  # fmt: skip


def require_flow(toolchain: Toolchain, artifact: Artifact) -> None:
    """Refuse before any compile when a tool that this artifact's flow calls is not here."""
    needed = ["xclbinutil"] if flow_of(artifact) == "xclbin" else []
    needed += ["aiebu_asm"] if any("{aiebu_asm}" in step.argv for step in steps(artifact)) else []
    absent = [name for name in needed if name not in toolchain.tools]
    if absent:
        raise Refusal(
            f"missing: {', '.join(absent)}", expected="XRT's tools on the PATH", where=f"the {flow_of(artifact)} flow",
            next_step="source XRT's setup.sh, then run the same command again",
        )  # fmt: skip


# ---- building --------------------------------------------------------------------------------------


def build_key(artifact: Artifact, toolchain: Toolchain) -> str:
    """The content address: text, sources, headers, defines, target, commands, and each tool's version and hash."""
    digest = hashlib.sha256()
    parts = [artifact.key, json.dumps([asdict(step) for step in steps(artifact)]), *toolchain.identity()]
    parts += [f"{place}\0{path.read_text()}" for place, path in source_files(artifact).items()]
    for part in parts:
        digest.update(len(part.encode()).to_bytes(8, "little") + part.encode())
    return digest.hexdigest()


def build(artifact: Artifact, toolchain: Toolchain, cache: Path) -> Built:
    """Compile the artifact, or find it: a build whose products have changed on disk is made again.

    Raises:
        Refusal: a command failed; its last lines are the reason.
    """
    require_flow(toolchain, artifact)
    key = build_key(artifact, toolchain)
    folder = cache / "npu" / key[:32]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        if not _intact(folder):
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            _make(artifact, toolchain, partial)
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
    return Built(folder, key, flow_of(artifact), _products(artifact, folder))


def _make(artifact: Artifact, toolchain: Toolchain, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / TEXT).write_text(artifact.text)
    for place, path in source_files(artifact).items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(path.read_bytes())
    for step in steps(artifact):
        run_step(step, folder, toolchain)
    hashes = {}
    for path in _products(artifact, folder).values():
        if not path.is_file() or not path.stat().st_size:
            raise Refusal(f"no {path.name} after the last command", expected="a file with content", where="aiecc")
        hashes[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    # Last and whole: a folder without it is not a build.
    (folder / "build.json").write_text(json.dumps({"products": hashes, "tools": toolchain.versions()}, indent=1))


def run_step(step: Step, folder: Path, toolchain: Toolchain) -> None:
    """Carry out one step in a build folder, with Peano's programs first on the PATH."""
    if step.signature:
        widen_signature(folder / step.makes, dict(step.signature))
        return
    places = toolchain.places()
    argv = [re.sub(r"\{(\w+)\}", lambda match: places[match[1]], word) for word in step.argv]
    environment = os.environ | {"PATH": f"{toolchain.peano}/bin{os.pathsep}{os.environ.get('PATH', '')}"}
    ran = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        said = (ran.stderr or ran.stdout).strip().splitlines()
        raise Refusal(
            f"{Path(argv[0]).name} ended with {ran.returncode}: " + "\n".join(said[-20:]), expected=step.makes,
            where="compiling for the NPU", next_step="skill debug-resources",
        )  # fmt: skip


def _products(artifact: Artifact, folder: Path) -> dict[str, Path]:
    if flow_of(artifact) == "elf":
        return {"elf": folder / ELF}
    sequences = signatures(artifact.text)[artifact.entry_device]
    return {"xclbin": folder / XCLBIN} | {f"insts:{name}": folder / f"{name}.bin" for name in sequences}


def _intact(folder: Path) -> bool:
    record = folder / "build.json"
    if not record.is_file():
        return False
    hashes = json.loads(record.read_text())["products"]
    files = {name: folder / name for name in hashes}
    return all(
        path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == hashes[name] for name, path in files.items()
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield  # closing releases the lock, also when the process is killed
