# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the NPU's tools: clang++, aiecc, aiebu-asm, xclbinutil. Standard library alone.

They accept the options that mlir-aie of 2026-03 documents and nothing else, and their products say in JSON what went in, so
that `fake_xrt` can run the very same text and sources on the twin. `install` puts them on a PATH.
"""

from __future__ import annotations

import json
import re
import stat
import sys
from pathlib import Path

VERSION = "stand-in version 21.0.0"
CLANG_FLAGS = {
    "-O2", "-std=c++20", "--target=aie2p-none-unknown-elf", "-DNDEBUG", "-Wno-parentheses", "-Wno-attributes",
    "-Wno-macro-redefined", "-Wno-empty-body", "-Wno-missing-template-arg-list-after-template-kw",
}  # fmt: skip
AIECC_FLAGS = {
    "--no-compile-host", "--no-xchesscc", "--no-xbridge", "--generate-full-elf", "--aie-generate-xclbin",
    "--aie-generate-npu-insts",
}  # fmt: skip
AIECC_OPTIONS = {
    "--peano", "--tmpdir", "--full-elf-name", "--xclbin-name", "--npu-insts-name", "--device-name", "--sequence-name",
}  # fmt: skip
QUOTED = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)


class Wrong(Exception):
    """The tool was called in a way that the real one refuses."""


def install(folder: Path, *, without: tuple[str, ...] = (), version: str = VERSION) -> dict[str, str]:
    """Lay out a Peano, an mlir-aie and XRT's tools in `folder`; returns the environment that finds them."""
    places = {
        "aiecc": folder / "mlir_aie/bin/aiecc", "clang": folder / "peano/bin/clang++",
        "aiebu-asm": folder / "xrt/bin/aiebu-asm", "xclbinutil": folder / "xrt/bin/xclbinutil",
        "llvm-link": folder / "peano/bin/llvm-link",
    }  # fmt: skip
    for name, path in places.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if name not in without:
            program(path, name, version)
    header = folder / "mlir_aie/include/aie_api/aie.hpp"
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text("// a stand-in: the twin's own headers are what runs\n")
    return {
        "PATH": f"{folder}/mlir_aie/bin:{folder}/xrt/bin:/usr/bin:/bin",
        "PEANO_INSTALL_DIR": str(folder / "peano"),
        "MLIR_AIE_INSTALL_DIR": str(folder / "mlir_aie"),
    }


def program(path: Path, name: str, version: str = VERSION) -> None:
    """One stand-in as an executable file."""
    here = Path(__file__).resolve()
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{here}" {name} "{version}" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def flattened(source: Path) -> str:
    """A kernel source with each header of the pack in the place of its first include: one text that can be edited."""
    seen: set[Path] = set()

    def text_of(path: Path) -> str:
        seen.add(path.resolve())
        return QUOTED.sub(lambda match: included(path.parent / match[1]), path.read_text())

    def included(header: Path) -> str:
        return "" if header.resolve() in seen else text_of(header).replace("#pragma once\n", "")

    return text_of(source)


def clang(arguments: list[str]) -> None:
    """-c SOURCE -o OBJECT with exactly the documented flags."""
    given = set(arguments)
    if missing := CLANG_FLAGS - given:
        raise Wrong(f"missing {sorted(missing)}")
    source, target = arguments[arguments.index("-c") + 1], arguments[arguments.index("-o") + 1]
    defines, includes = {}, []
    for word in given - CLANG_FLAGS - {"-c", "-o", source, target}:
        if word.startswith("-D"):
            name, _, value = word[2:].partition("=")
            defines[name] = value
        elif word.startswith("-I"):
            includes.append(word[2:])
        else:
            raise Wrong(f"unknown argument {word}")
    if not any((Path(folder) / "aie_api/aie.hpp").is_file() for folder in includes):
        raise Wrong("'aie_api/aie.hpp' file not found")
    made = {"file": Path(source).name, "source": flattened(Path(source)), "defines": defines}
    Path(target).write_text(json.dumps(made))


def aiecc(arguments: list[str]) -> None:
    """Links what the text names and writes what was asked for."""
    flags, options, inputs = set(), {}, []
    for word in arguments:
        name, equals, value = word.partition("=")
        if equals and name in AIECC_OPTIONS:
            options[name] = value
        elif word in AIECC_FLAGS:
            flags.add(word)
        elif word.startswith("-"):
            raise Wrong(f"Unknown command line argument '{word}'")
        else:
            inputs.append(word)
    text = Path(inputs[0]).read_text()
    objects = {}
    for name in sorted(set(re.findall(r'link_with = "([^"]+)"', text))):
        if not Path(name).is_file():
            raise Wrong(f"could not find link_with object {name}")
        objects[name] = json.loads(Path(name).read_text())
    design = {"text": text, "objects": objects}
    if "--generate-full-elf" in flags:
        _full_elf(design, options)
    if "--aie-generate-xclbin" in flags:
        made = design | {"kind": "xclbin", "device": options["--device-name"]}
        Path(options["--xclbin-name"]).write_text(json.dumps(made))
    if "--aie-generate-npu-insts" in flags:
        Path(options["--npu-insts-name"]).write_text(json.dumps({"sequence": options["--sequence-name"]}))


def _full_elf(design: dict, options: dict[str, str]) -> None:
    """Three arguments a kernel, whatever its sequences take: what aiecc of 2026-03 writes."""
    names = [m[1] or "main" for m in re.finditer(r"aie\.device\(\w+\)(?: @(\w+))? \{", design["text"])]
    arguments = [{"name": f"arg_{i}", "type": "char *", "offset": hex(8 * i)} for i in range(3)]
    described = {"xrt-kernels": [{"name": name, "arguments": arguments} for name in names]}
    project = Path(options["--tmpdir"])
    project.mkdir(exist_ok=True)
    (project / "full_elf_config.json").write_text(json.dumps(described))
    (project / "design.json").write_text(json.dumps(design))
    _assemble(project / "full_elf_config.json", Path(options["--full-elf-name"]))


def aiebu_asm(arguments: list[str]) -> None:
    """-t aie2_config -j CONFIG -o ELF."""
    if arguments[:3] != ["-t", "aie2_config", "-j"] or arguments[4] != "-o" or len(arguments) != 6:
        raise Wrong(f"aiebu-asm {arguments}")
    _assemble(Path(arguments[3]), Path(arguments[5]))


def _assemble(config: Path, target: Path) -> None:
    design = json.loads((config.parent / "design.json").read_text())
    kernels = json.loads(config.read_text())["xrt-kernels"]
    design |= {"kind": "elf", "signature": {kernel["name"]: len(kernel["arguments"]) for kernel in kernels}}
    target.write_text(json.dumps(design))


def main(words: list[str]) -> int:
    """NAME VERSION ARGUMENTS..."""
    name, version, *arguments = words
    if arguments == ["--version"]:
        print(f"{name} {version}")
        return 0
    try:
        {"clang": clang, "aiecc": aiecc, "aiebu-asm": aiebu_asm}[name](arguments)
    except Wrong as wrong:
        print(f"{name}: error: {wrong}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
