# SPDX-License-Identifier: Apache-2.0
"""The files of a model are those of intake whenever they are used: a phase, or a text, on other weights is refused by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from judge import evidence
from judge.fixture import write_fixture
from pipeline import conduct
from pipeline.context import CACHE_VARIABLE
from pipeline.deployment import Deployment
from pipeline.intake import require_unchanged
from pipeline.phases.outcome import Outcome
from pipeline.verbs.generate import generate
from reference.oracle import weights
from refusal import Refusal
from tests.faults.deployed import SMALL, context
from tests.stand_ins.byte_level import write_byte_level_tokenizer


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    folder = write_fixture(tmp_path / "small")
    write_byte_level_tokenizer(folder, 512)
    return folder


@pytest.fixture
def ctx(model: Path, tmp_path: Path):
    return context(tmp_path / "deployments", SMALL, model)


def same_size(model: Path) -> None:
    """One bit of a weight, in place; size, time and inode as before."""
    path = model / "model.safetensors"
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def other_weights(model: Path) -> None:
    write_fixture(model, seed=9)


def other_config(model: Path) -> None:
    path = model / "config.json"
    path.write_text(path.read_text() + "\n")


def one_more(model: Path) -> None:
    (model / "generation_config.json").write_text("{}")


def one_less(model: Path) -> None:
    (model / "tokenizer.json").unlink()


CHANGES: dict[str, Callable[[Path], None]] = {
    "model.safetensors": other_weights, "model/model.safetensors": same_size, "config.json": other_config,
    "generation_config.json": one_more, "tokenizer.json": one_less,
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_is_not_the_one_of_intake_is_named(name: str, ctx, model: Path) -> None:
    require_unchanged(ctx.description)
    CHANGES[name](model)
    with pytest.raises(Refusal) as refused:
        require_unchanged(ctx.description)
    assert name in str(refused.value)
    assert refused.value.next_step


def test_a_file_that_was_touched_or_copied_is_the_same(ctx, model: Path) -> None:
    (model / "model.safetensors").touch()
    require_unchanged(ctx.description)
    shutil.copy(model / "model.safetensors", model / "copy")
    (model / "copy").replace(model / "model.safetensors")
    require_unchanged(ctx.description)


def test_what_has_not_changed_is_not_read_again(ctx, monkeypatch: pytest.MonkeyPatch) -> None:
    require_unchanged(ctx.description)
    monkeypatch.setattr(weights.hashlib, "file_digest", lambda *_: pytest.fail("read again"))
    monkeypatch.setattr(
        "pipeline.intake.file_digest", lambda path: evidence.hashlib.sha256(path.read_bytes()).hexdigest()
    )
    require_unchanged(ctx.description)


def planted(monkeypatch: pytest.MonkeyPatch, run: Callable[[object], Outcome]) -> None:
    monkeypatch.setitem(conduct.PHASES, 0, ("oracle", SimpleNamespace(run=run)))


def records(deployment: Deployment) -> int:
    return evidence.verify_chain(deployment.evidence).records


def test_a_phase_does_not_begin_on_other_weights(ctx, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, lambda _: pytest.fail("the phase ran"))
    other_weights(model)
    with pytest.raises(Refusal, match=r"model\.safetensors"):
        conduct.run_phase(ctx, 0)
    assert records(ctx.deployment) == 0
    assert ctx.deployment.state().phases == {}


def test_a_phase_under_which_the_weights_changed_leaves_no_record(
    ctx, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: object) -> Outcome:
        same_size(model)
        return Outcome()

    planted(monkeypatch, run)
    with pytest.raises(Refusal, match=r"model\.safetensors"):
        conduct.run_phase(ctx, 0)
    assert records(ctx.deployment) == 0


def test_no_text_comes_from_other_weights(ctx, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    other_weights(model)
    with pytest.raises(Refusal, match=r"model\.safetensors"):
        generate(["fixture", "--prompt", "hi", "--tokens", "1"])
