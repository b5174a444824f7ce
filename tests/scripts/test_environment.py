# SPDX-License-Identifier: Apache-2.0
"""What a machine lacks is named together, before any work; what it has is not."""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import environment

Disk = namedtuple("Disk", "free")
Version = namedtuple("Version", "major minor micro")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """A machine that has everything; a test takes some of it away. Nothing may be started on it."""

    def nothing(*_: object, **__: object) -> None:
        raise AssertionError("work was begun")

    monkeypatch.setattr(environment, "has_compiler", lambda: True)
    monkeypatch.setattr(environment, "wants_zig", lambda: False)
    monkeypatch.setattr(environment, "registry_refusal", lambda: "")
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda _: Disk(10 << 30))
    monkeypatch.setattr(environment.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(environment.subprocess, "run", nothing)
    yield monkeypatch


WITHOUT = {
    "Python 3.": lambda m: m.setattr(environment.sys, "version_info", Version(3, 10, 4)),
    "linux aarch64: Linux on x86-64": lambda m: m.setattr(environment.platform, "machine", lambda: "aarch64"),
    "the venv module: apt-get install python3-venv": lambda m: m.setitem(sys.modules, "ensurepip", None),
    "a C++20 compiler: apt-get install g++": lambda m: m.setattr(environment, "has_compiler", lambda: False),
    "disk: 100 MiB free": lambda m: m.setattr(environment.shutil, "disk_usage", lambda _: Disk(100 << 20)),
    "network: pip gets no package": lambda m: m.setattr(environment, "registry_refusal", lambda: "no route"),
}


def test_a_machine_that_has_everything_lacks_nothing(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert environment.missing(tmp_path / "venv") == []


@pytest.mark.parametrize("words", WITHOUT)
def test_each_thing_that_is_missing_is_named_alone(words: str, machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    WITHOUT[words](machine)
    (said,) = environment.missing(tmp_path / "venv")
    assert said.startswith(words)


def test_all_that_is_missing_is_named_together_and_nothing_is_begun(
    machine: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for take in WITHOUT.values():
        take(machine)
    with pytest.raises(SystemExit) as ended:
        environment.make(tmp_path / "venv")
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert all(f"  - {words}" in printed.err for words in WITHOUT)
    assert printed.out.startswith("next: ")
    assert not (tmp_path / "venv").exists()


def test_the_size_of_ziglang_stands_beside_its_offer(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.setattr(environment, "has_compiler", lambda: False)
    (said,) = environment.missing(tmp_path / "venv")
    assert f"{environment.ZIG_VARIABLE}=1" in said
    assert "101 MB to download, 411 MB installed" in said
    machine.setattr(environment, "wants_zig", lambda: True)
    assert environment.missing(tmp_path / "venv") == []


@pytest.mark.parametrize(("answer", "agreed"), [("y\n", True), ("Yes\n", True), ("\n", False), ("no\n", False)])
def test_ziglang_is_taken_on_a_yes_alone(answer: str, agreed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return answer

        def write(self, _: str) -> None: ...

        def flush(self) -> None: ...

    monkeypatch.setattr(environment.sys, "stdin", Terminal())
    monkeypatch.setattr(environment.sys, "stderr", Terminal())
    monkeypatch.delenv(environment.ZIG_VARIABLE, raising=False)
    assert environment.wants_zig() is agreed


def test_pips_last_words_say_why_the_registry_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    assert "jinja2" in environment.registry_refusal().lower()
