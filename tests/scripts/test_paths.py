# SPDX-License-Identifier: Apache-2.0
"""A path, or a name, that is not there: one clear refusal before any work, the same for every verb, with what to do next."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from judge.fixture import write_fixture
from pipeline.deployment import Deployment, find
from pipeline.intake import describe
from refusal import Refusal
from tests.scripts.run_verb import verb

TEXT = "module {\n}\n"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a space in its path, without the Hub and without a cache of it."""
    path = tmp_path / "my work"
    path.mkdir()
    (path / "a file").write_text("")
    (path / "design.mlir").write_text(TEXT)
    (path / "k.cc").write_text("")
    np.save(path / "a.npy", np.zeros(4))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HOME", str(tmp_path))
    yield path


# words of the command -> words that the refusal must hold
ABSENT: dict[tuple[str, ...], tuple[str, ...]] = {
    ("doctor", "--model", "nowhere"): ("no directory 'nowhere'",),
    ("doctor", "--model", "models/small"): ("no directory 'models/small'",),
    ("doctor", "--model", ""): ("an empty MODEL",),
    ("deploy", "models/small"): ("no directory 'models/small'",),
    ("deploy", "my models/small one"): ("no directory 'my models/small one'",),
    ("deploy", "~/small"): ("no directory '~/small'",),
    ("deploy", "data/small"): ("no directory 'data/small'", "cannot be reached"),
    ("deploy", ""): ("an empty MODEL",),
    ("deploy", "a file"): ("'a file' is a file",),
    ("emit", "nowhere", "--out", "o"): ("'nowhere' is no kernel, no deployment and no directory", "rmsnorm"),
    ("emit", "models/small", "--out", "o"): ("no directory 'models/small'",),
    ("import_results", "nowhere.json"): ("no file nowhere.json", "run_here.sh", "design.mlir"),
    ("import_results", "."): ("is a directory",),
    ("simulate", "nowhere.mlir"): ("no file nowhere.mlir", "MLIR"),
    ("simulate", "design.mlir", "--kernel", "no.cc"): ("no file no.cc", "--kernel"),
    ("simulate", "design.mlir", "--object", "x.o=no.cc,A=1"): ("no file no.cc",),
    ("simulate", "design.mlir", "--input", "0=~/no.npy"): ("no.npy", "--input"),
    ("simulate", "design.mlir", "--input", "a.npy", "--output", "1=a file/b.npy"): ("a file is a file", "--output"),
    ("synthesize", "nowhere", "target"): ("no shape 'nowhere'", "tiny"),
    ("synthesize", "./nowhere/config.json", "target"): ("no file or directory",),
    ("synthesize", "tiny", "a file"): ("a file exists",),
    ("compile", "add", "-M", "64", "-N", "64", "--emit", "."): ("is a directory", "--emit"),
    ("compile", "add", "-M", "64", "-N", "64", "--emit", "a file/x.mlir"): ("a file is a file", "--emit"),
    ("status",): ("0 deployments here",),
    ("status", "nobody"): ("no deployment 'nobody'",),
    ("status", "../my work/deployments"): ("no deployment",),
    ("evaluate", "nobody"): ("no deployment 'nobody'",),
    ("generate", "nobody", "--prompt", "hi"): ("no deployment 'nobody'",),
    ("gate", "--name", "nobody", "--phase", "0"): ("no deployment 'nobody'",),
    ("ask", "--name", "nobody"): ("no deployment 'nobody'",),
    ("abandon", "nobody", "--reason", "none"): ("no deployment 'nobody'",),
    ("predict", "--name", "nobody"): ("no deployment 'nobody'",),
    ("record", "lesson", "x", "--symptom", "a", "--cause", "b", "--fix", "c", "--check", "d", "--evidence", "0123abcd",
     "--name", "nobody"): ("no deployment 'nobody'",),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("words", ABSENT, ids=" ".join)
def test_what_is_not_there_is_refused_and_nothing_is_left_behind(words: tuple[str, ...], desk: Path) -> None:
    before = sorted(path.name for path in desk.iterdir())
    refusal = verb(words[0], *words[1:], cwd=desk).refusal
    for word in ABSENT[words]:
        assert word in refusal
    assert "Errno" not in refusal
    assert sorted(path.name for path in desk.iterdir()) == before


def test_a_file_of_a_model_leads_to_its_directory(desk: Path) -> None:
    model = write_fixture(desk / "my model")
    ended = verb("deploy", str(model / "config.json"), cwd=desk)
    assert ended.next == f"scripts/deploy.py '{model}'"


def test_a_local_path_is_never_asked_of_the_hub() -> None:
    from pipeline.model_source import parse_hub_id

    assert parse_hub_id("models/small") is None
    assert parse_hub_id("org/small").id == "org/small"
    assert parse_hub_id("hf://models/small").id == "models/small"


@pytest.mark.parametrize(
    "name", ["my-model", "My Model", "deployments/my-model", "deployments/my-model/", "./deployments/my-model"]
)
def test_a_deployment_is_found_by_every_way_to_spell_it(name: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    Deployment.start(describe(str(write_fixture(desk / "small")), device="twin", name="My Model"))
    assert find(name).name == "my-model"


@pytest.mark.parametrize("name", ["", ".", "..", "../my-model", "other/my-model", "/my-model", "my--model-2"])
def test_another_place_is_no_deployment(name: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    Deployment.start(describe(str(write_fixture(desk / "small")), device="twin", name="My Model"))
    (desk.parent / "deployment.json").write_text(json.dumps({}))
    with pytest.raises(Refusal, match="no deployment") as refused:
        find(name)
    assert refused.value.next_step == "scripts/status.py my-model"
