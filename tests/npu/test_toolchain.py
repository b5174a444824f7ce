# SPDX-License-Identifier: Apache-2.0
"""The NPU's toolchain: what is found, which commands, what changes a content address, what stops before a compile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.designs.design import OpDesign, single_design_artifact
from kernels.designs.gemm import GemmDesign
from kernels.designs.rowwise import AddDesign
from npu.artifact import Artifact, KernelObject
from npu.mlir.build import ModuleBuilder
from npu.program import MemRef
from npu.toolchain import build, build_key, find_toolchain, flow_of, signatures, steps
from refusal import Refusal
from tests.stand_ins import npu_tools

ADD = AddDesign(64, 128)


def wrapped(design: OpDesign, arguments: int = 3) -> Artifact:
    """A module whose device `main` configures one design and runs it on slices of its own arguments."""
    module = ModuleBuilder()
    design.write(module.device(design.name))
    main = module.device("main")
    flat = [operand.type for operand in design.operands]
    extra = [MemRef((64,), "bf16")] * (arguments - len(flat))
    with main.sequence("entry", [*flat, *extra]) as s:
        s.run(design.name, "run", [s.view(i, 0, kind) for i, kind in enumerate(flat)])
    return Artifact(module.text(), design.objects, entry_device="main")


@pytest.fixture
def tools(tmp_path: Path):
    environment = npu_tools.install(tmp_path / "tools")
    return find_toolchain(environment), environment


def test_everything_that_is_missing_is_named_at_once():
    with pytest.raises(Refusal) as refused:
        find_toolchain({"PATH": "/nonexistent"})
    for name in ("aiecc", "Peano", "aie_api"):
        assert name in str(refused.value)


def test_an_llvm_link_of_another_major_stops_before_any_compile(tmp_path):
    environment = npu_tools.install(tmp_path / "tools", without=("llvm-link",))
    npu_tools.program(tmp_path / "llvm-link", "llvm-link", "LLVM version 18.1.3")
    with pytest.raises(Refusal, match="llvm-link of LLVM 18"):
        find_toolchain(environment | {"PATH": f"{tmp_path}:{environment['PATH']}"})
    # Peano's own comes first where it has one: the build puts it first on the PATH too.
    npu_tools.program(tmp_path / "tools/peano/bin/llvm-link", "llvm-link", "LLVM version 21.0.0")
    found = find_toolchain(environment | {"PATH": f"{tmp_path}:{environment['PATH']}"})
    assert found.tools["llvm_link"].major == 21


def test_the_signature_of_a_sequence_is_read_from_the_text():
    found = signatures(wrapped(ADD, arguments=5).text)
    assert found["main"]["entry"].arguments == (16384, 16384, 16384, 128, 128)
    assert found["main"]["entry"].runs == 1
    assert found[ADD.name]["run"].arguments == (16384, 16384, 16384)
    assert found[ADD.name]["run"].runs == 0


def test_one_device_goes_by_xclbin_and_configured_devices_by_full_elf():
    assert flow_of(single_design_artifact(ADD)) == "xclbin"
    assert flow_of(wrapped(ADD)) == "elf"
    with pytest.raises(Refusal, match="2 devices"):
        flow_of(replace(wrapped(ADD), entry_device=ADD.name))


def test_the_kernel_command_is_the_documented_one_word_for_word():
    (step, *_) = steps(single_design_artifact(GemmDesign(64, 128, 256, 16, 32, 32)))
    assert step.argv[:6] == (
        "{clang}", "-O2", "-std=c++20", "--target=aie2p-none-unknown-elf", "-I{include}", "-DNDEBUG",
    )  # fmt: skip
    defines = {word for word in step.argv if word.startswith("-D")}
    assert "-DAIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16" in {word.split("=")[0] for word in defines}
    assert step.argv[-4:] == ("-c", "kernels/gemm/gemm.cc", "-o", step.makes)


def test_more_than_three_arguments_have_the_elf_assembled_again():
    made = [step.makes for step in steps(wrapped(ADD))]
    assert made.count("design.elf") == 1
    wide = steps(wrapped(ADD, arguments=5))
    assert [bool(step.signature) for step in wide] == [False, False, True, False]
    assert dict(wide[2].signature)["main"] == 5


def test_a_build_is_found_again_and_a_spoiled_product_is_made_anew(tmp_path, tools):
    toolchain, _ = tools
    artifact = wrapped(ADD, arguments=5)
    built = build(artifact, toolchain, tmp_path / "cache")
    assert json.loads(built.products["elf"].read_text())["signature"]["main"] == 5
    before = built.products["elf"].stat().st_mtime_ns
    assert build(artifact, toolchain, tmp_path / "cache").products["elf"].stat().st_mtime_ns == before
    built.products["elf"].write_text("half")
    assert build(artifact, toolchain, tmp_path / "cache").products["elf"].read_text() != "half"


def test_a_killed_build_is_no_build(tmp_path, tools):
    toolchain, _ = tools
    built = build(single_design_artifact(ADD), toolchain, tmp_path / "cache")
    (built.folder / "build.json").unlink()
    (built.folder / "design.xclbin").write_text("half")
    assert build(single_design_artifact(ADD), toolchain, tmp_path / "cache").products["xclbin"].read_text() != "half"


def test_every_input_changes_the_content_address(tmp_path, tools):
    toolchain, environment = tools
    source = tmp_path / "k.cc"
    source.write_text('#include "k.h"\nextern "C" void add() {}\n')
    (tmp_path / "k.h").write_text("// one\n")
    text = single_design_artifact(ADD).text
    artifact = Artifact(text, (KernelObject.of(source, {"DIM": 8}),), ADD.name)
    keys = [build_key(artifact, toolchain)]
    (tmp_path / "k.h").write_text("// two\n")
    keys.append(build_key(artifact, toolchain))
    keys.append(build_key(replace(artifact, text=text + "\n"), toolchain))
    keys.append(build_key(replace(artifact, objects=(KernelObject.of(source, {"DIM": 9}),)), toolchain))
    npu_tools.install(tmp_path / "tools", version="version 22.0.0")
    keys.append(build_key(artifact, find_toolchain(environment)))
    assert len(set(keys)) == len(keys)


def test_equal_names_of_different_shapes_have_different_objects():
    """Faults CC-01: two GEMMs with the same tile n and another K."""
    names = {single_design_artifact(GemmDesign(64, k * 4, 256, 16, k, 32)).objects[0].name for k in (32, 64)}
    assert len(names) == 2


def test_a_command_that_fails_says_what_the_tool_said(tmp_path, tools):
    toolchain, _ = tools
    artifact = single_design_artifact(ADD)
    with pytest.raises(Refusal, match="could not find link_with object"):
        build(replace(artifact, objects=()), toolchain, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "npu").glob("*/build.json"))


def test_xrts_tools_are_asked_for_before_the_first_compile(tmp_path):
    environment = npu_tools.install(tmp_path / "tools", without=("xclbinutil", "aiebu-asm"))
    toolchain = find_toolchain(environment)
    with pytest.raises(Refusal, match="xclbinutil"):
        build(single_design_artifact(ADD), toolchain, tmp_path / "cache")
    with pytest.raises(Refusal, match="aiebu_asm"):
        build(wrapped(ADD, arguments=5), toolchain, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
