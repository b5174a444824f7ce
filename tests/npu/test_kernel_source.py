# SPDX-License-Identifier: Apache-2.0
"""A kernel source's name is its content, headers included: what a compiler would read is what is addressed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from npu.artifact import Artifact, KernelObject
from npu.kernel_source import source_sha256, source_with_headers
from npu.toolchain import source_files
from refusal import Refusal


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """kernels/scale/scale.cc includes two shared headers, of which one includes the other."""
    for folder in ("scale", "include"):
        (tmp_path / "kernels" / folder).mkdir(parents=True)
    (tmp_path / "kernels" / "include" / "factor.hpp").write_text("#pragma once\nconstexpr float factor = 2.0f;\n")
    (tmp_path / "kernels" / "include" / "scaled.hpp").write_text('#pragma once\n#include "factor.hpp"\n')
    path = tmp_path / "kernels" / "scale" / "scale.cc"
    path.write_text('#include "../include/scaled.hpp"\n# include "../include/factor.hpp"\n#include <stdint.h>\n')
    return path


def test_each_header_counts_once_however_often_it_is_included(source: Path) -> None:
    assert [path.name for path in source_with_headers(source)] == ["scale.cc", "scaled.hpp", "factor.hpp"]


@pytest.mark.parametrize("changed", ["scale/scale.cc", "include/scaled.hpp", "include/factor.hpp"])
def test_a_byte_more_in_any_file_is_another_object_and_another_artifact(source: Path, changed: str) -> None:
    def names() -> tuple[str, str, str]:
        made = KernelObject.of(source, {})
        return source_sha256(source), made.name, Artifact("", (KernelObject("fixed.o", source),), "main").key

    before = names()
    path = source.parents[1] / changed
    path.write_text(path.read_text() + "\n")
    assert all(one != other for one, other in zip(before, names(), strict=True))


def test_no_path_counts(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source.parents[1], tmp_path / "elsewhere" / "kernels")
    assert source_sha256(tmp_path / "elsewhere" / "kernels" / "scale" / "scale.cc") == source_sha256(source)


def test_a_build_folder_gets_every_file_where_its_includes_find_it(source: Path, tmp_path: Path) -> None:
    build = tmp_path / "build"
    for place, path in source_files(Artifact("", (KernelObject.of(source, {}),), "main")).items():
        (build / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, build / place)
    assert source_sha256(build / "kernels" / "scale" / "scale.cc") == source_sha256(source)


def test_a_header_that_is_not_there_is_refused_by_name_and_place(source: Path) -> None:
    (source.parents[1] / "include" / "factor.hpp").unlink()
    with pytest.raises(Refusal, match=r'factor\.hpp"; expected a file that is there'):
        source_with_headers(source)
